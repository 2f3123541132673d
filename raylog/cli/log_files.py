"""Decodes the files of a replica's folder, without a cluster: what ``raylog dump-log`` prints.

Each function takes a file's bytes and yields entries; an entry is a dict with Kafka's field names
in the order in which Apache Kafka's ``DumpLogSegments`` prints them, and ``text`` turns one into
that tool's line. Files: ``.log`` (record batches, and messages of formats 0 and 1), ``.index``,
``.timeindex``, ``.snapshot`` (producer state), ``leader-epoch-checkpoint``, and the controllers'
(``metadata_files``). Damage is an entry of its own (``fault``), after which the file is not read
on.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from raylog.cli import offsets_records, transaction_records
from raylog.cli.metadata_files import is_metadata, metadata_entries
from raylog.cli.output import text_or_base64
from raylog.errors import KafkaError
from raylog.log.offset_index import ENTRY as OFFSET_ENTRY
from raylog.log.producers import ProducerStates
from raylog.log.time_index import ENTRY as TIME_ENTRY
from raylog.records.batch import NO_SEQUENCE, SEQUENCE_MASK, BatchView, Buffer, peek_size
from raylog.records.codec import decode
from raylog.records.control import Marker, control_type, read_control_batch
from raylog.records.corrupt import UnsupportedMagic
from raylog.records.message_set import message_of, records_of
from raylog.records.record import Record

Entry = dict[str, Any]
COMPRESSION_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
EPOCHS_FILE = "leader-epoch-checkpoint"
SUFFIXES = (".log", ".index", ".timeindex", ".snapshot")
CONTROL_TYPES = {2: "LEADER_CHANGE", 3: "SNAPSHOT_HEADER", 4: "SNAPSHOT_FOOTER", 5: "KRAFT_VERSION", 6: "KRAFT_VOTERS"}
"""Those of Kafka's own Raft log. The others are ``Marker``."""

ReadRecord = Callable[[int, bytes | None, bytes | None], Entry]
"""Gives the fields ``key`` and ``payload`` of a record, by its offset, key and value."""


def is_dumpable(path: Path) -> bool:
    """Whether the name is one of a file that can be decoded here."""
    return path.suffix in SUFFIXES or path.name == EPOCHS_FILE or is_metadata(path)


def entries_of(
    path: Path, data: Buffer, *, deep: bool, contents: bool, read: ReadRecord | None = None
) -> Iterator[Entry]:
    """The entries of a file, chosen by its name. ``deep`` adds each record of a log, ``contents``
    its key and value. ``read`` gives them in another form than text or Base64.
    """
    if is_metadata(path):
        return metadata_entries(path, data)
    if path.suffix == ".log":
        return log_entries(data, deep=deep or contents, contents=contents, read=read)
    if path.suffix == ".index":
        return index_entries(data, base_offset=int(path.stem))
    if path.suffix == ".timeindex":
        return time_index_entries(data, base_offset=int(path.stem))
    if path.suffix == ".snapshot":
        return snapshot_entries(data, path)
    assert path.name == EPOCHS_FILE, path
    return epoch_entries(bytes(data))


def log_entries(data: Buffer, *, deep: bool, contents: bool, read: ReadRecord | None = None) -> Iterator[Entry]:
    """Batches, each followed by its records if ``deep``."""
    position = 0
    while position < len(data):
        try:
            batch = BatchView(data, position)
        except UnsupportedMagic:
            size = peek_size(data, position) or 0
            if not 0 < size <= len(data) - position:
                yield _fault(f"{len(data) - position} invalid bytes at position {position}")
                return
            message = memoryview(data)[position : position + size]
            yield from _message_entries(message, position, deep, (read or _as_text) if contents else None)
            position += size
            continue
        except KafkaError as error:
            yield _fault(f"{len(data) - position} invalid bytes at position {position}: {error}")
            return
        valid = batch.has_valid_crc()
        yield _batch_entry(batch, valid)
        if deep and valid:
            try:
                yield from _record_entries(batch, contents=contents, read=read or _as_text)
            except KafkaError as error:
                yield _fault(f"the records of the batch at position {position} can't be decoded: {error}")
        if not valid:
            yield _fault(f"the batch at position {position} fails its checksum")
        position += batch.size


