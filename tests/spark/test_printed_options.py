"""What `raylog up --secure` prints for Spark works as it stands, with Spark's own kafka source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from printed_texts import printed_texts

from raylog.client.sync import Producer

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
    ),  # pyspark's
]


@pytest.mark.parametrize("is_mutual", [False, True], ids=["passwords", "certificates"])
def test_sparks_kafka_source_reads_and_writes_with_the_printed_options(
    spark: Any, connector: Any, tmp_path: Path, is_mutual: bool
) -> None:
    if connector.missing is not None:
        pytest.skip(connector.missing)
    with printed_texts(tmp_path, is_mutual=is_mutual) as printed:
        with Producer(printed.running.address) as producer:
            producer.send("events", b"one").result(60)
        names: dict[str, Any] = {"spark": spark}
        exec(printed.of("Spark"), names)

        def values() -> list[str]:
            return sorted(row[0] for row in names["df"].selectExpr("cast(value as string)").collect())

        assert values() == ["one"]
        more = spark.createDataFrame([("two",)], ["value"])
        more.write.format("kafka").options(**names["options"]).option("topic", "events").save()
        exec(printed.of("Spark"), names)
        assert values() == ["one", "two"]
