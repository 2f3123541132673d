"""Streams divided among workers: each offset to one of them once, however often they stop and however many go on."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.errors import ConfigError
from raylog.ranges.sharding import StreamState, left_for, next_round, round_of, shards_of, step_of, stepped, union
from raylog.ranges.snapshot import LogEnds
from raylog.ranges.splitting import OffsetRange
from raylog.types import TopicPartition

pytestmark = pytest.mark.spark

Seen = Counter[tuple[TopicPartition, int]]
Logs = dict[TopicPartition, LogEnds]


def beginning(sizes: list[int], *, batch_size: int = 4, shard_offsets: int = 8, endless: bool = False) -> StreamState:
    """A stream from offset 10 of each of so many partitions with so many offsets."""
    starts = {TopicPartition("t", number): 10 for number in range(len(sizes))}
    ends = {TopicPartition("t", number): 10 + size for number, size in enumerate(sizes)}
    return StreamState("c", {"t": "1"}, starts, None if endless else ends, batch_size, shard_offsets)


def read(seen: Seen, state: StreamState, rank: int) -> int:
    before = seen.total()
    for each in step_of(state, rank):
        seen.update((each.key, offset) for offset in range(each.start, each.end))
    return seen.total() - before


def begun(state: StreamState, world_size: int) -> StreamState | None:
    """The state with a step before it."""
    return next_round(state, world_size) if state.is_round_over else state


def run(state: StreamState, world_size: int, steps: int, seen: Seen) -> StreamState:
    """All workers in step, for so many steps or up to the end."""
    state = left_for(state, world_size, state.batch_size)
    for _ in range(steps):
        following = begun(state, world_size)
        if following is None:
            break
        counts = [read(seen, following, rank) for rank in range(world_size)]
        assert max(counts) - min(counts) <= 1 and max(counts) > 0, "workers have batches of one size"
        state = stepped(following)
    return StreamState.from_json(state.to_json())


def all_of(sizes: list[int]) -> Seen:
    return Counter((TopicPartition("t", n), 10 + at) for n, size in enumerate(sizes) for at in range(size))


SIZES = st.lists(st.integers(0, 60), min_size=1, max_size=5)
RUNS = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9), st.integers(1, 7)), max_size=6)


@settings(max_examples=60)
@given(SIZES, RUNS, st.integers(1, 30))
def test_each_offset_is_read_once_however_often_the_workers_stop_and_change_in_number(
    sizes: list[int], runs: list[tuple[int, int, int]], shard_offsets: int
) -> None:
    seen: Seen = Counter()
    state = beginning(sizes, shard_offsets=shard_offsets)
    for world_size, steps, batch_size in runs:
        state = run(left_for(state, world_size, batch_size), world_size, steps, seen)
        assert state.offsets_left == sum(sizes) - seen.total()
    state = run(state, 2, 1000, seen)
    assert seen == all_of(sizes) and state.is_done


@settings(max_examples=60)
@given(SIZES, st.lists(st.integers(0, 12), min_size=1, max_size=4), st.integers(1, 20), st.integers(1, 4))
def test_workers_that_were_not_in_step_lose_and_repeat_nothing(
    sizes: list[int], steps: list[int], shard_offsets: int, resumed: int
) -> None:
    seen: Seen = Counter()
    first = beginning(sizes, shard_offsets=shard_offsets)
    said = []
    for rank, count in enumerate(steps):
        state = left_for(first, len(steps), 4)
        for _ in range(count):
            following = begun(state, len(steps))
            if following is None:
                break
            read(seen, following, rank)
            state = stepped(following)
        said.append(state)
    together = union(said)
    assert together.offsets_left == sum(sizes) - seen.total()
    run(together, resumed, 1000, seen)
    assert seen == all_of(sizes)


def test_as_many_workers_as_before_go_on_with_their_own_batches() -> None:
    def batches(state: StreamState, stops: int) -> list[tuple[OffsetRange, ...]]:
        told = []
        for step in range(20):
            if step == stops:
                state = left_for(StreamState.from_json(state.to_json()), 3, 4)
            following = begun(state, 3)
            if following is None:
                return told
            told += [step_of(following, rank) for rank in range(3)]
            state = stepped(following)
        return told

    first = left_for(beginning([50, 31]), 3, 4)
    assert batches(first, 99) == batches(first, 3) == batches(first, 4)


def test_one_partition_feeds_all_workers_with_long_runs() -> None:
    state = next_round(left_for(beginning([600], shard_offsets=100), 3, 4), 3)
    assert state is not None
    assert [[str(each) for each in shard] for shard in state.shards] == [
        ["t-0 [10, 110)"], ["t-0 [110, 210)"], ["t-0 [210, 310)"]
    ]  # fmt: skip


def test_shards_of_few_offsets_may_be_empty() -> None:
    assert [sum(map(len, shard)) for shard in shards_of([OffsetRange("t", 0, 5, 7)], 3)] == [0, 1, 1]


# ---------------------------------------------------------------------- endless streams


def grown(*ends: int, earliest: int = 0) -> Logs:
    return {TopicPartition("t", number): LogEnds(earliest, end, {}) for number, end in enumerate(ends)}


def endless(
    logs: Logs, state: StreamState, seen: Seen, *, is_short: bool = False
) -> tuple[StreamState, tuple[str, ...]]:
    """Two workers through all that a round has."""
    told = round_of(state, {"t": "1"}, logs, 2, is_short=is_short)
    if told is None:
        return state, ()
    state, losses = told
    while not state.is_round_over:
        for rank in range(2):
            read(seen, state, rank)
        state = stepped(state)
    return state, losses


def test_an_endless_stream_takes_whole_batches_as_they_come_and_short_ones_only_when_told() -> None:
    seen: Seen = Counter()
    state = left_for(beginning([0, 0], endless=True), 2, 4)
    state, _ = endless(grown(14, 13), state, seen)
    assert seen.total() == 0
    state, _ = endless(grown(16, 15), state, seen)
    assert seen.total() == 8
    state, _ = endless(grown(16, 15), state, seen)
    assert seen.total() == 8
    state, _ = endless(grown(16, 15), state, seen, is_short=True)
    assert seen == all_of([6, 5]) and not state.is_done


def test_a_new_partition_is_read_from_its_first_offset_and_a_loss_is_told() -> None:
    seen: Seen = Counter()
    state = left_for(beginning([0], endless=True), 2, 4)
    state, losses = endless(grown(30, 9, earliest=12), state, seen, is_short=True)
    assert len(losses) == 1 and "10 to 11 of t-0 were deleted" in losses[0]
    assert min(offset for key, offset in seen if key.partition == 0) == 12
    assert state.positions.keys() == {TopicPartition("t", 0), TopicPartition("t", 1)}


def test_workers_of_an_endless_stream_may_be_one_round_apart_and_no_more() -> None:
    ahead = left_for(beginning([0], endless=True), 2, 4)
    behind = ahead
    seen: Seen = Counter()
    for end in (18, 26):
        told = round_of(ahead, {"t": "1"}, grown(end), 2)
        assert told is not None
        behind, ahead = ahead, told[0]
    behind = stepped(behind)
    assert behind.is_round_over
    read(seen, ahead, 0)
    together = union([stepped(ahead), behind])
    assert sum(map(len, together.left)) == 4 and together.positions == ahead.positions
    with pytest.raises(ConfigError, match="worker 1 was in round 0"):
        union([ahead, left_for(beginning([0], endless=True), 2, 4)])


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"version":1}', '{"version":1,"cluster_id":"c","topic_ids":3}'],
)
def test_what_is_no_state_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not the state of a stream"):
        StreamState.from_json(text)


def test_states_of_other_streams_and_newer_versions_are_refused() -> None:
    state = left_for(beginning([40]), 2, 4)
    newer = state.to_json().replace('"version":1', '"version":9')
    with pytest.raises(ConfigError, match=r"^a stream's state of version 9"):
        StreamState.from_json(newer)
    with pytest.raises(ConfigError, match="not the states of the 2 workers"):
        union([state, left_for(beginning([41]), 2, 4)])


def test_checkpoints_of_earlier_releases_are_read() -> None:
    state = stepped(next_round(beginning([9], batch_size=2, shard_offsets=4), 2))  # type: ignore[arg-type]
    text = (
        '{"version":1,"cluster_id":"c","topic_ids":{"t":"1"},"positions":{"t":{"0":18}},"ends":{"t":{"0":19}},'
        '"batch_size":2,"lane_offsets":4,"round":1,"lanes":[[["t",0,10,14]],[["t",0,14,18]]],"taken":2}'
    )
    assert (StreamState.from_json(text), state.to_json()) == (state, text)