def index_entries(data: Buffer, *, base_offset: int) -> Iterator[Entry]:
    """Offset and position of each entry; an active index ends where its preallocated zeros begin."""
    for number, (relative, position) in enumerate(OFFSET_ENTRY.iter_unpack(_whole(data, OFFSET_ENTRY))):
        if number > 0 and relative == 0:
            return
        if relative == 0 and position == 0 and number == 0:
            return
        yield {"offset": base_offset + relative, "position": position}
    yield from _odd_tail(data, OFFSET_ENTRY)


def time_index_entries(data: Buffer, *, base_offset: int) -> Iterator[Entry]:
    """Timestamp and offset of each entry; an active index ends where its preallocated zeros begin."""
    for number, (timestamp, relative) in enumerate(TIME_ENTRY.iter_unpack(_whole(data, TIME_ENTRY))):
        if timestamp == 0 and relative == 0:
            return
        if number > 0 and relative == 0:
            return
        yield {"timestamp": timestamp, "offset": base_offset + relative}
    yield from _odd_tail(data, TIME_ENTRY)


def snapshot_entries(data: Buffer, path: Path) -> Iterator[Entry]:
    """One entry per producer id."""
    states = ProducerStates()
    try:
        states.load_snapshot(bytes(data), end_offset=int(path.stem), path=str(path))
    except (ValueError, struct.error) as error:
        yield _fault(f"the snapshot can't be decoded: {error}")
        return
    for state in sorted(states, key=lambda each: each.producer_id):
        entry: Entry = {
            "producerId": state.producer_id,
            "producerEpoch": state.epoch,
            "coordinatorEpoch": state.coordinator_epoch,
            "currentTxnFirstOffset": state.txn_first_offset,
            "lastTimestamp": state.last_timestamp,
        }
        if state.batches:
            last = state.batches[0]
            entry |= {
                "firstSequence": last.base_sequence,
                "lastSequence": last.last_sequence,
                "lastOffset": last.last_offset,
                "offsetDelta": last.offset_delta,
                "timestamp": last.timestamp,
            }
        yield entry


def epoch_entries(data: bytes) -> Iterator[Entry]:
    """One entry per leader epoch."""
    try:
        lines = data.decode("ascii").splitlines()
        version, count = int(lines[0]), int(lines[1])
        pairs = [tuple(map(int, line.split())) for line in lines[2:] if line]
        entries = [{"epoch": epoch, "startOffset": start} for epoch, start in pairs]
    except (ValueError, IndexError, UnicodeDecodeError) as error:
        yield _fault(f"the checkpoint can't be decoded: {error}")
        return
    if version != 0:
        yield _fault(f"version {version} is newer than this raylog reads (0)")
        return
    yield from entries
    if len(entries) != count:
        yield _fault(f"{len(entries)} entries where {count} are announced")


def text(entry: Entry) -> str:
    """An entry as ``DumpLogSegments`` prints it."""
    if "fault" in entry:
        return f"Found {entry['fault']}"
    shown = dict(entry)
    prefix = ""
    if "baseOffset" in shown:
        shown["deleteHorizonMs"] = _optional_long(shown["deleteHorizonMs"])
    elif "keySize" in shown:
        prefix = "| "
        if "headerKeys" in shown:
            shown["headerKeys"] = "[" + ",".join(shown["headerKeys"]) + "]"
        _base64_as_text(shown, "key")
        _base64_as_text(shown, "payload")
    elif "record" in shown:
        prefix = "| "
    elif "currentTxnFirstOffset" in shown:
        shown["currentTxnFirstOffset"] = _optional_long(shown["currentTxnFirstOffset"])
    return prefix + " ".join(f"{name}: {_plain(value)}" for name, value in shown.items() if value is not None)


def _batch_entry(batch: BatchView, valid: bool) -> Entry:
    codec = batch.compression
    return {
        "baseOffset": batch.base_offset,
        "lastOffset": batch.last_offset,
        "count": batch.record_count,
        "baseSequence": batch.base_sequence,
        "lastSequence": batch.last_sequence,
        "producerId": batch.producer_id,
        "producerEpoch": batch.producer_epoch,
        "partitionLeaderEpoch": batch.partition_leader_epoch,
        "isTransactional": batch.is_transactional,
        "isControl": batch.is_control,
        "deleteHorizonMs": batch.base_timestamp if batch.has_delete_horizon else None,
        "position": batch.position,
        TIMESTAMP_TYPES[batch.timestamp_type]: batch.max_timestamp,
        "size": batch.size,
        "magic": batch.magic,
        "compresscodec": COMPRESSION_NAMES[codec] if codec < len(COMPRESSION_NAMES) else f"unknown({codec})",
        "crc": batch.crc,
        "isvalid": valid,
    }


