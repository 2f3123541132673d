"""The records of ``__consumer_offsets`` as documents, as Apache Kafka's ``--offsets-decoder`` prints
them: ``{"type": "1", "data": {…}}`` for a key, ``{"version": "3", "data": {…}}`` for a value, both
with the names of Kafka's schemas. What consumers say to each other inside a group's record is
decoded, too.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

from raylog.errors import ProtocolError
from raylog.groups.consumer_protocol import PROTOCOL_TYPE, decode_assignment, decode_subscription
from raylog.groups.records import GroupKey, GroupValue, MemberValue, OffsetValue, UnknownKey, decode
from raylog.types import TopicPartition

DELETE = "<DELETE>"
"""The value of a tombstone."""

Document = dict[str, Any] | str


def documents_of(offset: int, key: bytes | None, value: bytes | None) -> tuple[Document, Document | None]:
    """Key and value of a record. What cannot be read has a sentence for a key, and no value."""
    try:
        record = decode(key, value)
    except ProtocolError as error:
        return f"Error at offset {offset}, skipping. {error}", None
    if isinstance(record, UnknownKey):
        return f"Unknown record type {record.version} at offset {offset}, skipping.", None
    assert key is not None
    if isinstance(record.key, GroupKey):
        name: dict[str, Any] = {"group": record.key.group_id}
    else:
        name = {"group": record.key.group_id, "topic": record.key.topic, "partition": record.key.partition}
    shown = {"type": str(_version(key)), "data": name}
    if value is None or record.value is None:
        return shown, DELETE
    version = _version(value)
    data = _group(record.value, version) if isinstance(record.value, GroupValue) else _offset(record.value, version)
    return shown, {"version": str(version), "data": data}


def _version(data: bytes) -> int:
    return int.from_bytes(data[:2], "big", signed=True)


def _offset(value: OffsetValue, version: int) -> dict[str, Any]:
    """Only the fields that this version has."""
    data: dict[str, Any] = {"offset": value.offset}
    if version >= 3:
        data["leaderEpoch"] = value.leader_epoch
    data |= {"metadata": value.metadata, "commitTimestamp": value.commit_timestamp}
    if version == 1:
        data["expireTimestamp"] = value.expire_timestamp
    if value.topic_id is not None:
        data["topicId"] = base64.urlsafe_b64encode(value.topic_id.bytes).decode().rstrip("=")
    return data


def _group(value: GroupValue, version: int) -> dict[str, Any]:
    data: dict[str, Any] = {
        "protocolType": value.protocol_type,
        "generation": value.generation,
        "protocol": value.protocol,
        "leader": value.leader,
    }
    if version >= 2:
        data["currentStateTimestamp"] = value.current_state_timestamp
    is_consumers = value.protocol_type == PROTOCOL_TYPE
    return data | {"members": [_member(member, version, is_consumers) for member in value.members]}


def _member(member: MemberValue, version: int, is_consumers: bool) -> dict[str, Any]:
    data: dict[str, Any] = {"memberId": member.member_id}
    if version >= 3:
        data["groupInstanceId"] = member.group_instance_id
    data |= {"clientId": member.client_id, "clientHost": member.client_host}
    if version >= 1:
        data["rebalanceTimeout"] = member.rebalance_timeout_ms
    return data | {
        "sessionTimeout": member.session_timeout_ms,
        "subscription": _subscription(member.subscription) if is_consumers else _bytes(member.subscription),
        "assignment": _assignment(member.assignment) if is_consumers else _bytes(member.assignment),
    }


def _subscription(raw: bytes) -> Document | None:
    try:
        read = decode_subscription(raw)
    except ProtocolError:
        return _bytes(raw)
    version = _version(raw)
    data: dict[str, Any] = {"topics": list(read.topics), "userData": _bytes(read.user_data)}
    if version >= 1:
        data["ownedPartitions"] = _by_topic(read.owned)
    if version >= 2:
        data["generationId"] = read.generation
    if version >= 3:
        data["rackId"] = read.rack
    return data


def _assignment(raw: bytes) -> Document | None:
    try:
        read = decode_assignment(raw)
    except ProtocolError:
        return _bytes(raw)
    if not raw:
        return ""
    return {"assignedPartitions": _by_topic(read.partitions), "userData": _bytes(read.user_data)}


def _by_topic(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    found: dict[str, list[int]] = {}
    for topic, partition in partitions:
        found.setdefault(topic, []).append(partition)
    return [{"topic": topic, "partitions": numbers} for topic, numbers in found.items()]


def _bytes(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()
