"""Divides a stream among workers that train in step: which worker reads which offsets at each step.

A stream proceeds in *rounds*. A round is a run of offsets of every partition, in proportion to what
each partition still has, cut into one *shard* per worker, all of the same length (give or take one
offset). At each step every worker takes the next ``batch_size`` offsets of its shard. So all
workers have a batch at every step and the same number of batches, and they share out the last
offsets. A worker reads long runs of few partitions, and one partition can feed any number of
workers.

``StreamState`` is the position of the stream for all workers together, and every worker can compute
it alone. In a stream that ends, the rounds follow from the state (``next_round``). In an endless
one a round is what the logs hold when it begins (``round_of``); one worker looks it up and sends it
to the others. With the same number of workers a resumed stream gives each the same batches as
before; with another number the rest of the round is divided again (``left_for``).

``union`` merges the states of workers that were at different steps.

Invariants: each offset between the start and the end of a partition is in one shard of one round,
or is reported as lost. The offsets that a state has left are those that no step up to it handed out.

Pure arithmetic on offsets. A compacted topic has fewer records than offsets, so its batches may be
smaller or empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raylog.errors import ConfigError
from raylog.ranges.entries import StreamEntry, following, shared
from raylog.ranges.snapshot import LogEnds
from raylog.ranges.splitting import OffsetRange
from raylog.types import TopicPartition

VERSION = 1
Shard = tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream's position: ``taken`` offsets of each shard of its round (or all of a shorter
    shard), and none after ``positions``.

    ``ends``: where it ends, or None. ``topic_ids``: the ids behind the topics' names.
    ``batch_size``: offsets of a worker's batch. ``shard_offsets``: the length of shards. ``to_json``
    and ``from_json`` are for checkpoints, where shards have their earlier name, lanes.
    """

    cluster_id: str
    topic_ids: Mapping[str, str]
    positions: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int] | None
    batch_size: int
    shard_offsets: int
    round_number: int = 0
    shards: tuple[Shard, ...] = ()
    taken: int = 0

    @property
    def left(self) -> tuple[OffsetRange, ...]:
        """Return what is left of the round, for all workers."""
        return tuple(each for shard in self.shards for each in _after(shard, self.taken))

    @property
    def offsets_left(self) -> int | None:
        """Return how many offsets are left up to the end; None for an endless stream."""
        if self.ends is None:
            return None
        return sum(map(len, self.left)) + sum(end - self.positions[key] for key, end in self.ends.items())

    @property
    def is_done(self) -> bool:
        """Return whether nothing is left to read; always false for an endless stream."""
        return self.offsets_left == 0

    @property
    def is_round_over(self) -> bool:
        return all(_length(shard) <= self.taken for shard in self.shards)

    def to_json(self) -> str:
        return json.dumps(
            {
                "version": VERSION,
                "cluster_id": self.cluster_id,
                "topic_ids": dict(self.topic_ids),
                "positions": _nested(self.positions),
                "ends": None if self.ends is None else _nested(self.ends),
                "batch_size": self.batch_size,
                "lane_offsets": self.shard_offsets,
                "round": self.round_number,
                "lanes": [
                    [[each.topic, each.partition, each.start, each.end] for each in shard] for shard in self.shards
                ],
                "taken": self.taken,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> StreamState:
        """Parse the output of ``to_json``; ConfigError for anything else."""
        try:
            told: Any = json.loads(text)
            if told["version"] != VERSION:
                raise ConfigError(
                    f"a stream's state of version {told['version']}: this raylog reads version {VERSION}; try a newer one"
                )
            return cls(
                str(told["cluster_id"]),
                {str(name): str(topic_id) for name, topic_id in told["topic_ids"].items()},
                _flat(told["positions"]),
                None if told["ends"] is None else _flat(told["ends"]),
                int(told["batch_size"]),
                int(told["lane_offsets"]),
                int(told["round"]),
                tuple(
                    tuple(OffsetRange(str(t), int(p), int(s), int(e)) for t, p, s, e in shard)
                    for shard in told["lanes"]
                ),
                int(told["taken"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"this is not the state of a stream ({error!r}): {text[:100]}") from None


def _nested(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for key, offset in sorted(offsets.items()):
        nested.setdefault(key.topic, {})[str(key.partition)] = offset
    return nested


def _flat(nested: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(number)): int(offset) for topic, of in nested.items() for number, offset in of.items()
    }


# ------------------------------------------------------------------ shards


def shards_of(ranges: Iterable[OffsetRange], count: int) -> tuple[Shard, ...]:
    """Divide the ranges into ``count`` shards, in order, whose lengths differ by at most one offset."""
    whole = [each for each in ranges if len(each)]
    total = sum(map(len, whole))
    return tuple(slice_of(whole, total * number // count, total * (number + 1) // count) for number in range(count))


def slice_of(shard: Sequence[OffsetRange], start: int, end: int) -> Shard:
    """Return the offsets from the ``start``-th up to the ``end``-th of a shard."""
    found = []
    passed = 0
    for each in shard:
        low, high = max(start - passed, 0), min(end - passed, len(each))
        if low < high:
            found.append(replace(each, start=each.start + low, end=each.start + high))
        passed += len(each)
    return tuple(found)


def _after(shard: Sequence[OffsetRange], taken: int) -> Shard:
    return slice_of(shard, taken, _length(shard)) if taken else tuple(shard)


def _length(shard: Iterable[OffsetRange]) -> int:
    return sum(map(len, shard))


# ------------------------------------------------------------------ steps and rounds


def step_of(state: StreamState, rank: int) -> Shard:
    """Return what a worker reads at the next step; requires that ``state.is_round_over`` is false."""
    return slice_of(state.shards[rank], state.taken, state.taken + state.batch_size)


def shard_of(state: StreamState, rank: int) -> Shard:
    """Return what is left of a worker's shard."""
    return _after(state.shards[rank], state.taken)


def stepped(state: StreamState) -> StreamState:
    """Return the state after the next step."""
    return replace(state, taken=state.taken + state.batch_size)


def next_round(state: StreamState, world_size: int) -> StreamState | None:
    """Return the state at the start of the next round of a stream that ends; None at its end."""
    assert state.ends is not None, "the rounds of an endless stream come from its logs"
    waiting = {key: end - state.positions[key] for key, end in sorted(state.ends.items()) if end > state.positions[key]}
    if not waiting:
        return None
    share = shared(waiting, _round_offsets(state, world_size))
    starts = state.positions
    ranges = [OffsetRange(*key, starts[key], starts[key] + count) for key, count in share.items() if count]
    positions = dict(starts) | {each.key: each.end for each in ranges}
    return replace(
        state, positions=positions, round_number=state.round_number + 1, shards=shards_of(ranges, world_size), taken=0
    )


def round_of(
    state: StreamState,
    topic_ids: Mapping[str, str],
    logs: Mapping[TopicPartition, LogEnds],
    world_size: int,
    *,
    is_short: bool = False,
) -> tuple[StreamState, tuple[str, ...]] | None:
    """Return the next round of an endless stream, given its current logs, and what was lost before
    it.

    None while there is not a whole batch for every worker, or, with ``is_short``, nothing at all.
    """
    last = StreamEntry(state.round_number, state.topic_ids, state.positions)
    everything = following(last, topic_ids, logs)
    if everything is None:
        return None
    total = sum(map(len, everything.ranges))
    step = world_size * state.batch_size
    count = min(total - total % step if total >= step else total, _round_offsets(state, world_size))
    if total < step and not is_short and not everything.losses:
        return None
    entry = following(last, topic_ids, logs, offsets_max=count)
    assert entry is not None, "an entry with offsets can be shared"
    begun = replace(
        state,
        topic_ids=entry.topic_ids,
        positions=entry.ends,
        round_number=state.round_number + 1,
        shards=shards_of(entry.ranges, world_size),
        taken=0,
    )
    return begun, entry.losses


def _round_offsets(state: StreamState, world_size: int) -> int:
    """Round shards to whole batches, so that only the last batches of a stream are smaller."""
    return world_size * state.batch_size * max(1, state.shard_offsets // state.batch_size)


# ------------------------------------------------------------------ going on


def left_for(state: StreamState, world_size: int, batch_size: int) -> StreamState:
    """The same place for so many workers: the shards as they were, for as many as before; else what
    is left of them divided anew.
    """
    lengths = {_length(shard) for shard in state.shards}
    if len(state.shards) == world_size and max(lengths) - min(lengths) <= 1:
        return replace(state, batch_size=batch_size)
    return replace(state, shards=shards_of(state.left, world_size), taken=0, batch_size=batch_size)


def union(states: Sequence[StreamState]) -> StreamState:
    """Merge the workers' states, by rank. Each shard's rest is what its own worker had not taken;
    steps may differ.

    ConfigError if they are not the workers of one stream.
    """
    first, world_size = states[0], len(states)
    for each in states:
        if _identity(each) != _identity(first) or len(each.shards) not in (0, world_size):
            raise ConfigError(
                f"these are not the states of the {world_size} workers of one stream: begin from another checkpoint"
            )
    newest = max(states, key=lambda state: (state.round_number, state.taken))
    if all((each.round_number, each.taken) == (newest.round_number, newest.taken) for each in states):
        return newest
    rounds = {each.round_number: each.shards for each in states}
    at = min(states, key=lambda state: state.round_number)
    while at.ends is not None and at.round_number < newest.round_number:
        reached = next_round(at, world_size)
        assert reached is not None, f"round {newest.round_number} was reached by another worker"
        at = reached
        rounds[at.round_number] = at.shards
    shards = []
    for rank, own in enumerate(states):
        shard = list(_after(own.shards[rank], own.taken)) if own.shards else []
        for number in range(own.round_number + 1, newest.round_number + 1):
            if number not in rounds:
                raise ConfigError(
                    f"worker {rank} was in round {own.round_number} of an endless stream and another one in round "
                    f"{newest.round_number}: the offsets between are unknown; begin from another checkpoint"
                )
            shard += rounds[number][rank]
        shards.append(tuple(shard))
    return replace(newest, shards=tuple(shards), taken=0)


def _identity(state: StreamState) -> tuple[Any, ...]:
    return state.cluster_id, state.ends, state.batch_size, state.shard_offsets