def _record_entries(batch: BatchView, *, contents: bool, read: ReadRecord) -> Iterator[Entry]:
    for record in decode(batch):
        sequence = NO_SEQUENCE
        if batch.base_sequence != NO_SEQUENCE:
            sequence = (batch.base_sequence + record.offset - batch.base_offset) & SEQUENCE_MASK
        entry: Entry = {
            "offset": record.offset,
            TIMESTAMP_TYPES[record.timestamp_type]: record.timestamp,
            "keySize": -1 if record.key is None else len(record.key),
            "valueSize": -1 if record.value is None else len(record.value),
            "sequence": sequence,
            "headerKeys": [name for name, _ in record.headers],
        }
        if batch.is_control:
            entry |= _control(batch, record)
        elif contents:
            entry |= read(record.offset, record.key, record.value)
        yield entry


def _control(batch: BatchView, record: Record) -> Entry:
    """What a control record is: the end of a transaction, or something of Kafka's own Raft log."""
    number = control_type(record.key, batch.position)
    if number not in set(Marker):
        return {"controlType": f"{CONTROL_TYPES.get(number, 'UNKNOWN')}({number})"}
    control = read_control_batch(batch)
    assert control.marker is not None, number
    return {"endTxnMarker": control.marker.name, "coordinatorEpoch": control.coordinator_epoch}


def _as_text(offset: int, key: bytes | None, value: bytes | None) -> Entry:
    return text_or_base64("key", key) | text_or_base64("payload", value)


def as_documents(documents_of: Callable[[int, bytes | None, bytes | None], tuple[Any, Any]]) -> ReadRecord:
    """How ``entries_of`` reads records of an internal topic, whose keys and values are documents."""

    def read(offset: int, key: bytes | None, value: bytes | None) -> Entry:
        shown_key, payload = documents_of(offset, key, value)
        return {"key": shown_key, "payload": payload}

    return read


as_offsets = as_documents(offsets_records.documents_of)
as_transaction = as_documents(transaction_records.documents_of)


def _message_entries(content: memoryview, position: int, deep: bool, read: ReadRecord | None) -> Iterator[Entry]:
    """A message of format 0 or 1; what a wrapper holds follows if ``deep``, and ``read`` gives keys
    and values.
    """
    try:
        message = message_of(content)
    except KafkaError as error:
        yield _fault(f"the message at position {position} fails: {error}")
        return
    kind = TIMESTAMP_TYPES[message.is_stamped_by_server] if message.magic else "NoTimestampType"
    codec = message.compression
    yield {
        "offset": message.offset,
        "position": position,
        kind: message.timestamp,
        "size": len(content),
        "magic": message.magic,
        "compresscodec": COMPRESSION_NAMES[codec] if codec < len(COMPRESSION_NAMES) else f"unknown({codec})",
        "crc": int.from_bytes(content[12:16], "big"),
        "isvalid": True,
    }
    try:
        records = records_of(message) if deep else []
    except KafkaError as error:
        yield _fault(f"the wrapper at position {position} can't be decoded: {error}")
        return
    for record in records:
        entry: Entry = {
            "offset": record.offset,
            kind: record.timestamp,
            "keySize": -1 if record.key is None else len(record.key),
            "valueSize": -1 if record.value is None else len(record.value),
        }
        if read is not None:
            entry |= read(record.offset, record.key, record.value)
        yield entry


def _base64_as_text(shown: Entry, name: str) -> None:
    if f"{name}Base64" in shown:
        shown[name] = "base64:" + shown.pop(f"{name}Base64")


def _optional_long(value: int | None) -> str:
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _whole(data: Buffer, entry: struct.Struct) -> memoryview:
    return memoryview(data)[: len(data) // entry.size * entry.size]


def _odd_tail(data: Buffer, entry: struct.Struct) -> Iterator[Entry]:
    if len(data) % entry.size:
        yield _fault(f"{len(data) % entry.size} invalid bytes at the end: the length is no multiple of {entry.size}")


def _fault(reason: str) -> Entry:
    return {"fault": reason}
