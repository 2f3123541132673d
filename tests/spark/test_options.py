"""The options of a read by the names of Spark's kafka source, honoured or refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest

from raylog.errors import ConfigError
from raylog.spark.options import batch_options, stream_options

pytestmark = pytest.mark.spark


def test_sparks_names_are_raylogs() -> None:
    given = {
        "startingOffsets": "earliest",
        "failOnDataLoss": "false",
        "includeHeaders": "TRUE",
        "minPartitions": "4",
        "maxrecordsperpartition": 10,
        "kafka.isolation.level": "read_committed",
        "endingTimestamp": None,
    }
    assert batch_options(given) == {
        "starting_offsets": "earliest",
        "fail_on_data_loss": False,
        "include_headers": True,
        "min_partitions": 4,
        "max_records_per_partition": 10,
        "isolation_level": "read_committed",
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"subscribe": "t"}, "the second argument names the topics"),
        ({"kafka.bootstrap.servers": "x:1"}, "use cluster="),
        ({"kafka.max.poll.records": "5"}, "raylog's own client"),
        ({"maxOffsetsPerTrigger": 5}, "for streams"),
        ({"minPartition": 5}, "did you mean 'min_partitions'"),
        ({"whatever": 5}, "unknown option 'whatever': the options are"),
        ({"minPartitions": "many"}, "a whole number"),
        ({"minPartitions": 0}, "min_partitions=0: give at least 1"),
        ({"maxRecordsPerPartition": "-3"}, "max_records_per_partition='-3': give a whole number"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"isolation_level": "serializable"}, "read_committed or read_uncommitted"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "error or latest"),
        ({"minPartitions": 5, "min_partitions": 5}, "given twice"),
    ],
)
def test_what_cannot_be_honoured_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        batch_options(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"maxOffsetsPerTrigger": "0"}, "max_offsets_per_trigger=0: give at least 1"),
        ({"max_offsets_per_trigger": -5}, "at least 1"),
        ({"min_partitions": 0}, "at least 1"),
        ({"group_id": ""}, "the name of a group"),
        ({"group_id": 5}, "the name of a group"),
        ({"endingOffsets": "latest"}, "a stream has no end"),
        ({"checkpointLocation": "/c"}, "checkpoint= names"),
        ({"minOffsetsPerTrigger": 5}, "the query's trigger"),
    ],
)
def test_what_a_stream_cannot_honour_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        stream_options(given)
