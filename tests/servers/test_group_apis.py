"""Kafka's group requests and answers in each version that is spoken: what comes in, and that every answer has its bytes."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from raylog.groups import requests
from raylog.groups.requests import GroupReply
from raylog.kafka import table
from raylog.kafka.spec import ApiSpec
from raylog.server.apis import groups as apis
from raylog.server.apis.entities import build, module_of, request_class
from raylog.server.apis.groups import Caller, GroupApi
from raylog.types import TopicPartition
from raylog.wire.frames import encode_response

pytestmark = pytest.mark.core

CALLER = Caller("me", "/10.0.0.1", 3)
BY_SPEC = {api.spec: api for api in apis.APIS}
EVERY = [
    pytest.param(api, version, id=f"{api.spec.name}-{version}")
    for api in apis.APIS
    for version in api.spec.spoken_inside
]
FENCED = ErrorCode.fenced_instance_id.value


def ms(count: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=count)


def body_of(spec: ApiSpec, version: int) -> Any:
    """A request with everything that its version has room for."""
    cls = request_class(spec, version)
    module = module_of(cls)

    def nested(kind: str, /, **values: Any) -> Any:
        found = getattr(module, kind, None)
        return build(found, **values) if found is not None else None

    values: dict[str, Any] = {
        "group_id": "g",
        "member_id": "m",
        "group_instance_id": "i",
        "generation_id": 4,
        "generation_id_or_member_epoch": 4,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "session_timeout": ms(10_000),
        "rebalance_timeout": ms(60_000),
        "reason": "because",
        "retention_time": ms(-1),
        "require_stable": False,
        "include_authorized_operations": False,
        "states_filter": ("Stable",),
        "types_filter": ("classic",),
        "groups_names": ("g", "h"),
        "protocols": (nested("JoinGroupRequestProtocol", name="range", metadata=b"x"),),
        "assignments": (nested("SyncGroupRequestAssignment", member_id="m", assignment=b"y"),),
        "members": (nested("MemberIdentity", member_id="m", group_instance_id="i", reason=None),),
    }
    if spec is table.DESCRIBE_GROUPS:
        values["groups"] = ("g", "h")
    elif spec is table.OFFSET_COMMIT:
        part = nested(
            "OffsetCommitRequestPartition",
            partition_index=1,
            committed_offset=7,
            committed_leader_epoch=2,
            committed_metadata=None,
        )
        values["topics"] = (nested("OffsetCommitRequestTopic", name="t", partitions=(part,)),)
    elif spec is table.TXN_OFFSET_COMMIT:
        part = nested(
            "TxnOffsetCommitRequestPartition",
            partition_index=1,
            committed_offset=7,
            committed_leader_epoch=2,
            committed_metadata=None,
        )
        values |= {"transactional_id": "x", "producer_id": 9, "producer_epoch": 3}
        values["topics"] = (nested("TxnOffsetCommitRequestTopic", name="t", partitions=(part,)),)
    elif spec is table.OFFSET_FETCH:
        topics = (
            nested("OffsetFetchRequestTopic", name="t", partition_indexes=(1, 2))
            or nested("OffsetFetchRequestTopics", name="t", partition_indexes=(1, 2)),
        )
        values["topics"] = topics
        values["groups"] = tuple(
            nested("OffsetFetchRequestGroup", group_id=each, member_id=None, member_epoch=-1, topics=topics)
            for each in ("g", "h")
        )
    elif spec is table.OFFSET_DELETE:
        part = nested("OffsetDeleteRequestPartition", partition_index=1)
        values["topics"] = (nested("OffsetDeleteRequestTopic", name="t", partitions=(part,)),)
    return build(cls, **values)


def reply_to(request: requests.Request, error: int) -> GroupReply:
    match request:
        case requests.JoinGroup():
            member = requests.JoinedMember("m", "i", b"x")
            return requests.JoinedGroup(error, "m", 5, "consumer", None if error else "range", "m", False, (member,))
        case requests.SyncGroup():
            return requests.SyncedGroup(error, "consumer", "range", b"y")
        case requests.GroupHeartbeat():
            return requests.HeartbeatAnswer(error)
        case requests.LeaveGroup():
            return requests.LeftGroup(0, (requests.LeftMember("m", "i", error),))
        case requests.OffsetCommit() | requests.TxnOffsetCommit():
            return requests.OffsetsCommitted((requests.PartitionError("t", 1, error),))
        case requests.OffsetFetch():
            if error:
                return requests.OffsetsFetched(error)
            return requests.OffsetsFetched(
                0, (requests.FetchedOffset("t", 1, 7, 2, "m"), requests.FetchedOffset("t", 2))
            )
        case requests.OffsetDelete():
            return requests.OffsetsDeleted(0, (requests.PartitionError("t", 1, error),))
        case requests.DescribeGroup():
            member = requests.MemberDescription("m", "i", "me", "/10.0.0.1", b"x", b"y")
            return requests.DescribedGroupState(error, request.group_id, "Stable", "consumer", "range", (member,))
        case requests.ListGroups():
            return requests.GroupsListed(error, (requests.ListedGroup("g", "consumer", "Stable"),))
        case requests.DeleteGroup():
            return requests.GroupDeleted(error)


@pytest.mark.parametrize(("api", "version"), EVERY)
def test_every_version_is_understood_and_every_answer_has_its_bytes(api: GroupApi, version: int) -> None:
    body = body_of(api.spec, version)
    asked = api.to_requests(body, version, CALLER)
    for error in (0, FENCED):
        entity = api.to_entity(body, [reply_to(each, error) for each in asked], version)
        data = b"".join(bytes(part) for part in encode_response(entity, 1))
        assert error == 0 or FENCED.to_bytes(2, "big") in data, "the error is somewhere in it"


def test_requests_carry_what_their_version_says() -> None:
    (join,) = BY_SPEC[table.JOIN_GROUP].to_requests(body_of(table.JOIN_GROUP, 0), 0, CALLER)
    assert isinstance(join, requests.JoinGroup)
    assert join.rebalance_timeout_ms == join.session_timeout_ms == 10_000 and not join.needs_member_id
    (join,) = BY_SPEC[table.JOIN_GROUP].to_requests(body_of(table.JOIN_GROUP, 9), 9, CALLER)
    assert isinstance(join, requests.JoinGroup)
    assert (join.rebalance_timeout_ms, join.group_instance_id, join.client_host) == (60_000, "i", "/10.0.0.1")
    assert join.needs_member_id and join.can_skip_assignment and join.connection == 3
    (commit,) = BY_SPEC[table.OFFSET_COMMIT].to_requests(body_of(table.OFFSET_COMMIT, 3), 3, CALLER)
    assert isinstance(commit, requests.OffsetCommit)
    assert commit.retention_ms == -1 and commit.partitions[0].leader_epoch == -1 and commit.partitions[0].metadata == ""
    (commit,) = BY_SPEC[table.OFFSET_COMMIT].to_requests(body_of(table.OFFSET_COMMIT, 9), 9, CALLER)
    assert isinstance(commit, requests.OffsetCommit) and commit.partitions[0].leader_epoch == 2
    fetch = BY_SPEC[table.OFFSET_FETCH].to_requests(body_of(table.OFFSET_FETCH, 9), 9, CALLER)
    both = (TopicPartition("t", 1), TopicPartition("t", 2))
    assert fetch == [requests.OffsetFetch("g", both), requests.OffsetFetch("h", both)]
    stable = dataclasses.replace(body_of(table.OFFSET_FETCH, 7), require_stable=True)
    assert BY_SPEC[table.OFFSET_FETCH].to_requests(stable, 7, CALLER)[0].require_stable  # type: ignore[union-attr]
    (beat,) = BY_SPEC[table.HEARTBEAT].to_requests(body_of(table.HEARTBEAT, 4), 4, CALLER)
    assert isinstance(beat, requests.GroupHeartbeat) and beat.park_ms > 0, "a native member may wait"
    (beat,) = BY_SPEC[table.HEARTBEAT].to_requests(body_of(table.HEARTBEAT, 4), 4, Caller("me", "/x", None))
    assert isinstance(beat, requests.GroupHeartbeat) and beat.park_ms == 0


@pytest.mark.parametrize("version", table.TXN_OFFSET_COMMIT.versions)
def test_a_transactional_commit_carries_what_its_version_says(version: int) -> None:
    spec = table.TXN_OFFSET_COMMIT
    (commit,) = BY_SPEC[spec].to_requests(body_of(spec, version), version, CALLER)
    assert isinstance(commit, requests.TxnOffsetCommit)
    assert (commit.producer_id, commit.producer_epoch, commit.membership.transactional_id) == (9, 3, "x")
    assert (commit.membership.adds, commit.membership.is_abortable) == (version >= 5, version >= 4)
    named = ("m", 4, "i") if version >= 3 else ("", -1, None)
    assert (commit.member_id, commit.generation, commit.group_instance_id) == named
    assert commit.partitions[0].leader_epoch == (2 if version >= 2 else -1)


def test_a_group_that_is_not_there_is_dead_or_not_found() -> None:
    api = BY_SPEC[table.DESCRIBE_GROUPS]
    dead = [requests.DescribedGroupState(0, each, "Dead") for each in ("g", "h")]
    assert api.to_entity(body_of(api.spec, 5), dead, 5).groups[0].error_code == ErrorCode.none
    assert api.to_entity(body_of(api.spec, 6), dead, 6).groups[0].error_code == ErrorCode.group_id_not_found


def test_the_error_of_an_old_offset_fetch_is_on_every_partition() -> None:
    api = BY_SPEC[table.OFFSET_FETCH]
    entity = api.to_entity(body_of(api.spec, 1), [requests.OffsetsFetched(ErrorCode.not_coordinator.value)], 1)
    assert [each.error_code for each in entity.topics[0].partitions] == [ErrorCode.not_coordinator] * 2
