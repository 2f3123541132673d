"""The Spark part of ``flights_pipeline.py``: what the stream computes, and the process whose driver runs it.

Flights and weather arrive as two topics. Each flight is joined with the weather of its origin and hour, and what is known of
departures is summed up per origin, carrier and day of New York, in event time. When the watermark has passed a day, its rows are final
and go to the topic of results, under the key ``origin/carrier/day``. Each batch is one transaction, so whoever reads what is
committed gets each result once, whatever crashes.

Minutes are whole numbers and are summed, never averaged, so that a recomputation can be held against the results without a tolerance.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import raylog
import raylog.spark
from raylog.spark.java import OPTIONS, use_java

FLIGHTS, WEATHER, DELAYS = "flights", "weather", "delays"
LATE_MINUTES = 15  # what air traffic statistics call late
VISIBILITY_MILES = (0, 1, 3, 6, 10)  # each band from its number up to the next one's; the instruments' scale ends at 10
MIDNIGHT = "5 hours"  # of New York's standard time, in UTC; nothing departs in the hour by which summer time differs

LATENESS = "28 days"
"""How far the watermark stays behind the newest record of the slower topic. What comes later than that is left out, so it is generous.

The topics are written in the order of event time, a day when the one before is acknowledged. A batch still finds one partition further on
than another, by as much as is written between two looks at their ends: milliseconds, or more on a busy machine. A year passes here in
half a minute, so that 28 days are two seconds.
"""

RAY = "ray"
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",  # of the join and the sums: their state is small
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
}
QUICK_JVM = "-XX:TieredStopAtLevel=1"  # a JVM that lives for a minute is better off without its second compiler

MARKER_DAYS = 60
"""A stream never knows that it is at its end: the last days would wait for a later record for ever. So both topics end with one, this much
later than all others. Its own day is never complete, so nothing of it comes out."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a driver is to do, with its files. ``master``: RAY for RayDP on the Ray at ``ray_address``, or one of plain PySpark.

    ``until``: the event time that the watermark has to reach for all results to be out.
    """

    cluster: Any
    checkpoint: Path
    table: Path
    log: Path
    until: datetime
    master: str = RAY
    ray_address: str = ""


# ------------------------------------------------------------------ what is computed


def flights_of(records: Any) -> Any:
    """Flights with their hour, the time of the event."""
    return _parsed(records, "carrier string, origin string, dep_delay int")


def weather_of(records: Any) -> Any:
    """Hours of weather at an airport."""
    return _parsed(records, "origin string, visib double")


def _parsed(records: Any, schema: str) -> Any:
    """A value that is no such JSON fails the query, and the error says so: null fields would be counted as cancelled flights."""
    values = raylog.spark.from_json(records, schema, columns=["timestamp"], mode="failfast")
    return values.withColumn("hour", f.date_trunc("hour", "timestamp")).drop("timestamp")


def delays_of(flights: Any, weather: Any) -> Any:
    """Sums per origin, carrier and day. The weather of some hours is missing: their flights count, without a visibility."""
    joined = flights.join(weather, ["origin", "hour"], "left_outer")
    minutes = f.col("dep_delay")  # null: cancelled
    limits = [*VISIBILITY_MILES, None]
    bands = [
        (f.col("visib") >= low) & (f.lit(True) if high is None else f.col("visib") < high)
        for low, high in pairwise(limits)
    ]
    day = f.window("hour", "1 day", startTime=MIDNIGHT).alias("day")
    return joined.groupBy("origin", "carrier", day).agg(
        *_counts(f.lit(True), minutes, "all"),
        f.count(f.when(minutes > LATE_MINUTES, 1)).alias("late"),
        *(count for at, band in enumerate(bands) for count in _counts(band, minutes, f"band{at}")),
    )


def _counts(which: Any, minutes: Any, name: str) -> list[Any]:
    """Of some flights: how many there are, how many of them departed, and by how many minutes these were late in all."""
    return [
        f.count(f.when(which, 1)).alias(f"{name}_flights"),
        f.count(f.when(which, minutes)).alias(f"{name}_departed"),
        f.coalesce(f.sum(f.when(which, minutes)), f.lit(0)).alias(f"{name}_minutes"),
    ]


def records_of(delays: Any) -> Any:
    """Results as keyed records: ``{"all": [flights, departed, minutes], "late": n, "bands": [[flights, departed, minutes], …]}``."""

    def counts(name: str) -> Any:
        return f.array(*(f.col(f"{name}_{what}") for what in ("flights", "departed", "minutes")))

    bands = f.array(*(counts(f"band{at}") for at in range(len(VISIBILITY_MILES))))
    day = f.date_format("day.start", "yyyy-MM-dd")
    value = f.to_json(f.struct(counts("all").alias("all"), "late", bands.alias("bands")))
    return delays.select(f.concat_ws("/", "origin", "carrier", day).alias("key"), value.alias("value"))


# ------------------------------------------------------------------ the driver


def start(spark: Any, order: Order) -> Any:
    """The query, begun or gone on with: where it was is in its checkpoint."""
    checkpoint = str(order.checkpoint)

    def stream(topic: str) -> Any:
        return raylog.spark.read_stream(
            spark,
            topic,
            cluster=order.cluster,
            checkpoint=checkpoint,
            starting_offsets="earliest",
            columns=["value", "timestamp"],
        )

    flights = flights_of(stream(FLIGHTS)).withWatermark("hour", LATENESS)
    weather = weather_of(stream(WEATHER)).withWatermark("hour", LATENESS)
    results = records_of(delays_of(flights, weather))
    trigger = {"processingTime": "1 second"}
    return raylog.spark.write_stream(results, DELAYS, cluster=order.cluster, checkpoint=checkpoint, trigger=trigger)


def drive(order: Order, parent: Any) -> None:
    """A process of its own: run the query until all results are out, then leave the topic as a table in a file.

    Tells ``parent``, a connection, how it goes: {"started": …}, then {"done": how many results are committed} or {"failed": …}.
    """
    os.setsid()  # it and its JVM are one group, and are killed as one
    with order.log.open("ab") as log:  # Spark has much to say when its neighbours die
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        spark = _session(order)
        query = start(spark, order)
        parent.send({"started": True})
        _await_watermark(query, order.until)
        query.stop()
        committed = {"cluster": order.cluster, "isolation_level": "read_committed"}
        table = raylog.spark.table(spark, DELAYS, **committed)
        rows = {bytes(row.key).decode(): json.loads(row.value) for row in table.select("key", "value").collect()}
        order.table.write_text(json.dumps(rows))
        parent.send({"done": raylog.spark.read(spark, DELAYS, **committed).count()})
        raylog.spark.stop() if order.master == RAY else spark.stop()
    except Exception as error:
        parent.send({"failed": f"{type(error).__name__}: {str(error).strip()[:2000]}"})
        raise


def _session(order: Order) -> Any:
    if order.master == RAY:
        os.environ["RAY_ADDRESS"] = order.ray_address
        raylog.connect()
        memory = {"executor_memory": "512m", "driver_memory": "512m"}
        jvms = ("driver", "executor", "ray.raydp_app_master")
        options = {f"spark.{jvm}.extraJavaOptions": QUICK_JVM for jvm in jvms}
        return raylog.spark.init("flights", cluster=order.cluster, configs=SETTINGS | options, **memory)
    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = SETTINGS | {"spark.driver.host": "127.0.0.1", "spark.driver.extraJavaOptions": f"{OPTIONS} {QUICK_JVM}"}
    return SparkSession.builder.master(order.master).config(map=settings).getOrCreate()


def _await_watermark(query: Any, until: datetime) -> None:
    """Until a batch has run with that watermark: then all earlier days are out."""
    while True:
        for progress in query.recentProgress:
            watermark = progress.get("eventTime", {}).get("watermark")
            if watermark is not None and datetime.fromisoformat(watermark) >= until:
                return
        if query.awaitTermination(0.2):  # raises what ended it
            raise RuntimeError("the query ended before its time")
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            raise RuntimeError("nobody waits for the results any more")
