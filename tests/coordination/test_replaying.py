"""A coordinator that loads its log decodes of each key what counts in the end, and comes to the same as one that decodes all."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from raylog.coordination.coordinator import PartitionCoordinator
from raylog.coordination.events import Replayed
from raylog.coordination.runtime import READ_BYTES, CoordinatorRuntime, _Partition
from raylog.groups import records as group_records
from raylog.groups.machine import GroupKind
from raylog.groups.records import GroupRecord, OffsetKey, OffsetValue
from raylog.records.batch import stamp
from raylog.records.codec import RecordBatchBuilder
from raylog.records.control import Marker, control_batch
from raylog.replication.leaderships import LeadershipBegan
from raylog.transactions import records as transaction_records
from raylog.transactions.machine import TransactionKind
from raylog.transactions.records import TransactionKey, TransactionRecord, TransactionState, TransactionValue
from raylog.types import TopicIdPartition
from tests.coordination.test_timer import Alarm

ID = TopicIdPartition(uuid.UUID(int=1), 7)


class WholeLog:
    """In memory, all of it replicated."""

    log_start_offset = 0
    where = "p-7"

    def __init__(self) -> None:
        self.batches: list[bytes] = []

    def append(self, batch: bytes) -> None:
        raw = bytearray(batch)
        stamp(raw, len(self.batches), 0)
        self.batches.append(bytes(raw))

    def of_record(self, key: bytes, value: bytes | None, producer_id: int | None = None) -> None:
        builder = RecordBatchBuilder(is_transactional=producer_id is not None)
        builder.append(timestamp_ms=1, key=key, value=value)
        producer = {} if producer_id is None else {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
        self.append(bytes(builder.build(**producer)))

    @property
    def high_watermark(self) -> int:
        return len(self.batches)

    def read(self, offset: int, max_bytes: int, *, end_offset: int, in_memory: bool) -> Any:
        piece = bytearray()
        while offset < end_offset and (not piece or len(piece) + len(self.batches[offset]) <= max_bytes):
            piece += self.batches[offset]
            offset += 1
        return SimpleNamespace(records=bytes(piece), next_offset=offset)


@pytest.fixture
def log() -> WholeLog:
    return WholeLog()


def loaded(kind: Any, log: WholeLog) -> PartitionCoordinator[Any, Any, Any]:
    """The coordinator of a process that is elected with the whole log to read."""
    alarm, replicas = Alarm(), SimpleNamespace(log=lambda id: log)
    runtime: CoordinatorRuntime[Any, Any, Any] = CoordinatorRuntime(kind, replicas, alarm)  # type: ignore[arg-type]
    runtime._partitions[ID.partition] = _Partition(ID)
    runtime.receive((LeadershipBegan(ID, 1, log.high_watermark),))
    for moment in range(1, 1_000):
        if runtime.coordinates(ID.partition):
            break
        alarm.pass_to(moment)
    coordinator = runtime.coordinator_of(ID.partition)
    assert coordinator is not None and coordinator.position == log.high_watermark
    return coordinator


def test_of_a_transactional_id_one_record_of_each_piece_is_decoded(
    log: WholeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: Counter[str] = Counter()
    decode = transaction_records.decode

    def counted(key: Any, value: Any) -> Any:
        record = decode(key, value)
        decoded[record.key.transactional_id] += 1
        return record

    monkeypatch.setattr(transaction_records, "decode", counted)
    for number in range(500):
        value = TransactionValue(5, 0, 60_000, TransactionState.EMPTY, last_update_timestamp=number)
        log.of_record(*transaction_records.encode(TransactionRecord(TransactionKey(f"id-{number % 2}"), value)))
    image = loaded(TransactionKind(), log).machine.context.image
    assert {id: value.last_update_timestamp for id, value in image.items()} == {"id-0": 498, "id-1": 499}
    pieces = sum(map(len, log.batches)) // READ_BYTES + 1
    assert pieces > 2 and set(decoded) == {"id-0", "id-1"} and max(decoded.values()) <= pieces + 1


@pytest.mark.parametrize("seed", range(40))
def test_offsets_in_and_out_of_transactions_come_out_as_if_all_were_decoded(log: WholeLog, seed: int) -> None:
    dice = random.Random(seed)
    kind = GroupKind(new_uuid=uuid.uuid4)
    one_by_one = PartitionCoordinator(kind.machine(0))
    for number in range(dice.randrange(1, 120)):
        place = OffsetKey(f"group-{dice.randrange(2)}", "topic", dice.randrange(2))
        producer_id = dice.choice((None, None, 1, 2))
        if producer_id is not None and dice.random() < 0.4:
            marker = dice.choice((Marker.COMMIT, Marker.ABORT))
            log.append(
                control_batch(marker, producer_id=producer_id, producer_epoch=0, coordinator_epoch=1, timestamp_ms=1)
            )
            continue
        offset = None if producer_id is None and dice.random() < 0.2 else OffsetValue(number, -1, "", 1)
        log.of_record(*group_records.encode(GroupRecord(place, offset)), producer_id)
    reader: CoordinatorRuntime[Any, Any, Any] = CoordinatorRuntime(kind, SimpleNamespace(), Alarm())  # type: ignore[arg-type]
    for number, batch in enumerate(log.batches):
        one_by_one.handle(Replayed(reader._records_of(batch, number, where="p-7"), number + 1), 0, 0)
    assert loaded(kind, log).machine.context.image.groups == one_by_one.machine.context.image.groups
