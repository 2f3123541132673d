"""``examples/flights_pipeline.py``: what its stream computes, and that a killed driver changes nothing of it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress

from raylog.cluster import Cluster
from raylog.testing.kafka import Kafka

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
    ),  # pyspark's
]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DAYS = 40


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """The example's modules, as a program in their folder imports them; its driver's process does, too."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


def records(spark: Any, *rows: tuple[str, dict[str, Any]]) -> Any:
    """Records as ``read`` gives them, in UTC."""
    values = [(bytearray(json.dumps(value).encode()), datetime.fromisoformat(f"{at}+00:00")) for at, value in rows]
    return spark.createDataFrame(values, "value binary, timestamp timestamp")


def flight(at: str, delay: int | None, origin: str = "EWR") -> tuple[str, dict[str, Any]]:
    return at, {"origin": origin, "carrier": "UA", "dep_delay": delay}


def test_flights_are_summed_up_by_day_of_new_york_and_visibility(spark: Any, modules: Callable[[str], Any]) -> None:
    stream = modules("flights_stream")
    flights = records(
        spark,
        flight("2013-01-02 04:59:00", 15),
        flight("2013-01-02 05:10:00", 16),
        flight("2013-01-02 05:50:00", None),
        flight("2013-01-02 06:00:00", -3),
        flight("2013-01-02 07:00:00", 40),
        flight("2013-01-02 07:00:00", 5, "JFK"),
    )
    weather = records(
        spark,
        ("2013-01-02 04:00:00", {"origin": "EWR", "visib": 10.0}),
        ("2013-01-02 05:00:00", {"origin": "EWR", "visib": 0.5}),
        ("2013-01-02 06:00:00", {"origin": "EWR", "visib": 3.0}),
        ("2013-01-02 07:00:00", {"origin": "JFK", "visib": 1.0}),
    )
    delays = stream.delays_of(stream.flights_of(flights), stream.weather_of(weather))
    rows = {row.key: json.loads(row.value) for row in stream.records_of(delays).collect()}
    none = [0, 0, 0]
    assert rows == {
        "EWR/UA/2013-01-01": {"all": [1, 1, 15], "late": 0, "bands": [none, none, none, none, [1, 1, 15]]},
        "EWR/UA/2013-01-02": {"all": [4, 3, 53], "late": 2, "bands": [[2, 1, 16], none, [1, 1, -3], none, none]},
        "JFK/UA/2013-01-02": {"all": [1, 1, 5], "late": 0, "bands": [none, [1, 1, 5], none, none, none]},
    }


def test_a_killed_driver_changes_nothing_of_the_table(
    kafka: Kafka, modules: Callable[[str], Any], tmp_path: Path
) -> None:
    pipeline, proof, chart = map(modules, ("flights_pipeline", "flights_proof", "flights_chart"))
    for topic, partitions in pipeline.PARTITIONS.items():
        kafka.create_topic(topic, partitions, replication_factor=1)
    said: list[str] = []
    order = pipeline.order_for(Cluster(kafka.address), tmp_path, days=DAYS, master="local[2]")
    playback = pipeline.Playback(order, DAYS, Progress(disable=True), said.append)
    table, expected = playback.run()
    story = playback.story
    found = proof.differences(table, expected)
    assert len(found) == 0, (found, order.log.read_text()[-3000:])
    assert len(table) == len(expected) > 1_000
    assert story.produced[pipeline.FLIGHTS] == sum(row["all"][0] for row in table.values()) > 30_000
    assert sum(row["all"][0] - sum(band[0] for band in row["bands"]) for row in table.values()) > 0, (
        "hours without weather"
    )
    assert story.killed_pid and "killed the Spark driver" in said[0]
    assert story.committed == len(table), "every result is there once"
    assert story.records >= story.committed + story.written, "what the killed driver had written is aborted"
    chart.draw(table, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_that_is_not_the_recomputed_one_is_told_by_its_keys(modules: Callable[[str], Any]) -> None:
    proof = modules("flights_proof")
    found = proof.differences({"a": 1, "b": 2, "d": 4}, {"a": 1, "b": 3, "c": 3})
    assert (found.missing, found.unexpected, found.different, len(found)) == (["c"], ["d"], ["b"], 3)
