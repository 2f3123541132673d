"""The snapshot that the options of a read ask for. ``read_topic`` and ``stream_topic`` have these
options in common.
"""

from __future__ import annotations

from typing import Any

from raylog.client.links.address import ClusterAddress
from raylog.ranges.given_values import flag
from raylog.ranges.places import Moment, Offsets, Strategy, bound
from raylog.ranges.reading import ReadOptions
from raylog.ranges.snapshot import TopicsSnapshot, take
from raylog.ranges.topics import Topics
from raylog.records.arrow_columns import chosen_columns

Asked = tuple[Offsets | None, Moment | None, Any | None]
"""Offsets, a moment, and moments by partition: what the options of one end of a read are."""


def options_of(columns: Any, fail_on_data_loss: bool, read_committed: bool) -> ReadOptions:
    return ReadOptions(
        chosen_columns(columns),
        fail_on_data_loss=flag("fail_on_data_loss", fail_on_data_loss),
        read_committed=flag("read_committed", read_committed),
    )


def snapshot_between(
    address: ClusterAddress,
    topics: Topics,
    *,
    starting: Asked,
    ending: Asked,
    strategy: Strategy,
    options: ReadOptions,
    of_stream: bool = False,
) -> TopicsSnapshot:
    """Taken now. Raises what ``bound`` and ``take`` raise."""
    offsets, timestamp, by_timestamp = starting
    first = bound(
        "starting", offsets=offsets, timestamp=timestamp, offsets_by_timestamp=by_timestamp, of_stream=of_stream
    )
    offsets, timestamp, by_timestamp = ending
    last = bound("ending", offsets=offsets, timestamp=timestamp, offsets_by_timestamp=by_timestamp)
    return take(
        address,
        topics,
        first,
        last,
        fail_on_data_loss=options.fail_on_data_loss,
        strategy=strategy,
        read_committed=options.read_committed,
    )
