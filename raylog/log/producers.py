"""What a log remembers of its producers: enough to tell a repeated batch from a new one and a new
one from a gap [P7, P8].

For each producer id: its epoch and its last five batches (sequence range, offsets). A batch is
judged before it is appended::

    producer id unknown                                 any sequence is taken
    epoch below the known one                           INVALID_PRODUCER_EPOCH: a newer instance has taken over
    same epoch, range equal to a remembered batch       duplicate: acknowledged with the first append's offset, not appended
    same epoch, base sequence = last + 1                next (2**31 − 1 is followed by 0)
    higher epoch, base sequence 0                       the first of a new instance (0 too if an end of transaction raised it)
    of a transaction that is not open here              INVALID_TXN_STATE, unless its coordinator has just confirmed it (KIP-890)
    of none, while a transaction of it is open          INVALID_TXN_STATE
    anything else                                       OUT_OF_ORDER_SEQUENCE_NUMBER

A coordinator's own batches have no sequence that counts; their epoch and transaction are judged.

A log replays its batches through ``note`` on followers and in recovery, which judges nothing.
``cut`` takes back what the last of them changed, for a log that is truncated; where they do not
reach far enough back, its batches are read again. Snapshots are Apache Kafka's
``<offset>.snapshot``: the state after all records below that offset, taken at every roll and at a
clean stop, so that only the records behind it are replayed. A flush of the log flushes them, too:
once the segments before a snapshot are deleted, nothing else tells of those who wrote there. They
hold one batch per producer. Layout, big-endian::

    version i16 (1), crc u32 (CRC-32C of what follows), count i32, then for each producer:
    producer id i64, epoch i16, last sequence i32, last offset i64, offset delta i32, timestamp i64, coordinator epoch i32,
    first offset of the open transaction i64 (−1: none)

A producer that wrote nothing for ``producer.id.expiration.ms`` is forgotten, unless it has a
transaction open. What counts is when its last batch was appended here or copied from the leader, by
this machine's clock, not the records' timestamps: they may be a year old. Snapshots say that time
in their timestamp field, where Kafka has the last batch's. When one is loaded, a time that would
end the producer at once is taken for Kafka's kind, and a time ahead of the clock for another
clock's: the producer counts as seen just now. So none is forgotten too early, and one that an old
snapshot brings back stays that much longer.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

import crc32c
from kio.schema.errors import ErrorCode

from raylog.errors import DiskError, KafkaError, kafka_error
from raylog.log.files import Buffer, Files
from raylog.records.batch import NO_SEQUENCE, SEQUENCE_MASK, BatchView, batches
from raylog.records.corrupt import CorruptBatch, UnsupportedMagic

REMEMBERED_BATCHES = 5
_HISTORY_MAX = 512
SNAPSHOT_VERSION = 1
_HEAD = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")

OutOfOrderSequence = kafka_error(ErrorCode.out_of_order_sequence_number)
InvalidProducerEpoch = kafka_error(ErrorCode.invalid_producer_epoch)
InvalidTxnState = kafka_error(ErrorCode.invalid_txn_state)


class RememberedBatch(NamedTuple):
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def base_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def base_sequence(self) -> int:
        return self.last_sequence - self.offset_delta & SEQUENCE_MASK


_Earlier = tuple[int, int, int | None, tuple[RememberedBatch, ...], int, int, int | None]
"""Where a batch of a producer ended, the producer's id, and what was known of it before: epoch
(None: nothing at all), batches, last timestamp, coordinator epoch, first offset of the open
transaction. A bare tuple, because every append makes one.
"""


class ProducerState:
    """One producer id. ``batches`` ascend by offset; ``epoch`` −1 has no batches."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp",
        "producer_id",
        "seen_ms",
        "txn_first_offset",
    )

    def __init__(self, producer_id: int, epoch: int = -1) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.batches: tuple[RememberedBatch, ...] = ()
        self.last_timestamp = -1  # of its last batch
        self.seen_ms = -1  # when that was appended here, by the wall clock
        self.coordinator_epoch = -1
        self.txn_first_offset: int | None = None

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def is_in_transaction(self) -> bool:
        return self.txn_first_offset is not None

    def find(self, base_sequence: int, last_sequence: int) -> RememberedBatch | None:
        for batch in self.batches:
            if batch.last_sequence == last_sequence and batch.base_sequence == base_sequence:
                return batch
        return None


