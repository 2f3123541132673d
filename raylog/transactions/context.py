"""What the parts of one partition's transaction coordinator share: its settings, what the log says,
and the producer ids of this process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from raylog.configs.settings import setting, with_configs
from raylog.coordination.context import NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT, CoordinatorContext
from raylog.transactions.records import TransactionKey, TransactionRecord, TransactionValue
from raylog.transactions.requests import TransactionReply

_NOT_NOW = frozenset(
    (
        REQUEST_TIMED_OUT,
        ErrorCode.unknown_topic_or_partition.value,
        ErrorCode.not_enough_replicas.value,
        ErrorCode.not_enough_replicas_after_append.value,
    )
)
_NOT_HERE = frozenset((NOT_LEADER_OR_FOLLOWER, ErrorCode.kafka_storage_error.value))


def state_error(error: int) -> int:
    """The error that a client receives whose state could not be stored for ``error`` of the log."""
    if error in _NOT_NOW:
        return ErrorCode.coordinator_not_available.value
    if error in _NOT_HERE:
        return ErrorCode.not_coordinator.value
    return ErrorCode.unknown_server_error.value if error else 0


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """The configs of brokers that are of transactions, under their names (``.`` becomes ``_``)."""

    transaction_max_timeout_ms: int = setting("transaction.max.timeout.ms")
    transactional_id_expiration_ms: int = setting("transactional.id.expiration.ms")
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms"
    )


class TransactionCounts:
    """What the coordinators of one process have counted since it began, for whoever asks
    (``raylog.metrics``): decisions that are replicated.
    """

    __slots__ = ("aborted", "committed", "timed_out")

    def __init__(self) -> None:
        self.committed = 0
        self.aborted = 0
        self.timed_out = 0  # of those aborted


class TransactionSettings:
    """The settings that all partitions' coordinators of one process go by, and what they count."""

    __slots__ = ("_base", "config", "counts")

    def __init__(self, config: TransactionConfig) -> None:
        self._base = self.config = config
        self.counts = TransactionCounts()

    def configure(self, configs: Mapping[str, str]) -> None:
        self.config = with_configs(self._base, configs)


class SpareProducerIds:
    """The producer ids that this process was given and has not used. What is left when it ends is
    lost.
    """

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: list[range] = []

    def add(self, first: int, count: int) -> None:
        self._blocks.append(range(first, first + count))

    @property
    def are_there(self) -> bool:
        return any(self._blocks)

    def take(self) -> int:
        """One that nobody has; ``are_there`` says whether there is one."""
        self._blocks = [block for block in self._blocks if block]
        block = self._blocks[0]
        self._blocks[0] = block[1:]
        return block[0]


class TransactionContext(CoordinatorContext[TransactionReply, TransactionRecord]):
    """``image`` is what the log says, by transactional id. ``last_epochs``: of producers that went on
    after an error while this process led, the epoch before; a retry is known by it.
    """

    __slots__ = ("_settings", "image", "last_epochs", "producer_ids")

    def __init__(self, settings: TransactionSettings, producer_ids: SpareProducerIds, position: int) -> None:
        super().__init__(position)
        self._settings = settings
        self.producer_ids = producer_ids
        self.image: dict[str, TransactionValue] = {}
        self.last_epochs: dict[str, int] = {}

    @property
    def config(self) -> TransactionConfig:
        return self._settings.config

    @property
    def counts(self) -> TransactionCounts:
        return self._settings.counts

    def apply(self, record: TransactionRecord) -> None:
        transactional_id = record.key.transactional_id
        if record.value is None:
            self.image.pop(transactional_id, None)
        else:
            self.image[transactional_id] = record.value

    def is_changing(self, transactional_id: str) -> bool:
        """Whether something about this id is on its way into the log."""
        return self.is_pending(TransactionKey(transactional_id))
