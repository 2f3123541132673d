"""A stream's entries, whatever happens to its logs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.ranges.entries import StreamEntry, first, following, shared
from raylog.ranges.snapshot import LogEnds
from raylog.ranges.splitting import OffsetRange
from raylog.types import TopicPartition

pytestmark = pytest.mark.spark

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
ID = {"t": "id"}


def logs(**ends: tuple[int, int]) -> dict[TopicPartition, LogEnds]:
    return {TopicPartition("t", int(name[1:])): LogEnds(*both, {}) for name, both in ends.items()}


def test_an_entry_reads_from_where_the_last_one_ended_to_the_ends_of_the_logs() -> None:
    entry = following(first(ID, {T0: 5, T1: 7}), ID, logs(p0=(0, 9), p1=(0, 7)))
    assert entry == StreamEntry(1, ID, {T0: 9, T1: 7}, (OffsetRange("t", 0, 5, 9),))


def test_ranges_have_the_hosts_of_their_logs() -> None:
    entry = following(first(ID, {T0: 5}), ID, {T0: LogEnds(0, 9, {}, ("a", "b"))})
    assert entry is not None and [each.hosts for each in entry.ranges] == [("a", "b")]


def test_where_nothing_came_there_is_no_entry() -> None:
    assert following(first(ID, {T0: 5}), ID, logs(p0=(0, 5))) is None


def test_a_partition_that_appears_is_read_from_its_first_offset() -> None:
    entry = following(first(ID, {T0: 5}), ID, logs(p0=(0, 5), p1=(2, 4)))
    assert entry is not None and entry.ranges == (OffsetRange("t", 1, 2, 4),) and entry.losses == ()


def test_what_retention_took_before_it_was_read_is_said() -> None:
    entry = following(first(ID, {T0: 5}), ID, logs(p0=(8, 10)))
    assert entry is not None and entry.ranges == (OffsetRange("t", 0, 8, 10),)
    assert entry.losses == ("the offsets 5 to 7 of t-0 were deleted before they were read",)


def test_a_log_that_ends_before_the_next_offset_is_a_loss_and_goes_on_at_its_end() -> None:
    entry = following(first(ID, {T0: 5}), ID, logs(p0=(0, 3)))
    assert entry is not None and entry.ranges == () and entry.ends == {T0: 3}
    assert entry.losses == ("t-0 ends at 3, before the next offset 5: its log was truncated",)
    assert following(entry, ID, logs(p0=(0, 3))) is None, "said once"


def test_a_topic_made_anew_is_a_loss_and_is_read_from_its_beginning() -> None:
    entry = following(first(ID, {T0: 5, T1: 9}), {"t": "other"}, logs(p0=(0, 6), p1=(0, 2)))
    assert entry is not None and entry.ranges == (OffsetRange("t", 0, 0, 6), OffsetRange("t", 1, 0, 2))
    assert len(entry.losses) == 1 and "recreated" in entry.losses[0] and entry.topic_ids == {"t": "other"}


def test_a_topic_that_is_gone_is_a_loss_and_another_of_its_name_is_new() -> None:
    gone = following(first(ID, {T0: 5}), {}, {})
    assert gone == StreamEntry(
        1, {}, {}, (), ("topic t was deleted: the records that the stream had not read are lost",)
    )
    assert following(gone, {}, {}) is None, "said once"
    again = following(gone, {"t": "other"}, logs(p0=(0, 2)))
    assert again is not None and again.ranges == (OffsetRange("t", 0, 0, 2),) and again.losses == ()


def test_a_limit_is_shared_out_by_what_waits() -> None:
    assert shared({T0: 1, T1: 99}, 1) == {T0: 0, T1: 1}, "what is left over goes to who has most of it waiting"
    assert shared({T0: 30, T1: 60, T2: 10}, 10) == {T0: 3, T1: 6, T2: 1}
    assert shared({T0: 1, T1: 1, T2: 1}, 2) == {T0: 1, T1: 1, T2: 0}
    assert shared({T0: 3}, 10) == {T0: 3}


@given(
    st.dictionaries(st.builds(TopicPartition, st.just("t"), st.integers(0, 50)), st.integers(1, 10**12), min_size=1),
    st.integers(1, 10**13),
)
def test_no_more_than_the_limit_and_no_less_is_shared_out(waiting: dict[TopicPartition, int], limit: int) -> None:
    counts = shared(waiting, limit)
    assert sum(counts.values()) == min(limit, sum(waiting.values()))
    assert all(0 <= counts[key] <= waiting[key] for key in waiting)


grown = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 8), st.one_of(st.none(), st.integers(1, 15))),
    max_size=30,
)


@given(grown)
def test_every_offset_is_read_once_or_said_to_be_lost(history: list[tuple[int, int, int, int | None]]) -> None:
    """Partitions appear, grow and lose their beginnings; after each step one more entry, in the end all that is left."""
    entry, now = first(ID, {T0: 0}), {T0: LogEnds(0, 0, {})}
    for partition, more, deleted, limit in [*history, (0, 0, 0, None)]:
        key = TopicPartition("t", partition)
        log = now.get(key, LogEnds(0, 0, {}))
        latest = log.latest + more
        now[key] = LogEnds(min(latest, log.earliest + deleted), latest, {})
        after = following(entry, ID, now, offsets_max=limit)
        if after is None:
            continue
        assert after.number == entry.number + 1
        assert limit is None or sum(map(len, after.ranges)) <= limit
        for each in after.ranges:
            start = entry.ends.get(each.key, now[each.key].earliest)
            assert each.start == start or any(str(start) in loss for loss in after.losses)
            assert each.start < each.end == after.ends[each.key] <= now[each.key].latest
        entry = after
    assert all(entry.ends[key] == log.latest for key, log in now.items() if log.latest > log.earliest)
    assert following(entry, ID, now) is None