class ProducerStates:
    """All producers of one log, as of ``end_offset`` (every record below it has been noted).

    Invariant: ``_history`` has an entry for each batch of a producer that was noted and ends above
    ``_history_start``, in log order.
    """

    __slots__ = ("_history", "_history_start", "_states", "end_offset")

    def __init__(self) -> None:
        self._states: dict[int, ProducerState] = {}
        self._history: deque[_Earlier] = deque()
        self._history_start = 0
        self.end_offset = 0

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[ProducerState]:
        return iter(self._states.values())

    def get(self, producer_id: int) -> ProducerState | None:
        return self._states.get(producer_id)

    def has_open(self, producer_id: int, epoch: int) -> bool:
        """Whether that instance of the producer has a transaction open here."""
        state = self._states.get(producer_id)
        return state is not None and state.txn_first_offset is not None and state.epoch == epoch

    def judge(
        self, views: Iterable[BatchView], *, where: str, confirmed: Container[int] = (), is_own: bool = False
    ) -> RememberedBatch | None:
        """Whether the batches, in order, may follow: None if so, else the earlier append that they
        all repeat.

        ``confirmed``: the ids of producers whose coordinator has just confirmed their transactions.
        ``is_own``: a coordinator of this process writes them; their sequences don't count.

        Raises OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH and INVALID_TXN_STATE with
        ``where`` (topic and partition) in the message.
        """
        if is_own:
            self._judge_own(views, where, confirmed)
            return None
        first_duplicate: RememberedBatch | None = None
        fresh = False
        assumed: dict[
            int, tuple[int, int]
        ] = {}  # producer id → epoch and last sequence, once the batches before are appended
        for batch in views:
            producer_id = batch.producer_id
            if producer_id < 0:
                fresh = True
                continue
            state = self._states.get(producer_id)
            if producer_id in assumed:
                epoch, last_sequence = assumed[producer_id]
            elif state is not None:
                epoch, last_sequence = state.epoch, state.last_sequence
                if batch.producer_epoch == epoch:
                    duplicate = state.find(batch.base_sequence, batch.last_sequence)
                    if duplicate is not None:
                        first_duplicate = first_duplicate or duplicate
                        continue
            else:
                epoch, last_sequence = -1, NO_SEQUENCE
            fresh = True
            self._follows(batch, epoch, last_sequence, where)
            if producer_id not in assumed:
                self._belongs(batch, where, confirmed)
            assumed[producer_id] = batch.producer_epoch, batch.last_sequence
        if fresh and first_duplicate is not None:
            raise kafka_error(ErrorCode.invalid_record)(
                f"{where}: only some of the batches are repeats; send those alone again."
            )
        return first_duplicate

    def _judge_own(self, views: Iterable[BatchView], where: str, confirmed: Container[int]) -> None:
        """By epoch and transaction alone. Markers are judged by ``markers``."""
        for batch in views:
            if batch.producer_id < 0 or batch.is_control:
                continue
            state = self._states.get(batch.producer_id)
            if state is not None and batch.producer_epoch < state.epoch:
                raise _replaced(batch, state.epoch, where)
            self._belongs(batch, where, confirmed)

    def _belongs(self, batch: BatchView, where: str, confirmed: Container[int]) -> None:
        producer_id = batch.producer_id
        if self.has_open(producer_id, batch.producer_epoch):
            if not batch.is_transactional:
                raise InvalidTxnState(
                    f"{where}: producer {producer_id} has a transaction open, to which this batch does not belong."
                )
        elif batch.is_transactional and producer_id not in confirmed:
            raise InvalidTxnState(
                f"{where}: producer {producer_id} has no transaction of epoch {batch.producer_epoch} open here, and its coordinator "
                "has not confirmed one: it has ended, or never began."
            )

    def repeated_by(self, records: Buffer) -> RememberedBatch | None:
        """The first of the earlier appends if these bytes are whole batches that have all been
        appended before, else None.
        """
        try:
            views = list(batches(records))
        except (CorruptBatch, UnsupportedMagic):
            return None
        earlier = [self._earlier(view) if view.has_valid_crc() else None for view in views]
        return earlier[0] if earlier and None not in earlier else None

    def repeats(self, batch: BatchView) -> bool:
        """Whether that batch has been appended before, as far as is remembered."""
        return self._earlier(batch) is not None

    def _earlier(self, batch: BatchView) -> RememberedBatch | None:
        state = self._states.get(batch.producer_id)
        if state is None or batch.producer_epoch != state.epoch:
            return None
        return state.find(batch.base_sequence, batch.last_sequence)

    @staticmethod
    def _follows(batch: BatchView, epoch: int, last_sequence: int, where: str) -> None:
        who = f"{where}: producer {batch.producer_id}"
        if batch.producer_epoch < epoch:
            raise _replaced(batch, epoch, where)
        if batch.producer_epoch > epoch:
            if epoch >= 0 and batch.base_sequence != 0:
                raise OutOfOrderSequence(
                    f"{who} starts epoch {batch.producer_epoch} with sequence {batch.base_sequence}, not 0."
                )
            return
        if epoch >= 0 and batch.base_sequence != (last_sequence + 1 & SEQUENCE_MASK):
            raise OutOfOrderSequence(
                f"{who} sent sequence {batch.base_sequence} after {last_sequence}: batches between them are missing, or it is "
                f"a repeat of one older than the last {REMEMBERED_BATCHES}."
            )

    def note(self, batch: BatchView, *, wall_ms: int, coordinator_epoch: int | None = None) -> None:
        """Take over a batch that was appended at ``wall_ms``. ``coordinator_epoch`` comes from a
        control batch that ends a transaction.
        """
        offset_delta = batch.last_offset_delta
        last_offset = batch.base_offset + offset_delta
        self.end_offset = end_offset = last_offset + 1
        producer_id, epoch = batch.producer_id, batch.producer_epoch
        if producer_id < 0:
            return
        history = self._history
        if len(history) >= _HISTORY_MAX:
            self._history_start = history.popleft()[0]
        state = self._states.get(producer_id)
        known_epoch = None if state is None else state.epoch
        if state is None:
            state = self._states[producer_id] = ProducerState(producer_id)
        history.append(
            (
                end_offset,
                producer_id,
                known_epoch,
                state.batches,
                state.last_timestamp,
                state.coordinator_epoch,
                state.txn_first_offset,
            )
        )
        if epoch != state.epoch:
            state.epoch = epoch
            state.batches = ()
        max_timestamp = state.last_timestamp = batch.max_timestamp
        state.seen_ms = wall_ms
        if batch.is_control:
            state.txn_first_offset = None
            if coordinator_epoch is not None:
                state.coordinator_epoch = coordinator_epoch
            return
        noted = RememberedBatch(batch.last_sequence, last_offset, offset_delta, max_timestamp)
        state.batches = state.batches[1 - REMEMBERED_BATCHES :] + (noted,)
        if batch.is_transactional and state.txn_first_offset is None:
            state.txn_first_offset = batch.base_offset

    def settle_below(self, offset: int) -> None:
        """The log will hardly be cut below ``offset``, its high watermark: what the producers were
        there need not be kept.
        """
        history = self._history
        while history and history[0][0] <= offset:
            self._history_start = history.popleft()[0]

    def cut(self, end_offset: int) -> bool:
        """The log was cut to ``end_offset``, where a batch ended: take back what the batches behind
        it changed.

        When each producer was seen last stays as it is. False, and nothing is changed, if the
        history does not reach so far back.
        """
        if end_offset < self._history_start:
            return False
        history = self._history
        while history and history[-1][0] > end_offset:
            _, producer_id, epoch, batches, last_timestamp, coordinator_epoch, txn_first_offset = history.pop()
            if epoch is None:
                del self._states[producer_id]
                continue
            state = self._states[producer_id]
            state.epoch = epoch
            state.batches = batches
            state.last_timestamp = last_timestamp
            state.coordinator_epoch = coordinator_epoch
            state.txn_first_offset = txn_first_offset
        self.end_offset = end_offset
        return True

    def _end_history(self) -> None:
        """What the producers were before this is not known any more."""
        self._history.clear()
        self._history_start = self.end_offset

    @property
    def first_open_transaction_offset(self) -> int | None:
        """Where the oldest transaction starts that has not ended."""
        return min((s.txn_first_offset for s in self if s.txn_first_offset is not None), default=None)

    def expire(self, wall_ms: int, expiration_ms: int) -> int:
        """Forget producers that have been silent; returns how many.

        A cut that takes back the end of a transaction would have to know them: it reads the log
        again.
        """
        silent = [
            state.producer_id
            for state in self
            if state.txn_first_offset is None and wall_ms - state.seen_ms >= expiration_ms
        ]
        for producer_id in silent:
            del self._states[producer_id]
        if silent:
            self._end_history()
        return len(silent)

    def last_seen(self) -> dict[int, int]:
        """When each producer was seen last, by producer id."""
        return {state.producer_id: state.seen_ms for state in self}

    def doubt_times(self, wall_ms: int, expiration_ms: int) -> None:
        """After a snapshot was loaded, at ``wall_ms``: take no time from it that ends a producer at
        once, or that is yet to come.
        """
        for state in self:
            if not wall_ms - expiration_ms < state.seen_ms <= wall_ms:
                state.seen_ms = wall_ms

    def remember_older(self, views: Iterable[BatchView]) -> None:
        """Give producers that came from a snapshot (one batch each) the batches before it, in log
        order, up to five again.

        To be called before anything behind the snapshot is noted.
        """
        older = ProducerStates()
        for batch in views:
            older.note(batch, wall_ms=-1)
        for state in self:
            before = older.get(state.producer_id)
            if before is None or before.epoch != state.epoch or not state.batches:
                continue
            last = state.batches[-1]
            earlier = tuple(batch for batch in before.batches if batch.last_offset < last.base_offset)
            for found in before.batches:
                # The log says its timestamp, the snapshot when it was appended.
                if found.last_offset == last.last_offset:
                    last, state.last_timestamp = found, before.last_timestamp
            state.batches = (*earlier, last)[-REMEMBERED_BATCHES:]

    def clear(self, end_offset: int) -> None:
        self._states.clear()
        self.end_offset = end_offset
        self._end_history()

    def check(self) -> None:
        """Assert the invariant of the history, as far as it can be seen from here."""
        ends = [entry[0] for entry in self._history]
        assert len(ends) <= _HISTORY_MAX and ends == sorted(set(ends)), ends
        assert not ends or self._history_start < ends[0] <= ends[-1] <= self.end_offset, (
            self._history_start,
            ends,
            self.end_offset,
        )
        assert {entry[1] for entry in self._history} <= self._states.keys(), self._history

    # ------------------------------------------------------------------ snapshots

    def encode_snapshot(self) -> bytes:
        entries = b"".join(
            _ENTRY.pack(
                state.producer_id,
                state.epoch,
                state.last_sequence,
                state.batches[-1].last_offset if state.batches else -1,
                state.batches[-1].offset_delta if state.batches else 0,
                state.seen_ms,
                state.coordinator_epoch,
                -1 if state.txn_first_offset is None else state.txn_first_offset,
            )
            for state in self
        )
        body = struct.pack(">i", len(self._states)) + entries
        return struct.pack(">hI", SNAPSHOT_VERSION, crc32c.crc32c(body)) + body

    def load_snapshot(self, data: bytes, *, end_offset: int, path: str) -> None:
        """Replace everything by a snapshot. ValueError if it is damaged, DiskError if it is of a
        newer version.
        """
        if len(data) < _HEAD.size:
            raise ValueError(f"{path}: {len(data)} bytes are no producer snapshot")
        version, crc, count = _HEAD.unpack_from(data)
        if version > SNAPSHOT_VERSION:
            raise DiskError(
                f"{path} has version {version}, newer than this raylog reads ({SNAPSHOT_VERSION}). Upgrade raylog."
            )
        if version < 1 or crc != crc32c.crc32c(data[6:]) or len(data) != _HEAD.size + count * _ENTRY.size:
            raise ValueError(f"{path}: damaged producer snapshot")
        self.clear(end_offset)
        for entry in _ENTRY.iter_unpack(data[_HEAD.size :]):
            producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp, coordinator_epoch, txn_first = (
                entry
            )
            state = self._states[producer_id] = ProducerState(producer_id, epoch)
            state.last_timestamp = state.seen_ms = timestamp
            state.coordinator_epoch = coordinator_epoch
            state.txn_first_offset = txn_first if txn_first >= 0 else None
            if last_offset >= 0:
                state.batches = (RememberedBatch(last_sequence, last_offset, offset_delta, timestamp),)


