"""Streams that nobody stops: a session ends all the same, another one in the same program goes on, and the program ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from driver_scripts import run_script

pytestmark = pytest.mark.spark

TWO_SESSIONS = """
import raylog.spark, raylog.testing
from raylog.spark.java import OPTIONS, use_java
from raylog.spark.session import QUIET_LOGGING

def session():
    from pyspark.sql import SparkSession
    settings = {
        "spark.driver.extraJavaOptions": f"{OPTIONS} -XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile={QUIET_LOGGING}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()

def main():
    use_java()
    os.environ["PYSPARK_PYTHON"], os.environ["SPARK_LOCAL_IP"] = sys.executable, "127.0.0.1"
    with raylog.testing.broker(topics={"t": 1}) as kafka, raylog.Producer(kafka.address) as producer:
        found = []

        def started(spark):
            frame = raylog.spark.read_stream(spark, "t", checkpoint="checkpoint", cluster=kafka, starting_offsets="earliest")
            writer = frame.writeStream.option("checkpointLocation", "checkpoint")
            return writer.foreachBatch(lambda batch, _: found.extend(bytes(row.value).decode() for row in batch.collect())).start()

        for turn in range(2):
            spark = session()
            started(spark)
            producer.send_batch("t", [b"%d" % turn]).result(60)
            eventually(lambda: str(turn) in found)
            if turn == 0:
                spark.stop()
        note(found=found)

main()
"""


def test_a_session_ends_with_a_stream_running_and_the_next_one_goes_on(short_folder: Path) -> None:
    run = run_script(short_folder, TWO_SESSIONS)
    assert run.code == 0, run.stdout + run.stderr[-4000:]
    assert sorted(set(run.facts["found"])) == ["0", "1"]
    assert run.facts["found"][0] == "0" and run.facts["found"].count("1") == 1
