"""Topics as batches for training, each with the place in the stream that it brings its workers to:
``stream_topic``.

::

    stream = raylog.data.stream_topic("events", cluster=cluster, batch_size=256)    # on the driver: the snapshot is taken here

    def train(config):                                                              # in each worker of Ray Train
        for batch in config["stream"].batches(ray.train.get_checkpoint()):
            ...                                                                     # batch.table is Arrow
            with tempfile.TemporaryDirectory() as folder:
                batch.save(folder)
                ray.train.report({...}, checkpoint=ray.train.Checkpoint.from_directory(folder))

A batch's ``state`` is where all workers are when each has done that step
(``raylog.ranges.sharding``), so a checkpoint resumes at the exact record, with as many workers as
there are then. Each worker that saves writes a file of its own: those of all workers together are
exact even where they were not at the same step, one worker's alone where they were.

The driver need not live as long as the workers: a stream is a small value that pickles, and holds
no connection.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raylog.client.background import background
from raylog.client.links.address import ClusterAddress
from raylog.data.rounds import Rounds, Tell, told, train_context, train_tell
from raylog.data.snapshots import options_of, snapshot_between
from raylog.errors import ConfigError
from raylog.placement.ray_connection import CONNECT_TIMEOUT_S
from raylog.ranges.addresses import address_of
from raylog.ranges.given_values import COUNT_MAX, OFFSET_MAX, count, flag, seconds
from raylog.ranges.places import Moment, Offsets, Strategy
from raylog.ranges.reading import ReadOptions
from raylog.ranges.shard_reading import ShardReader
from raylog.ranges.sharding import Shard, StreamState, left_for, shard_of, step_of, stepped, union
from raylog.ranges.snapshot import TopicsSnapshot
from raylog.ranges.topics import Topics, checked
from raylog.ranges.watch import topic_ids

logger = logging.getLogger("raylog.data")

SHARD_BYTES = 16 << 20
SHARD_OFFSETS = 65_536  # where the size of records is not known
SHORT_AFTER_S = 1.0
FILE_NAME = "raylog-stream"


def _first_state(
    address: ClusterAddress, topics: Topics, snapshot: TopicsSnapshot, batch_size: int, *, endless: bool
) -> StreamState:
    """Where all workers are before the first step."""
    ids = background().run(topic_ids(address, topics))
    return StreamState(
        address.cluster_id,
        {each.topic: ids[each.topic] for each in snapshot.ranges},
        {each.key: each.start for each in snapshot.ranges},
        None if endless else {each.key: each.end for each in snapshot.ranges},
        batch_size,
        _shard_offsets(snapshot),
    )


def stream_topic(
    topics: Topics,
    *,
    cluster: Any = None,
    batch_size: int = 1024,
    starting_offsets: Offsets | None = None,
    ending_offsets: Offsets | None = None,
    starting_timestamp: Moment | None = None,
    ending_timestamp: Moment | None = None,
    starting_offsets_by_timestamp: Any | None = None,
    ending_offsets_by_timestamp: Any | None = None,
    starting_offsets_by_timestamp_strategy: Strategy = "error",
    endless: bool = False,
    short_after_s: float | None = None,
    idle_timeout_s: float | None = None,
    columns: Sequence[str] | None = None,
    fail_on_data_loss: bool = True,
    read_committed: bool = False,
    timeout_s: float = CONNECT_TIMEOUT_S,
) -> TopicStream:
    """The records of topics in batches of ``batch_size``, for one worker or for all those of a Ray Train run.

    Beginning and end as for ``read_topic``, both fixed when this is called. An ``endless`` stream has no end: it waits for records; where
    less than a batch for every worker has come after ``short_after_s`` (1.0), batches are smaller; where nothing comes for
    ``idle_timeout_s`` the loop ends. New partitions are read from their first offset.
    ``timeout_s``: seconds in which the cluster, if None is given, has to be found.

    ConfigError and UnknownTopicOrPartitionError for what can't be; OffsetOutOfRangeError for offsets that are not there.
    """
    topics = checked(topics)
    options = options_of(columns, fail_on_data_loss, read_committed)
    batch_size = count("batch_size", batch_size, OFFSET_MAX)
    endless = flag("endless", endless)
    ending = (ending_offsets, ending_timestamp, ending_offsets_by_timestamp)
    if endless and any(given is not None for given in ending):
        raise ConfigError("an endless stream has no end: leave out endless=True, or the end")
    for name, value in (("short_after_s", short_after_s), ("idle_timeout_s", idle_timeout_s)):
        if value is not None and not endless:
            raise ConfigError(f"{name}={value!r} works with endless=True only: other streams end by themselves")
        if value is not None:
            seconds(name, value)
    address = address_of(cluster, timeout_s)
    snapshot = snapshot_between(
        address,
        topics,
        starting=(starting_offsets, starting_timestamp, starting_offsets_by_timestamp),
        ending=ending,
        strategy=starting_offsets_by_timestamp_strategy,
        options=options,
        of_stream=endless,
    )
    return TopicStream(
        address,
        topics,
        _first_state(address, topics, snapshot, batch_size, endless=endless),
        options,
        snapshot.losses,
        SHORT_AFTER_S if short_after_s is None else short_after_s,
        idle_timeout_s,
    )


def _shard_offsets(snapshot: TopicsSnapshot) -> int:
    """So many offsets have about ``SHARD_BYTES``."""
    known = [each for each in snapshot.ranges if snapshot.bytes_per_offset.get(each.key) and len(each)]
    size = sum(len(each) * snapshot.bytes_per_offset[each.key] for each in known)
    return max(1, round(SHARD_BYTES * sum(map(len, known)) / size)) if size else SHARD_OFFSETS


@dataclass(frozen=True, slots=True)
class TopicStream:
    """A stream nobody reads yet: what ``stream_topic`` returns. ``beginning``: where it begins and
    ends. ``losses``: as of ``TopicsSnapshot``.
    """

    address: ClusterAddress
    topics: Topics
    beginning: StreamState
    options: ReadOptions
    losses: tuple[str, ...]
    short_after_s: float
    idle_timeout_s: float | None

    def __iter__(self) -> Iterator[TopicBatch]:
        return self.batches()

    def batches(
        self,
        start: Any = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        broadcast: Tell | None = None,
    ) -> TopicBatches:
        """The batches of one worker, from the beginning or from where ``start`` says.

        ``start``: what ``ray.train.get_checkpoint()`` returns (None: the beginning), a
        ``StreamState``, or the path of a folder that ``save`` wrote to. A stream that ends goes on
        to the end that it had when it was begun. ``rank`` and ``world_size`` are Ray Train's own in
        its workers, elsewhere 0 of 1. All workers of an endless stream take their steps together;
        outside of Ray Train ``broadcast(text)`` has to give all of them what worker 0 gave, the
        others calling it with None.

        ConfigError for a checkpoint of another stream, or one without a place in a stream.
        """
        rank, world_size, tell = _worker(rank, world_size, broadcast)
        if self.beginning.ends is None and world_size > 1 and tell is None:
            raise ConfigError(
                "the workers of an endless stream have to agree on each step: run them in Ray Train, or give batches(broadcast=…)"
            )
        state = _state_of(start)
        state = self.beginning if state is None else self._checked(state)
        state = left_for(state, world_size, self.beginning.batch_size)
        if tell is not None:
            state = StreamState.from_json(told(tell, state.to_json() if rank == 0 else None) or "")
        rounds = Rounds(
            self.address,
            self.topics,
            rank=rank,
            world_size=world_size,
            tell=tell,
            read_committed=self.options.read_committed,
            fail_on_data_loss=self.options.fail_on_data_loss,
            short_after_s=self.short_after_s,
            idle_timeout_s=self.idle_timeout_s,
        )
        return TopicBatches(self.address, rounds, state, self.options, rank)

    def _checked(self, state: StreamState) -> StreamState:
        """The state, if it is of this stream."""
        own = self.beginning
        if state.cluster_id != own.cluster_id:
            raise ConfigError(
                f"this checkpoint is of cluster {state.cluster_id}, but the stream is of {own.cluster_id}"
            )
        for name in sorted(state.topic_ids.keys() - own.topic_ids.keys()):
            raise ConfigError(f"this checkpoint has topic {name!r}, which the stream does not read")
        for name, topic_id in sorted(state.topic_ids.items()):
            if own.topic_ids[name] != topic_id:
                raise ConfigError(
                    f"topic {name!r} was deleted and recreated since this checkpoint: begin without the checkpoint"
                )
        foreign = sorted(own.topic_ids.keys() - state.topic_ids.keys())
        if foreign and own.ends is not None and not isinstance(self.topics, re.Pattern):
            raise ConfigError(
                f"this checkpoint leaves out topic {foreign[0]!r}: begin without the checkpoint, or leave out the topic"
            )
        if (state.ends is None) != (own.ends is None):
            kinds = ("a stream that ends", "an endless stream")
            raise ConfigError(
                f"this checkpoint is of {kinds[state.ends is None]}, but this is {kinds[own.ends is None]}: "
                "to read on behind a finished stream use stream_topic(…, starting_offsets=state.positions)"
            )
        return state


class TopicBatches(Iterator["TopicBatch"]):
    """One worker's batches. ``state``: where the workers are when each has done what this one has;
    ``losses``: what was met on the way.
    """

    def __init__(
        self, address: ClusterAddress, rounds: Rounds, state: StreamState, options: ReadOptions, rank: int
    ) -> None:
        self.state = state
        self.losses: list[str] = []
        self.rank = rank
        self._address = address
        self._rounds = rounds
        self._options = options
        self._reader: ShardReader | None = None

    def __next__(self) -> TopicBatch:
        """After an error the same batch can be asked for again."""
        known = len(self.losses)
        if self.state.is_round_over:
            self._close_reader()
            following = self._rounds.following(self.state)
            if following is None:
                self.close()
                raise StopIteration
            self.state, losses = following
            for loss in losses:
                self._lose(loss)
        ranges = step_of(self.state, self.rank)
        try:
            if self._reader is None:
                shard = shard_of(self.state, self.rank)
                self._reader = ShardReader(self._address, shard, self._options, self._lose)
            table = self._reader.table(ranges)
        except BaseException:
            self._close_reader()
            raise
        self.state = stepped(self.state)
        return TopicBatch(table, ranges, self.state, self.rank, tuple(self.losses[known:]))

    def _lose(self, loss: str) -> None:
        logger.warning("%s", loss)
        self.losses.append(loss)

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def close(self) -> None:
        """End what is open; asking for a batch opens it again."""
        self._close_reader()
        self._rounds.close()

    def __enter__(self) -> TopicBatches:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True, eq=False)
class TopicBatch:
    """``table``: the records, a ``pyarrow.Table``. ``ranges``: whose offsets they have. ``state``:
    where the workers are after this step.

    ``losses``: what could not be read before or in it, with ``fail_on_data_loss=False``.
    """

    table: Any
    ranges: Shard
    state: StreamState
    rank: int
    losses: tuple[str, ...] = ()

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def to_numpy(self) -> dict[str, Any]:
        """The columns as NumPy arrays, as Ray Data's batches have them."""
        return {name: self.table.column(name).to_numpy() for name in self.table.schema.names}

    def save(self, folder: str | os.PathLike[str], name: str = FILE_NAME) -> None:
        """Write ``state`` into a folder that becomes a checkpoint, in this worker's own file."""
        path = Path(folder) / f"{name}-{self.rank}.json"
        part = path.with_name(f".{path.name}.part")
        part.write_text(self.state.to_json())
        part.rename(path)


