"""The transaction machine of one partition of ``__transaction_state``: how its coordinator decides
about the transactional ids that hash to it.

Everything that matters is in the log: the image follows it on every replica. While something about
an id is on its way into the log, requests about it are CONCURRENT_TRANSACTIONS, which clients
repeat. Fencing, retries and what ends how are Kafka's (KIP-98, KIP-360, KIP-890): ``transaction``
has the steps, this module says which one a request takes, and ``ending`` what follows the decision.

A producer whose transaction has been decided begins the next one at once, mostly before the last
marker is written; and several leaders add partitions to it at once. Such requests wait until the
last change is stored, for ``EARLY_MS`` at most: whoever asks would ask again only after 20 ms.

Producer ids come in whole blocks from the controller. A request that needs one when there is none
waits for the next block.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import assert_never

from kio.schema.errors import ErrorCode

from raylog.coordination.coordinator import PartitionCoordinator
from raylog.coordination.events import OutsideAnswer
from raylog.coordination.machine import CoordinatorMachine, Decided
from raylog.offsets_topic import TRANSACTIONS_TOPIC, partition_for
from raylog.transactions import inspection, participants, records, transaction
from raylog.transactions.context import (
    SpareProducerIds,
    TransactionConfig,
    TransactionContext,
    TransactionSettings,
    state_error,
)
from raylog.transactions.ending import Endings
from raylog.transactions.records import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    Participant,
    Participation,
    TransactionKey,
    TransactionRecord,
    TransactionState,
    TransactionValue,
)
from raylog.transactions.requests import (
    VERSION_2,
    AddPartitions,
    DescribedTransaction,
    DescribeTransaction,
    EndTransaction,
    InitTransactionalId,
    JoinTransaction,
    KeepTransaction,
    ListTransactions,
    PartitionsAdded,
    ProducerIdsGiven,
    TransactionalIdInitialised,
    TransactionEnded,
    TransactionJoined,
    TransactionKept,
    TransactionReply,
    TransactionRequest,
    TransactionsListed,
    VerifyPartitions,
    WantProducerIds,
)
from raylog.transactions.transaction import AT_REST, COMPLETE, EPOCH_MAX, LAST_EPOCH, PREPARED
from raylog.types import TopicPartition

INVALID_REQUEST = ErrorCode.invalid_request.value
INVALID_TRANSACTION_TIMEOUT = ErrorCode.invalid_transaction_timeout.value
INVALID_PRODUCER_ID_MAPPING = ErrorCode.invalid_producer_id_mapping.value
INVALID_TXN_STATE = ErrorCode.invalid_txn_state.value
CONCURRENT_TRANSACTIONS = ErrorCode.concurrent_transactions.value
PRODUCER_FENCED = ErrorCode.producer_fenced.value
UNKNOWN_TOPIC_OR_PARTITION = ErrorCode.unknown_topic_or_partition.value
TRANSACTION_ABORTABLE = ErrorCode.transaction_abortable.value
COORDINATOR_NOT_AVAILABLE = ErrorCode.coordinator_not_available.value
NOT_COORDINATOR = ErrorCode.not_coordinator.value
POLICY_VIOLATION = ErrorCode.policy_violation.value
_Early = AddPartitions | JoinTransaction | InitTransactionalId
EXPIRE, EARLY = "expire", "early"
EARLY_MS = 50
EXPIRED_AT_ONCE = 500  # records in one batch
_ID_BYTES_MAX = 32_000  # of a record's key
_LABEL_BYTES_MAX = 1_000

Decision = Decided[TransactionReply, TransactionRecord]
TransactionCoordinator = PartitionCoordinator[TransactionRequest, TransactionReply, TransactionRecord]


class TransactionMachine(CoordinatorMachine[TransactionRequest, TransactionReply, TransactionRecord]):
    """``_waiting``: the requests that need a producer id, while a block is asked for. ``_early``: those
    that go on while something else changes, by transactional id and token.
    """

    __slots__ = ("_early", "_endings", "_waiting", "context")

    def __init__(self, settings: TransactionSettings, producer_ids: SpareProducerIds, position: int) -> None:
        self.context: TransactionContext = TransactionContext(settings, producer_ids, position)
        self._endings = Endings(self.context, self._changed)
        self._early: dict[str, dict[int, _Early]] = {}
        self._waiting: list[tuple[int, TransactionRequest]] = []

    @property
    def image(self) -> Mapping[str, TransactionValue]:
        return self.context.image

    def apply(self, record: TransactionRecord) -> None:
        self.context.apply(record)

    # -------------------------------------------------------------- beginning and end of a leadership

    def began(self) -> None:
        self._endings.began()
        self._expire_later()

    def ended(self) -> None:
        self._endings.ended()
        self.context.last_epochs.clear()
        waiting, self._waiting = self._waiting, []
        for token, request in waiting:
            self.context.reply(token, self.refuse(request, NOT_COORDINATOR))
        early, self._early = self._early, {}
        for those in early.values():
            for token, begins in those.items():
                self.context.reply(token, self.refuse(begins, NOT_COORDINATOR))

    # -------------------------------------------------------------- requests

    def judge(self, request: TransactionRequest) -> int:
        if isinstance(request, ListTransactions):
            return 0
        if not request.transactional_id or len(request.transactional_id.encode()) > _ID_BYTES_MAX:
            return INVALID_REQUEST
        if isinstance(request, InitTransactionalId):
            if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
                return INVALID_REQUEST
            if not 0 < request.timeout_ms <= self.context.config.transaction_max_timeout_ms:
                return INVALID_TRANSACTION_TIMEOUT
        if isinstance(request, EndTransaction) and len(request.label.encode()) > _LABEL_BYTES_MAX:
            return INVALID_REQUEST
        return 0

    def decide(self, token: int, request: TransactionRequest) -> Decision | None:
        match request:
            case InitTransactionalId():
                return self._init(token, request)
            case AddPartitions():
                return self._add(token, request)
            case VerifyPartitions():
                return self._verify(request)
            case JoinTransaction():
                return self._join(token, request)
            case KeepTransaction():
                return self._keep(request)
            case EndTransaction():
                return self._end(token, request)
            case DescribeTransaction():
                described = inspection.described(self.image, request.transactional_id)
                return Decided(lambda error: described)
            case ListTransactions():
                listed = inspection.listed(self.image, request, self.context.wall_ms)
                return Decided(lambda error: listed)
            case _:
                assert_never(request)

    def refuse(self, request: TransactionRequest, error: int) -> TransactionReply:
        match request:
            case InitTransactionalId():
                return TransactionalIdInitialised(error)
            case AddPartitions() | VerifyPartitions():
                return PartitionsAdded(tuple((each, error) for each in request.partitions))
            case JoinTransaction():
                return TransactionJoined(error)
            case KeepTransaction():
                return TransactionKept(error)
            case EndTransaction():
                return TransactionEnded(error)
            case DescribeTransaction():
                return DescribedTransaction(error, request.transactional_id)
            case ListTransactions():
                # A process lists what it coordinates.
                return TransactionsListed(0 if error == NOT_COORDINATOR else error)
            case _:
                assert_never(request)

    def _refused(self, request: TransactionRequest, error: int) -> Decision:
        reply = self.refuse(request, error)
        return Decided(lambda _: reply)

    # -------------------------------------------------------------- producers

    def _init(self, token: int, request: InitTransactionalId) -> Decision | None:
        context, transactional_id = self.context, request.transactional_id
        value = context.image.get(transactional_id)
        if context.is_changing(transactional_id):
            return self._init_later(token, request, value)
        if value is None:
            if not self._has_producer_id(token, request):
                return None
            producer_id = context.producer_ids.take()
            return self._initialised(
                request, transaction.first_producer(producer_id, request.timeout_ms, context.wall_ms), NO_EPOCH
            )
        if request.producer_id not in (NO_PRODUCER_ID, value.producer_id) and not (
            request.producer_id == value.previous_producer_id and request.producer_epoch >= LAST_EPOCH
        ):
            return self._refused(request, PRODUCER_FENCED)
        if value.state in PREPARED:
            return self._init_later(token, request, value)
        if value.state is TransactionState.ONGOING:
            return self._fence(request, value)
        assert value.state in AT_REST, value
        return self._next_producer(token, request, value)

    def _init_later(self, token: int, request: InitTransactionalId, value: TransactionValue | None) -> Decision | None:
        """Something is on its way into the log. Who goes on from the last transaction waits for its end."""
        if value is None or (request.producer_id, request.producer_epoch) != transaction.continuation(value):
            return self._refused(request, CONCURRENT_TRANSACTIONS)
        self._wait(token, request)
        return None

    def _fence(self, request: InitTransactionalId, value: TransactionValue) -> Decision:
        """End what the producer before has begun. The client repeats its request until that is done."""
        record = self._endings.fencing(request.transactional_id, value)
        return Decided(
            lambda error: TransactionalIdInitialised(state_error(error) or CONCURRENT_TRANSACTIONS),
            (record,),
            partial(self._endings.fenced, request.transactional_id),
        )

    def _next_producer(self, token: int, request: InitTransactionalId, value: TransactionValue) -> Decision | None:
        context, transactional_id = self.context, request.transactional_id
        goes_on = request.producer_epoch != NO_EPOCH
        matches = not goes_on or (request.producer_epoch, request.producer_id) == (
            value.producer_epoch,
            value.producer_id,
        )
        if not matches:
            if request.producer_epoch == context.last_epochs.get(transactional_id):
                # A retry: the answer to the first one was lost.
                same = transaction.next_producer(value, value.producer_epoch, request.timeout_ms, context.wall_ms)
                return self._initialised(request, same, request.producer_epoch)
            return self._refused(request, PRODUCER_FENCED)
        last_epoch = value.producer_epoch if goes_on else NO_EPOCH
        if value.producer_epoch < LAST_EPOCH:
            epoch = value.producer_epoch + 1
            raised = transaction.next_producer(value, epoch, request.timeout_ms, context.wall_ms)
            return self._initialised(request, raised, last_epoch)
        if not self._has_producer_id(token, request):
            return None
        producer_id = context.producer_ids.take()
        rotated = transaction.rotated(value, producer_id, request.timeout_ms, context.wall_ms)
        return self._initialised(request, rotated, last_epoch)

    def _initialised(self, request: InitTransactionalId, value: TransactionValue, last_epoch: int) -> Decision:
        def reply(error: int) -> TransactionReply:
            if error:
                return TransactionalIdInitialised(state_error(error))
            return TransactionalIdInitialised(0, value.producer_id, value.producer_epoch)

        def settled(error: int) -> None:
            last_epochs = self.context.last_epochs
            if not error and last_epoch == NO_EPOCH:
                last_epochs.pop(request.transactional_id, None)
            elif not error:
                last_epochs[request.transactional_id] = last_epoch
            self._changed(request.transactional_id)

        return Decided(reply, (_record(request.transactional_id, value),), settled)

    def _has_producer_id(self, token: int, request: TransactionRequest) -> bool:
        """Whether there is one; else the request waits until there is."""
        if self.context.producer_ids.are_there:
            return True
        self._waiting.append((token, request))
        if len(self._waiting) == 1:
            self.context.ask(WantProducerIds(), self._producer_ids_given)
        return False

    def _producer_ids_given(self, answer: OutsideAnswer) -> None:
        assert isinstance(answer, ProducerIdsGiven), answer
        waiting, self._waiting = self._waiting, []
        if not answer.error:
            self.context.producer_ids.add(answer.first, answer.count)
        for token, request in waiting:
            if answer.error:
                self.context.reply(token, self.refuse(request, COORDINATOR_NOT_AVAILABLE))
            else:
                self.decide_on(token, request)

    # -------------------------------------------------------------- partitions

    def _add(self, token: int, request: AddPartitions) -> Decision | None:
        context, transactional_id = self.context, request.transactional_id
        value = context.image.get(transactional_id)
        if value is None:
            return self._refused(request, INVALID_PRODUCER_ID_MAPPING)
        is_own = (request.producer_id, request.producer_epoch) == transaction.continuation(value)
        participant = participants.participant_of(value, request.producer_id)
        if participant is not None:
            is_own = (participant.producer_epoch, participant.part) == (request.producer_epoch, Participation.JOINED)
        if is_own and (value.state in PREPARED or context.is_changing(transactional_id)):
            self._wait(token, request)
            return None
        if context.is_changing(transactional_id):
            return self._refused(request, CONCURRENT_TRANSACTIONS)
        error = _stranger(value, request.producer_id, request.producer_epoch)
        if error:
            return self._refused(request, error)
        partitions = frozenset(request.partitions)
        topics = context.topics
        if topics is not None and any(each.topic not in topics for each in partitions):
            # A topic that is missing later was deleted, and its partitions get no marker.
            return self._refused(request, UNKNOWN_TOPIC_OR_PARTITION)
        if not partitions or (value.state is TransactionState.ONGOING and partitions <= value.partitions):
            return self._refused(request, 0)
        changed = transaction.with_partitions(value, partitions, request.version, context.wall_ms)

        def settled(error: int) -> None:
            if not error:
                self._endings.watch(transactional_id)
            self._changed(transactional_id)

        return Decided(
            lambda error: self.refuse(request, state_error(error)), (_record(transactional_id, changed),), settled
        )

    def _wait(self, token: int, request: _Early) -> None:
        """Until the last change of the id is stored, for a moment."""
        transactional_id = request.transactional_id
        self._early.setdefault(transactional_id, {})[token] = request
        if (EARLY, transactional_id, token) not in self.context.timers:
            self.context.timers.set((EARLY, transactional_id, token), self.context.now_ms + EARLY_MS)

    def _changed(self, transactional_id: str) -> None:
        """A change of this id is stored, or never will be: those that wait are decided about."""
        for token, request in self._early.pop(transactional_id, {}).items():
            self.decide_on(token, request)
            if token not in self._early.get(transactional_id, {}):
                self.context.timers.cancel((EARLY, transactional_id, token))

    def _was_too_early(self, transactional_id: str, token: int) -> None:
        request = self._early[transactional_id].pop(token)
        if not self._early[transactional_id]:
            del self._early[transactional_id]
        self.context.reply(token, self.refuse(request, CONCURRENT_TRANSACTIONS))

    def _verify(self, request: VerifyPartitions) -> Decision:
        value = self.context.image.get(request.transactional_id)
        if value is None:
            return self._refused(request, INVALID_PRODUCER_ID_MAPPING)
        error = _stranger(value, request.producer_id, request.producer_epoch)
        if error:
            return self._refused(request, error)
        there: frozenset[TopicPartition] = value.partitions
        found = PartitionsAdded(
            tuple((each, 0 if each in there else TRANSACTION_ABORTABLE) for each in request.partitions)
        )
        return Decided(lambda _: found)

    # -------------------------------------------------------------- participants

    def _join(self, token: int, request: JoinTransaction) -> Decision | None:
        context, transactional_id = self.context, request.transactional_id
        value = context.image.get(transactional_id)
        if value is None:
            return self._refused(request, INVALID_PRODUCER_ID_MAPPING)
        if (request.producer_id, request.producer_epoch) != transaction.continuation(value):
            return self._refused(
                request, _stranger(value, request.producer_id, request.producer_epoch) or PRODUCER_FENCED
            )
        if value.state in PREPARED or context.is_changing(transactional_id):
            self._wait(token, request)
            return None
        if len(participants.joined(value)) >= participants.PARTICIPANTS_MAX:
            return self._refused(request, POLICY_VIOLATION)
        found = participants.spare(value)
        if found is None:
            if not self._has_producer_id(token, request):
                return None
            found = Participant(context.producer_ids.take(), 0)
        changed = participants.with_joined(value, found, context.wall_ms)

        def reply(error: int) -> TransactionReply:
            if error:
                return TransactionJoined(state_error(error))
            return TransactionJoined(0, found.producer_id, found.producer_epoch)

        return Decided(reply, (_record(transactional_id, changed),), lambda error: self._changed(transactional_id))

    def _keep(self, request: KeepTransaction) -> Decision:
        value = self.context.image.get(request.transactional_id)
        if value is None:
            return self._refused(request, INVALID_PRODUCER_ID_MAPPING)
        if (request.producer_id, request.producer_epoch) != transaction.continuation(value):
            return self._refused(
                request, _stranger(value, request.producer_id, request.producer_epoch) or PRODUCER_FENCED
            )
        self._endings.keep(request.transactional_id, value)
        kept = TransactionKept(0, value.label)
        return Decided(lambda _: kept)

    # -------------------------------------------------------------- ends

    def _end(self, token: int, request: EndTransaction) -> Decision | None:
        context, transactional_id = self.context, request.transactional_id
        value = context.image.get(transactional_id)
        if value is None:
            return self._refused(request, INVALID_PRODUCER_ID_MAPPING)
        is_retry = request.version >= VERSION_2 and _is_retry(value, request)
        if value.producer_id != request.producer_id and not is_retry:
            return self._refused(request, INVALID_PRODUCER_ID_MAPPING)
        if not _is_current(value, request, is_retry=is_retry):
            return self._refused(request, PRODUCER_FENCED)
        if context.is_changing(transactional_id):
            return self._refused(request, CONCURRENT_TRANSACTIONS)
        if value.state in PREPARED:
            goes_this_way = (value.state is TransactionState.PREPARE_COMMIT) == request.commits
            return self._refused(request, CONCURRENT_TRANSACTIONS if goes_this_way else INVALID_TXN_STATE)
        if value.state is TransactionState.ONGOING:
            return self._decided(token, request, value)
        return self._end_of_nothing(token, request, value, is_retry=is_retry)

    def _end_of_nothing(
        self, token: int, request: EndTransaction, value: TransactionValue, *, is_retry: bool
    ) -> Decision | None:
        """No transaction is under way: this may be a retry, or, in version 2, an abort that makes
        sure of it.

        In version 1 a producer that gives up before its first partition was added aborts an empty
        transaction. There is nothing that it could mean but that, so it succeeds; in Kafka the error
        ends the producer (librdkafka#4849). After a commit it could mean what was committed.
        """
        ended = TransactionState.COMPLETE_COMMIT if request.commits else TransactionState.COMPLETE_ABORT
        if request.version < VERSION_2:
            is_nothing = value.state is TransactionState.EMPTY and not request.commits
            return self._refused(request, 0 if value.state is ended or is_nothing else INVALID_TXN_STATE)
        if is_retry:
            if value.state is not ended:
                return self._refused(request, INVALID_TXN_STATE)
            if value.producer_epoch > LAST_EPOCH:
                return self._refused(request, PRODUCER_FENCED)
            same = TransactionEnded(0, *transaction.continuation(value))
            return Decided(lambda _: same)
        if request.commits and not request.is_shared:
            return self._refused(request, INVALID_TXN_STATE)
        return self._decided(token, request, value)

    def _decided(self, token: int, request: EndTransaction, value: TransactionValue) -> Decision | None:
        """The one record on which everything hangs."""
        context = self.context
        joined = {each.producer_id for each in participants.joined(value)}
        if not joined.issuperset(request.winners):
            return self._refused(request, INVALID_TXN_STATE)
        raises_epoch = request.version >= VERSION_2
        next_producer_id = NO_PRODUCER_ID
        if raises_epoch and value.producer_epoch >= LAST_EPOCH:
            if not self._has_producer_id(token, request):
                return None
            next_producer_id = context.producer_ids.take()
        prepared = transaction.prepared(
            value,
            commits=request.commits,
            raises_epoch=raises_epoch,
            version=request.version,
            wall_ms=context.wall_ms,
            next_producer_id=next_producer_id,
            winners=request.winners,
            label=request.label,
        )

        def reply(error: int) -> TransactionReply:
            if error:
                return TransactionEnded(state_error(error))
            return TransactionEnded(0, *transaction.continuation(prepared))

        def settled(error: int) -> None:
            self._endings.decided(request.transactional_id, error)
            if raises_epoch and not error:
                context.last_epochs[request.transactional_id] = request.producer_epoch
            self._changed(request.transactional_id)

        return Decided(reply, (_record(request.transactional_id, prepared),), settled)

    # -------------------------------------------------------------- time

    def timer_fired(self, name: tuple[object, ...]) -> None:
        if name[0] == EXPIRE:
            self._expire()
            self._expire_later()
        elif name[0] == EARLY:
            _, transactional_id, token = name
            assert isinstance(transactional_id, str) and isinstance(token, int), name
            self._was_too_early(transactional_id, token)
        else:
            self._endings.timer_fired(name)

    def _expire_later(self) -> None:
        context = self.context
        interval_ms = context.config.transaction_remove_expired_transaction_cleanup_interval_ms
        context.timers.set((EXPIRE,), context.now_ms + interval_ms)

    def _expire(self) -> None:
        """Forget the ids that nobody has used for long."""
        context = self.context
        oldest = context.wall_ms - context.config.transactional_id_expiration_ms
        gone = [
            TransactionRecord(TransactionKey(transactional_id), None)
            for transactional_id, value in context.image.items()
            if value.state in AT_REST
            and value.last_update_timestamp <= oldest
            and not context.is_changing(transactional_id)
        ]
        for at in range(0, len(gone), EXPIRED_AT_ONCE):
            context.write(tuple(gone[at : at + EXPIRED_AT_ONCE]))

    def check(self, *, leads: bool) -> None:
        self._endings.check(leads=leads)
        assert leads or not (self._waiting or self._early), "requests wait at a follower"
        for transactional_id, those in self._early.items():
            waits = all((EARLY, transactional_id, token) in self.context.timers for token in those)
            assert those and waits, f"{transactional_id}: {list(those)} could wait for ever"
        for transactional_id, value in self.context.image.items():
            assert 0 <= value.producer_epoch <= EPOCH_MAX, f"{transactional_id}: {value}"
            assert value.partitions or value.state is not TransactionState.ONGOING, f"{transactional_id}: {value}"
            participants.check(value)


class TransactionKind:
    """Transactional ids as a runtime is given them (``coordination.machine.CoordinatorKind``)."""

    topic = TRANSACTIONS_TOPIC

    def __init__(self, config: TransactionConfig | None = None) -> None:
        self._settings = TransactionSettings(config or TransactionConfig())
        self.counts = self._settings.counts
        self._producer_ids = SpareProducerIds()

    def machine(self, position: int) -> TransactionMachine:
        return TransactionMachine(self._settings, self._producer_ids, position)

    def encode(self, record: TransactionRecord) -> tuple[bytes, bytes | None]:
        return records.encode(record)

    def decode(self, key: bytes | None, value: bytes | None) -> TransactionRecord | None:
        return records.decode(key, value)

    def partition_of(self, request: TransactionRequest) -> int | None:
        return None if isinstance(request, ListTransactions) else partition_for(request.transactional_id)

    def wait_ms(self, request: TransactionRequest) -> int | None:
        return None

    def configure(self, configs: Mapping[str, str]) -> None:
        self._settings.configure(configs)


def _record(transactional_id: str, value: TransactionValue) -> TransactionRecord:
    return TransactionRecord(TransactionKey(transactional_id), value)


def _stranger(value: TransactionValue, producer_id: int, producer_epoch: int) -> int:
    """The error of a producer that may not write in the transaction that is under way, or begin
    one.
    """
    if value.producer_id != producer_id:
        participant = participants.participant_of(value, producer_id)
        if participant is None:
            return INVALID_PRODUCER_ID_MAPPING
        if (participant.producer_epoch, participant.part) != (producer_epoch, Participation.JOINED):
            return PRODUCER_FENCED
    elif value.producer_epoch != producer_epoch or producer_epoch > LAST_EPOCH:
        return PRODUCER_FENCED
    return CONCURRENT_TRANSACTIONS if value.state in PREPARED else 0


def _is_retry(value: TransactionValue, request: EndTransaction) -> bool:
    """Whether the end that is asked for (version 2) has been decided already: the epoch is the one
    before.
    """
    if value.producer_id == request.producer_id:
        return value.producer_epoch == request.producer_epoch + 1
    is_rotated = value.previous_producer_id == request.producer_id and value.producer_epoch == 0
    return is_rotated and request.producer_epoch == LAST_EPOCH


def _is_current(value: TransactionValue, request: EndTransaction, *, is_retry: bool) -> bool:
    """Whether the epoch is one that may end a transaction, or may have ended the last one."""
    if request.producer_epoch > LAST_EPOCH:
        return False
    if value.state in PREPARED and request.version >= VERSION_2:
        return is_retry
    return value.producer_epoch == request.producer_epoch or (is_retry and value.state in COMPLETE)
