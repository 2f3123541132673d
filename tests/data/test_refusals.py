"""What a user of ``raylog.data`` may get wrong is told in words, with the argument's name, before a cluster or Ray is asked."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

import raylog.data
from raylog.errors import ConfigError, InvalidTopicError

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # Ray Data warns of its own

NO_CLUSTER = "nothing that anybody asks"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": "value"}, "columns='value': give a list of key, value"),
        ({"columns": 5}, "columns=5: give a list"),
        ({"columns": []}, r"columns=\[\]: at least one of"),
        ({"columns": ["valeu"]}, "no column 'valeu': choose from key, value"),
        ({"fail_on_data_loss": "no"}, "fail_on_data_loss='no': give true or false"),
        ({"fail_on_data_loss": None}, "fail_on_data_loss=None: give true or false"),
        ({"read_committed": 1}, "read_committed=1: give true or false"),
    ],
)
def test_what_no_read_can_be_told_is_refused(options: dict[str, Any], message: str) -> None:
    for function in (raylog.data.read_topic, raylog.data.stream_topic):
        with pytest.raises(ConfigError, match=message):
            function("t", cluster=NO_CLUSTER, **options)


@pytest.mark.parametrize("topic", ["", "two words", ["t", "a/b"], {"..": [0]}])
def test_what_kafka_lets_no_topic_be_called_is_refused(topic: Any) -> None:
    for function in (raylog.data.read_topic, raylog.data.stream_topic):
        with pytest.raises(InvalidTopicError):
            function(topic, cluster=NO_CLUSTER)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columms": ["value"]}, "unknown option 'columms': did you mean 'columns'"),
        ({"startingOffsets": "latest"}, "unknown option 'startingOffsets': did you mean 'starting_offsets'"),
        ({"max_records_per_partition": 5}, "did you mean 'max_records_per_task'"),
        ({"num_cpu": 1}, "unknown option 'num_cpu': did you mean 'num_cpus'"),
        ({"whatever": 1}, "unknown option 'whatever': the options are .*columns.*num_cpus"),
        ({"min_tasks": 0}, "min_tasks=0: give at least 1"),
        ({"min_tasks": "many"}, "min_tasks='many': give a whole number, at least 1"),
        ({"max_records_per_task": 1.5}, "max_records_per_task=1.5: give a whole number"),
        ({"max_records_per_task": True}, "max_records_per_task=True: give a whole number"),
    ],
)
def test_a_read_ignores_no_option(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        raylog.data.read_topic("t", cluster=NO_CLUSTER, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0: give at least 1"),
        ({"batch_size": None}, "batch_size=None: give a whole number"),
        ({"endless": "perhaps"}, "endless='perhaps': give true or false"),
        ({"endless": True, "short_after_s": -1}, "short_after_s=-1: give seconds, 0 or more"),
        ({"endless": True, "idle_timeout_s": "long"}, "idle_timeout_s='long': give seconds"),
        ({"endless": True, "idle_timeout_s": float("nan")}, "idle_timeout_s=nan: give seconds"),
        ({"short_after_s": 1}, "short_after_s=1 works with endless=True only"),
        ({"endless": True, "ending_offsets": "latest"}, "an endless stream has no end"),
    ],
)
def test_a_stream_for_training_that_can_not_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        raylog.data.stream_topic("t", cluster=NO_CLUSTER, **options)


@pytest.mark.parametrize("ds", [None, 5, [1], pa.table({"value": ["v"]})])
def test_what_is_no_dataset_is_refused(ds: Any) -> None:
    with pytest.raises(ConfigError, match=r"ds is a .*: write_topic takes a Dataset of Ray Data"):
        raylog.data.write_topic(ds, "t", cluster=NO_CLUSTER)


def test_a_write_is_told_which_option_was_misspelt(monkeypatch: pytest.MonkeyPatch) -> None:
    from raylog.data import writing

    monkeypatch.setattr(writing, "Dataset", object)
    for options, message in (
        ({"concurency": 1}, "unknown option 'concurency': did you mean 'concurrency'"),
        ({"concurrency": 0}, "concurrency=0: give at least 1"),
        ({"compresion_type": "lz4"}, r"did you mean 'compression\.type'"),
        ({"partitioner_class": "nothing"}, r"partitioner\.class"),
        ({"exactly_once": "perhaps"}, "exactly_once='perhaps': give true or false"),
        ({"exactly_onec": False}, "unknown option 'exactly_onec': did you mean 'exactly_once'"),
        ({"transactional_id": "mine"}, r"chooses the transactional\.id of its transactions itself"),
        ({"transactional_id": "mine", "exactly_once": False}, r"transactional\.id .* leave it out"),
        ({"acks": 1}, "needs acks=all, not acks=1; or give exactly_once=False"),
    ):
        with pytest.raises(ConfigError, match=message):
            raylog.data.write_topic(object(), "t", **{"cluster": NO_CLUSTER, **options})


def test_a_ray_that_tells_nobody_which_attempts_count_writes_at_least_once_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ray.data.datasource import datasink

    from raylog.data import writing

    @dataclass
    class WriteResult:  # Ray 2.40's
        num_rows: int = 0
        size_bytes: int = 0

    monkeypatch.setattr(writing, "Dataset", object)
    monkeypatch.setattr(datasink, "WriteResult", WriteResult)
    with pytest.raises(ConfigError, match="give exactly_once=False to write at least once, or use Ray"):
        raylog.data.write_topic(object(), "t", cluster=NO_CLUSTER)


def test_a_checkpoint_is_looked_for_in_a_folder() -> None:
    with pytest.raises(ConfigError, match="folder=None: give the folder that batches were saved to"):
        raylog.data.load_state(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"starting_offsets": {("t",): 3}}, r"starting_offsets: \('t',\), None is not a topic and partition"),
        ({"starting_offsets": {("t", 0, 1): 3}}, "is not a topic and partition"),
        ({"starting_offsets": datetime(2026, 1, 1)}, "starting_timestamp is a moment for all"),
        ({"starting_offsets_by_timestamp": "latest"}, "give a moment for each partition"),
        (
            {"starting_offsets_by_timestamp": {"t": {0: "x"}}},
            "starting_offsets_by_timestamp of t-0='x': give a datetime",
        ),
    ],
)
def test_a_beginning_that_can_not_be_is_refused(options: dict[str, Any], message: str) -> None:
    from raylog.ranges.places import bound

    given = {name.removeprefix("starting_"): value for name, value in options.items()}
    with pytest.raises(ConfigError, match=message):
        bound("starting", **given)