def load_state(folder: str | os.PathLike[str], name: str = FILE_NAME) -> StreamState:
    """The state that workers have saved in a folder, each its own or one for all. ConfigError where
    there is none, or one is missing.
    """
    if not isinstance(folder, str | os.PathLike):
        raise ConfigError(f"folder={folder!r}: give the folder that batches were saved to")
    found = {
        int(path.stem.rpartition("-")[2]): StreamState.from_json(path.read_text())
        for path in Path(folder).glob(f"{name}-*.json")
        if path.stem.rpartition("-")[2].isdecimal()
    }
    if not found:
        raise ConfigError(f"{folder} holds no state of a stream: save it with batch.save(folder)")
    if len(found) == 1:
        return next(iter(found.values()))
    if sorted(found) != list(range(len(found))):
        missing = min(set(range(max(found))) - found.keys())
        raise ConfigError(f"{folder} is incomplete: the state of worker {missing} is missing")
    return union([found[rank] for rank in sorted(found)])


def _state_of(start: Any) -> StreamState | None:
    if start is None or isinstance(start, StreamState):
        return start
    if hasattr(start, "as_directory"):  # a Checkpoint also claims to be a path, and is none
        with start.as_directory() as folder:
            return load_state(folder)
    if isinstance(start, str | os.PathLike):
        return load_state(start)
    raise ConfigError(f"start={start!r}: give a checkpoint, a folder, or a batch's state")


def _worker(rank: int | None, world_size: int | None, broadcast: Tell | None) -> tuple[int, int, Tell | None]:
    """Which worker of how many this is, and how they agree."""
    if broadcast is not None and not callable(broadcast):
        raise ConfigError(f"broadcast={broadcast!r}: give a function of one text")
    if (rank is None) != (world_size is None):
        raise ConfigError("rank and world_size belong together: give both or none")
    if rank is None or world_size is None:
        context = train_context()
        if context is None:
            return 0, 1, None
        rank, world_size = int(context.get_world_rank()), int(context.get_world_size())
        broadcast = broadcast or train_tell
    world_size = count("world_size", world_size, COUNT_MAX)
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < world_size:
        raise ConfigError(f"rank={rank!r} of world_size={world_size}: ranks are 0 to {world_size - 1}")
    return rank, world_size, broadcast if world_size > 1 else None
