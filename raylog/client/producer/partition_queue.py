"""One partition's batches in a producer: what waits, what is in flight, in which order and under
which sequence numbers.

A pure machine: no clock, no loop, no lock of its own (the accumulator's lock guards it). Batches
are numbered (``serial``) as they come and keep that order for ever.

    pending ──take──► in flight ──acknowledged──► gone
       ▲                  │
       └────failed: RETRY─┤
                          └─failed: FAIL, SPLIT (children go to pending)

**Order under retries.** Up to ``max_in_flight`` batches are in flight. When one comes back for
another try, nothing more is taken until all others in flight have come back too; then the row goes
out again, in order, as wide as before. So a retry overtakes nothing. Without idempotence those in
flight behind it may have been taken meanwhile (as in Kafka, P9); with it the leader refuses them.
What a leader acknowledged ahead of a batch that is still unsettled counts as in flight: leaders
know a second copy only among the last five batches.

**Sequences** (KIP-98, KIP-360; P7, P8). With a producer id, ``take`` gives a batch the partition's
next sequence, once: retries keep it, and no other batch ever gets it.
- A leader that knows nothing of a producer takes any sequence as its first. So the first batch
  under a producer id and epoch goes alone, until it is acknowledged: were it refused (no leader
  yet, too few replicas), one behind it could take its place. So does the first after an hour of
  silence, for leaders forget producers that are silent for a day.
- A few error codes prove that the leader did not append what it refused (``NOT_APPENDED``). After
  any other error the batch may be in the log, or may still arrive there from a connection that is
  given up: its outcome is unknown, and stays so until it is acknowledged. NOT_LEADER_OR_FOLLOWER is
  such an error: a deposed leader says it of batches that it has appended and that the next leader
  may have too.
- A batch that is given up leaves a gap, and its numbers may be taken: the partition starts over
  under the next producer epoch from sequence 0, which also fences everything that is still under
  way. Batches behind it whose own outcome is unknown are given up with it, for under a new epoch
  the leader could not tell their second copy from the first. So what the queue sends twice is never
  stored twice.
- OUT_OF_ORDER_SEQUENCE for a batch that was sent behind an unacknowledged one is an echo of that
  one's failure: it is tried again. For one that was sent first it means that the leader has lost
  what came before (acks=1 and a failover): again the next epoch. UNKNOWN_PRODUCER_ID likewise. The
  leader has judged the numbers then, so the batch and those behind it are not in its log and may go
  on. A half of a batch that was in doubt when it was split may not: its records may be there under
  the numbers of the whole.

Each partition counts its own epochs: a leader compares them per partition, and nobody else writes
under this producer id.

**Transactions.** With a transactional id the epoch is the coordinator's and the partition never
changes it: a batch that is given up fails the transaction, and what waits behind it is dropped with
it. The next transaction begins with an idle queue (``begin``), from sequence 0 if its epoch is
another one. Its first batch need not go alone where the leader has taken batches of the same
producer id: it takes no sequence but 0 as the first of an epoch then.

Invariants (``check``): serials ascend through in flight, then pending; 0 <= in flight <=
max_in_flight; sequences of the batches that have one ascend without overlap up to
``next_sequence``, unless an epoch change is due.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from itertools import islice

from kio.schema.errors import ErrorCode

from raylog.client.producer.producer_batch import NO_STAMP, ProducerBatch, after
from raylog.types import TopicPartition

PRODUCER_EPOCH_MAX = 32767
KNOWN_FOR_MS = 3_600_000
"""How long after an acknowledgement the leader certainly knows the producer still."""


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """What InitProducerId gave."""

    producer_id: int
    epoch: int


class Verdict(Enum):
    """What becomes of a batch that came back with an error."""

    RETRY = "retry"
    SPLIT = "split"
    FAIL = "fail"
    DUPLICATE = "duplicate"  # it is in the log already: success without an offset


_TRY_SMALLER = frozenset({ErrorCode.message_too_large, ErrorCode.record_list_too_large})
_LOST_STATE = frozenset({ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id})
_FENCED = frozenset(
    {ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced, ErrorCode.invalid_producer_id_mapping}
)
NOT_APPENDED = (
    _TRY_SMALLER
    | _LOST_STATE
    | _FENCED
    | {
        ErrorCode.corrupt_message,
        ErrorCode.invalid_record,
        ErrorCode.invalid_timestamp,
        ErrorCode.unsupported_compression_type,
        ErrorCode.unsupported_for_message_format,
        ErrorCode.not_enough_replicas,
        ErrorCode.invalid_required_acks,
        ErrorCode.invalid_topic_exception,
        ErrorCode.topic_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.transactional_id_authorization_failed,
    }
)
"""What a leader says only of a batch that it has not appended. It says nothing about earlier
attempts.
"""


class PartitionQueue:
    def __init__(
        self, topic: str, partition: int, *, max_in_flight: int, retries: int, is_transactional: bool = False
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.key = TopicPartition(topic, partition)
        self.max_in_flight = max_in_flight
        self.retries = retries
        self.is_transactional = is_transactional
        self.pending: deque[ProducerBatch] = deque()
        self.in_flight: deque[ProducerBatch] = deque()
        self.identity: ProducerIdentity | None = None
        self.needs_identity = False  # its producer id is used up: a new one has to be fetched
        self.next_sequence = 0
        self.failures = 0  # in a row, of this partition's requests
        self.not_before_ms = 0.0
        self._serial = 0
        self._recovering = False  # a batch came back; wait for the rest of the row
        self._epoch_change_due = False
        self._is_known = False  # a batch under this producer id and epoch was acknowledged, not long ago
        self._known_ms = 0.0  # when that was
        self._now_ms = 0.0  # when ``sendable`` was asked last
        self._lost: list[ProducerBatch] = []
        self._acknowledged_beyond: list[tuple[int, ...]] = []  # serials settled ahead of an earlier batch that is not

    def append(self, batch: ProducerBatch) -> None:
        """Put a new batch at the end; the one before it is closed."""
        if self.pending:
            self.pending[-1].open = False
        batch.serial = (self._serial,)
        self._serial += 1
        self.pending.append(batch)

    def open_batch(self) -> ProducerBatch | None:
        """The batch that takes further records, if there is one."""
        last = self.pending[-1] if self.pending else None
        return last if last is not None and last.open else None

    @property
    def idle(self) -> bool:
        return not self.pending and not self.in_flight

    @property
    def waiting_since_ms(self) -> float:
        """When the first batch that waits to be sent was made; infinity if none waits."""
        return self.pending[0].created_ms if self.pending else float("inf")

    def begin(self, identity: ProducerIdentity) -> None:
        """A transaction under this identity: all sequences start over if it is another one."""
        assert self.is_transactional and not self.in_flight, f"{len(self.in_flight)} in flight of the last transaction"
        assert not any(batch.has_sequence for batch in self.pending), "a batch of the last transaction waits"
        self._is_known = (
            self._is_known and self.identity is not None and self.identity.producer_id == identity.producer_id
        )
        self.identity = identity
        self.next_sequence = 0
        self.failures = 0
        self._recovering = False
        self._acknowledged_beyond = []

    # -------------------------------------------------------------- sending

    def sendable(self, now_ms: float) -> ProducerBatch | None:
        """The batch that may leave now, if any."""
        if not self.pending or now_ms < self.not_before_ms:
            return None
        if len(self.in_flight) + len(self._acknowledged_beyond) >= self.max_in_flight:
            return None
        if self.in_flight and (self._recovering or self._epoch_change_due):
            return None
        if self.in_flight and self.in_flight[0].has_sequence and not self._is_known:
            return None
        head = self.pending[0]
        if head.being_encoded:
            return None
        if not self.in_flight and now_ms - self._known_ms > KNOWN_FOR_MS:
            self._is_known = False
        self._now_ms = now_ms
        return head

    def take(self, identity: ProducerIdentity | None) -> ProducerBatch:
        """Move the first pending batch into flight and give it its sequence. ``identity`` None: not
        idempotent.
        """
        assert len(self.in_flight) < self.max_in_flight, f"{len(self.in_flight)} in flight of {self.max_in_flight}"
        batch = self.pending.popleft()
        batch.open = False
        batch.attempts += 1
        batch.was_sent_first = not self.in_flight
        if identity is not None:
            if self.identity is None:
                self.identity = identity
            if not batch.has_sequence:
                batch.stamp = (self.identity.producer_id, self.identity.epoch, self.next_sequence)
                self.next_sequence = after(self.next_sequence, batch.record_count)
        self.in_flight.append(batch)
        return batch

    # -------------------------------------------------------------- what came back

    def acknowledged(self, batch: ProducerBatch) -> None:
        """The batch is in the log."""
        first = self._is_first_unacknowledged(batch)
        self.in_flight.remove(batch)
        self.failures = 0
        self._is_known = batch.has_sequence
        self._known_ms = self._now_ms
        if not first and batch.has_sequence:
            self._acknowledged_beyond.append(batch.serial)
        self._row_shrank()

    def judge(self, batch: ProducerBatch, code: ErrorCode) -> Verdict:
        """What an error means for a batch in flight; changes nothing."""
        if code is ErrorCode.duplicate_sequence_number:
            return Verdict.DUPLICATE
        if batch.done:  # given up while it was away
            return Verdict.FAIL
        if code in _TRY_SMALLER:
            return Verdict.SPLIT if batch.record_count > 1 else Verdict.FAIL
        idempotent = batch.has_sequence
        if self.is_transactional and (
            code in _FENCED or (code in _LOST_STATE and (batch.was_sent_first or code is ErrorCode.unknown_producer_id))
        ):
            return Verdict.FAIL
        if idempotent and (code in _LOST_STATE or code in _FENCED):
            return Verdict.RETRY
        if not code.retriable or batch.attempts > self.retries:
            return Verdict.FAIL
        return Verdict.RETRY

    def retry(self, batch: ProducerBatch, code: ErrorCode) -> None:
        """Put a batch back to be sent again, in its place."""
        self.in_flight.remove(batch)
        if code not in NOT_APPENDED:
            batch.outcome_unknown = True
        if code in _FENCED:
            self.needs_identity = self._epoch_change_due = True
        elif not self._epoch_change_due and (
            code is ErrorCode.unknown_producer_id or (code in _LOST_STATE and batch.was_sent_first)
        ):
            self._epoch_change_due = True
            for each in (batch, *self.in_flight, *self.pending):
                each.outcome_unknown = each.was_split_in_doubt  # the leader judged the number: it has no such batch
        self._insert(batch)
        self._recovering = True
        self._row_shrank()

    def split(self, batch: ProducerBatch) -> None:
        """Put the two halves of a batch in its place."""
        self.in_flight.remove(batch)
        for child in batch.split():
            self._insert(child)
        self._recovering = True
        self._row_shrank()

    def give_up(self, batch: ProducerBatch) -> None:
        """Forget a batch that will not be sent again. See ``pop_lost``."""
        (self.in_flight if batch in self.in_flight else self.pending).remove(batch)
        if batch.has_sequence:
            self._is_known = False
            self._epoch_change_due |= not self.is_transactional
        self._row_shrank()

    def pop_lost(self) -> list[ProducerBatch]:
        """The batches that an epoch change has orphaned: no longer in the queue, to be failed."""
        lost, self._lost = self._lost, []
        return lost

    def expired(self, now_ms: float) -> list[ProducerBatch]:
        """The batches whose delivery timeout has passed, first those in flight; nothing is changed."""
        late = [batch for batch in self.in_flight if batch.deadline_ms <= now_ms and not batch.done]
        for batch in self.pending:
            if batch.deadline_ms > now_ms:
                break
            late.append(batch)
        return late

    @property
    def deadline_ms(self) -> float:
        """When ``expired`` will have something to tell next; infinity if there is nothing to
        expire.
        """
        heads = (*self.in_flight, *islice(self.pending, 1))
        return min((batch.deadline_ms for batch in heads if not batch.done), default=float("inf"))

    # -------------------------------------------------------------- inside

    def _is_first_unacknowledged(self, batch: ProducerBatch) -> bool:
        if self.in_flight[0] is not batch:
            return False
        return not self.pending or self.pending[0].serial > batch.serial

    def _insert(self, batch: ProducerBatch) -> None:
        position = 0
        for other in self.pending:
            if other.serial > batch.serial:
                break
            position += 1
        self.pending.insert(position, batch)

    def _row_shrank(self) -> None:
        if self._acknowledged_beyond:
            oldest = min(
                (row[0].serial for row in (self.in_flight, self.pending) if row and row[0].has_sequence), default=None
            )
            self._acknowledged_beyond = [
                serial for serial in self._acknowledged_beyond if oldest is not None and serial > oldest
            ]
        if not self.in_flight:
            self._recovering = False
            if self._epoch_change_due:
                self._start_over()

    def _start_over(self) -> None:
        """Begin again at sequence 0 under the next epoch, without the batches whose fate under the
        old one nobody knows.
        """
        assert not self.in_flight, "an epoch change with batches in flight"
        self._epoch_change_due = False
        self._is_known = False
        self.next_sequence = 0
        self._lost += [batch for batch in self.pending if batch.has_sequence and batch.outcome_unknown]
        self.pending = deque(batch for batch in self.pending if not (batch.has_sequence and batch.outcome_unknown))
        for batch in self.pending:
            batch.stamp = NO_STAMP
        if self.needs_identity or self.identity is None or self.identity.epoch >= PRODUCER_EPOCH_MAX:
            self.identity = None
            self.needs_identity = True
        else:
            self.identity = ProducerIdentity(self.identity.producer_id, self.identity.epoch + 1)

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        row = [batch.serial for batch in (*self.in_flight, *self.pending)]
        assert len(self.in_flight) <= self.max_in_flight, (len(self.in_flight), self.max_in_flight)
        assert sorted(batch.serial for batch in self.pending) == [batch.serial for batch in self.pending], row
        if self._epoch_change_due or self.identity is None:
            return
        numbered = sorted((b for b in (*self.in_flight, *self.pending) if b.has_sequence), key=lambda b: b.serial)
        sequence = numbered[0].stamp[2] if numbered else self.next_sequence
        room = after(
            self.next_sequence, -sequence
        )  # sequences from there to next_sequence; those acknowledged leave gaps
        for batch in numbered:
            assert batch.stamp[:2] == (self.identity.producer_id, self.identity.epoch), (batch, self.identity)
            room -= after(batch.stamp[2], -sequence) + batch.record_count
            assert room >= 0 and after(batch.stamp[2], -sequence) < 1 << 30, (batch, sequence, self.next_sequence)
            sequence = after(batch.stamp[2], batch.record_count)
