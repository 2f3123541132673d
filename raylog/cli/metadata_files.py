"""Decodes the files of a controller's folder, without a cluster: what ``raylog dump-log`` prints of
the metadata.

Entries are dicts as in ``raylog.cli.log_files``: one per entry of ``metadata.log`` with its records
below it, one per snapshot (``<end index>-<term>.checkpoint``) with the records of its state, one
for ``quorum-state``. Damage is an entry of its own (``fault``).
"""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from raylog.configs.certificate_configs import certificate_config
from raylog.configs.token_configs import SECRET_KEY
from raylog.configs.topic_configs import ConfigValueType
from raylog.disks.disk import encode_id
from raylog.errors import RaylogError
from raylog.metadata.records import (
    NO_TIME,
    BrokerConfigChanged,
    Record,
    StaticConfigsChanged,
    decode_batch,
    decode_decision,
)
from raylog.raft.messages import Entry, EntryKind, decode_voters
from raylog.raft.metadata_log import LOG_NAME, STATE_NAME, read_entries, read_snapshot, read_state
from raylog.records.batch import Buffer

_SNAPSHOT_NAME = re.compile(r"\d{20}-\d{10}\.checkpoint")


def is_metadata(path: Path) -> bool:
    """Whether the name is one of a controller's files."""
    return path.name in (LOG_NAME, STATE_NAME) or _SNAPSHOT_NAME.fullmatch(path.name) is not None


def metadata_entries(path: Path, data: Buffer) -> Iterator[dict[str, Any]]:
    """The entries of a file, chosen by its name."""
    content = bytes(data)
    try:
        if path.name == LOG_NAME:
            entries, end = read_entries(content, str(path))
            for entry in entries:
                yield from _entry(entry)
            if end < len(content):
                yield {
                    "fault": f"{len(content) - end} bytes at position {end} that are no whole entry: a write was interrupted"
                }
        elif path.name == STATE_NAME:
            state = read_state(content, str(path))
            voted_for = encode_id(state.voted_for) if state.voted_for is not None else None
            shown: dict[str, Any] = {"leaderEpoch": state.term, "votedFor": voted_for}
            if state.recovering_term is not None:
                shown["recoveringEpoch"] = state.recovering_term
            yield shown
        else:
            snapshot = read_snapshot(content, str(path))
            yield {
                "lastOffset": snapshot.last_index,
                "lastEpoch": snapshot.last_term,
                "clusterId": snapshot.cluster_id,
                "voters": [encode_id(voter) for voter in snapshot.voters],
                "size": len(snapshot.data),
            }
            if snapshot.data:
                yield from _records(decode_batch(snapshot.data))
    except RaylogError as error:
        yield {"fault": str(error)}


def _entry(entry: Entry) -> Iterator[dict[str, Any]]:
    shown = {"offset": entry.index, "leaderEpoch": entry.term, "kind": entry.kind.name, "size": len(entry.data)}
    match entry.kind:
        case EntryKind.VOTERS:
            yield shown | {"voters": [encode_id(voter) for voter in decode_voters(entry.data)]}
        case EntryKind.LEADER:
            yield shown
        case EntryKind.RECORDS:
            decided_ms, records = decode_decision(entry.data)
            yield shown if decided_ms == NO_TIME else shown | {"timestamp": decided_ms}
            yield from _records(records)


def _records(records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    for record in records:
        if isinstance(record, StaticConfigsChanged):
            told = tuple((name, "(redacted)" if name == SECRET_KEY else value) for name, value in record.configs)
            record = dataclasses.replace(record, configs=told)
        elif isinstance(record, BrokerConfigChanged) and record.value and _is_secret(record.key):
            record = dataclasses.replace(record, value="(redacted)")
        yield {"record": type(record).__name__} | {
            field.name: _plain(getattr(record, field.name)) for field in dataclasses.fields(record)
        }


def _is_secret(name: str) -> bool:
    """Whether a broker's config is the key of a listener's certificate, or a password."""
    config = certificate_config(name)
    return config is not None and config.type is ConfigValueType.PASSWORD


def _plain(value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        return encode_id(value)
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _plain(getattr(value, field.name)) if field.repr else "(redacted)"  # keys of users
            for field in dataclasses.fields(value)
        }
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value