def _replaced(batch: BatchView, epoch: int, where: str) -> KafkaError:
    return InvalidProducerEpoch(
        f"{where}: producer {batch.producer_id} has epoch {epoch} now; {batch.producer_epoch} was replaced by a newer instance."
    )


class ProducerSnapshots:
    """The ``.snapshot`` files of one directory."""

    __slots__ = ("_directory", "_files", "_unflushed")

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._unflushed: deque[int] = deque()  # those that say anything

    def path(self, offset: int) -> str:
        return f"{self._directory}/{offset:020d}.snapshot"

    def offsets(self) -> list[int]:
        names = self._files.list_directory(self._directory)
        return [int(name[:20]) for name in names if name.endswith(".snapshot") and name[:20].isdigit()]

    def write(self, producers: ProducerStates) -> None:
        """At ``producers.end_offset``. Until it is flushed a damaged one is passed over and the log
        replayed from further back.
        """
        self._files.write_file(self.path(producers.end_offset), producers.encode_snapshot(), flush=False)
        if len(producers):
            self._unflushed.append(producers.end_offset)

    @property
    def are_flushed(self) -> bool:
        return not self._unflushed

    def flush(self) -> bool:
        """Flush what was written. Says whether there was any: then a sync of the directory has to
        follow. Thread safe.
        """
        found = False
        while self._unflushed:
            found = True
            with suppress(FileNotFoundError):  # removed meanwhile
                file = self._files.open(self.path(self._unflushed.popleft()))
                try:
                    file.flush()
                finally:
                    file.close()
        return found

    def load_latest(self, producers: ProducerStates, *, log_start_offset: int, end_offset: int) -> int:
        """Load the latest usable snapshot at or below ``end_offset``; returns the offset to replay
        from. Removes damaged ones.
        """
        for offset in reversed(self.offsets()):
            if offset > end_offset or offset < log_start_offset:
                continue
            path = self.path(offset)
            try:
                producers.load_snapshot(self._files.read_file(path), end_offset=offset, path=path)
            except (ValueError, FileNotFoundError):
                self._files.remove(path)
                continue
            return offset
        producers.clear(log_start_offset)
        return log_start_offset

    def remove_above(self, offset: int) -> None:
        for found in self.offsets():
            if found > offset:
                self._files.remove(self.path(found))

    def keep_only(self, offsets: set[int]) -> None:
        """Remove the snapshots that belong to no segment, except the latest one of all."""
        found = self.offsets()
        for offset in found[:-1]:
            if offset not in offsets:
                self._files.remove(self.path(offset))
