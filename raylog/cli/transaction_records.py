"""The records of ``__transaction_state`` as documents, as Apache Kafka's
``--transaction-log-decoder`` prints them: ``{"type": "0", "data": {…}}`` for a key, ``{"version":
"1", "data": {…}}`` for a value, both with the names of Kafka's schemas. What only raylog writes
(participants, label) follows behind.
"""

from __future__ import annotations

from typing import Any

from raylog.cli.offsets_records import DELETE, Document
from raylog.errors import ProtocolError
from raylog.transactions.records import NO_PRODUCER_ID, TransactionState, TransactionValue, decode


def documents_of(offset: int, key: bytes | None, value: bytes | None) -> tuple[Document, Document | None]:
    """Key and value of a record. What cannot be read has a sentence for a key, and no value."""
    try:
        record = decode(key, value)
    except ProtocolError as error:
        return f"Error at offset {offset}, skipping. {error}", None
    assert key is not None
    kind = int.from_bytes(key[:2], "big", signed=True)
    if record is None:
        return f"Unknown record type {kind} at offset {offset}, skipping.", None
    shown = {"type": str(kind), "data": {"transactionalId": record.key.transactional_id}}
    if value is None or record.value is None:
        return shown, DELETE
    version = int.from_bytes(value[:2], "big", signed=True)
    return shown, {"version": str(version), "data": _transaction(record.value)}


def _transaction(value: TransactionValue) -> dict[str, Any]:
    """In the order of Kafka's schema. Tagged fields only where they say something, as there."""
    data: dict[str, Any] = {"producerId": value.producer_id}
    if value.previous_producer_id != NO_PRODUCER_ID:
        data["previousProducerId"] = value.previous_producer_id
    if value.next_producer_id != NO_PRODUCER_ID:
        data["nextProducerId"] = value.next_producer_id
    data |= {
        "producerEpoch": value.producer_epoch,
        "transactionTimeoutMs": value.timeout_ms,
        "transactionStatus": int(value.state),
        "transactionPartitions": None if value.state is TransactionState.EMPTY else _partitions(value),
        "transactionLastUpdateTimestampMs": value.last_update_timestamp,
        "transactionStartTimestampMs": value.start_timestamp,
    }
    if value.client_version:
        data["clientTransactionVersion"] = value.client_version
    if value.participants:
        data["participants"] = [
            {"producerId": each.producer_id, "producerEpoch": each.producer_epoch, "part": each.part.name}
            for each in value.participants
        ]
    if value.label:
        data["label"] = value.label
    return data


def _partitions(value: TransactionValue) -> list[dict[str, Any]]:
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(value.partitions):
        found.setdefault(topic, []).append(partition)
    return [{"topic": topic, "partitionIds": numbers} for topic, numbers in found.items()]
