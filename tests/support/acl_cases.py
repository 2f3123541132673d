"""Requests of each API that name a topic, a group and a transactional id, and the ACLs that each of them needs."""

from __future__ import annotations

import dataclasses
import datetime
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from raylog.kafka import table
from raylog.kafka.spec import ApiSpec
from raylog.listener.tokens import TOKEN_APIS
from raylog.security.acl import AclBinding
from raylog.security.permissions import Operation, PatternType, PermissionType, Resource
from raylog.wire.schema import fields_of

TOPIC, GROUP, TRANSACTION, CLUSTER = "t", "g", "x", "kafka-cluster"
GONE = "gone"  # no topic has this name
OF_TOPIC = ErrorCode.topic_authorization_failed
OF_GROUP = ErrorCode.group_authorization_failed
OF_CLUSTER = ErrorCode.cluster_authorization_failed
OF_TRANSACTION = ErrorCode.transactional_id_authorization_failed
DENIALS = {OF_TOPIC, OF_GROUP, OF_CLUSTER, OF_TRANSACTION}
FAR = 7  # no topic has a partition, and the cluster no broker, of this number


def acl(
    operation: Operation,
    resource: Resource,
    name: str,
    *,
    pattern: PatternType = PatternType.LITERAL,
    permission: PermissionType = PermissionType.ALLOW,
    principal: str = "User:ANONYMOUS",
    host: str = "*",
) -> AclBinding:
    return AclBinding(resource, name, pattern, principal, host, operation, permission)


def topic(operation: Operation, name: str = TOPIC) -> AclBinding:
    return acl(operation, Resource.TOPIC, name)


def group(operation: Operation) -> AclBinding:
    return acl(operation, Resource.GROUP, GROUP)


def transaction(operation: Operation) -> AclBinding:
    return acl(operation, Resource.TRANSACTIONAL_ID, TRANSACTION)


def cluster(operation: Operation) -> AclBinding:
    return acl(operation, Resource.CLUSTER, CLUSTER)


class Step(NamedTuple):
    """``error``: without any of the ACLs."""

    error: ErrorCode
    any_of: tuple[AclBinding, ...]


@dataclasses.dataclass(frozen=True)
class Case:
    """A request of each of these versions, and what it needs. ``values``: of fields, by name."""

    spec: ApiSpec
    steps: tuple[Step, ...]
    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    versions: range | None = None
    note: str = ""

    def tried_versions(self) -> list[int]:
        spoken = self.versions or self.spec.versions
        return sorted({spoken[0], spoken[-1]})

    def body(self, version: int, topic_id: uuid.UUID) -> Any:
        kind = load_request_schema(self.spec.key, version)
        return _filled(kind, {**USUAL, "topic_id": topic_id, **self.values})

    def __str__(self) -> str:
        return f"{self.spec.name}{self.note}"


USUAL: dict[str, Any] = {
    "name": TOPIC,
    "topic": TOPIC,
    "group_id": GROUP,
    "transactional_id": TRANSACTION,
    "v3_and_below_transactional_id": TRANSACTION,
    "acks": -1,
    "validate_only": True,
    "broker_id": FAR,
    "partition": FAR,
    "partition_index": FAR,
    "partition_indexes": (FAR,),
    "partition_number": FAR,
    "partitions": (FAR,),
    "index": FAR,
    "replica_id": -1,
    "session_id": 0,
    "session_epoch": -1,
    "forgotten_topics_data": (),
    "allow_auto_topic_creation": False,
    "resource_name": TOPIC,
    "member_id": "",
    "max_wait": datetime.timedelta(0),
    "max_bytes": 1 << 20,
    "endpoint_type": 1,
    "states_filter": (),
    "types_filter": (),
    "state_filters": (),
    "producer_id_filters": (),
    "transactional_id_pattern": None,
    "resource_types": (),
    "cursor": None,
    "response_partition_limit": 100,
    "configuration_keys": None,
    "configs": (),
    "election_type": 0,
}


def _filled(kind: Any, values: dict[str, Any]) -> Any:
    """A request with one thing in every list."""
    plain: dict[str, Any] = {
        "string": "s",
        "int32": 1,
        "int64": 4,
        "int8": 1,
        "uuid": uuid.UUID(int=5),
        "bytes": b"b",
        "records": bytes(30),
    }
    plain |= dict.fromkeys(("timedelta_i32", "timedelta_i64"), datetime.timedelta(milliseconds=1_000))
    defaults = {each.name for each in dataclasses.fields(kind) if each.default is not dataclasses.MISSING}
    found: dict[str, Any] = {}
    for field in fields_of(kind):
        given = values.get(field.name, ...)
        if given is not ... and not (field.is_array and field.entity and given):
            found[field.name] = given
        elif field.is_array:
            found[field.name] = (_filled(field.entity, values) if field.entity else plain[field.kafka_type or ""],)
        elif field.name not in defaults:
            found[field.name] = (
                _filled(field.entity, values) if field.entity is not None else plain.get(field.kafka_type or "", 0)
            )
    return kind(**found)


def _steps(*steps: tuple[ErrorCode, tuple[AclBinding, ...]]) -> tuple[Step, ...]:
    return tuple(Step(*each) for each in steps)


O = Operation
WRITES_TRANSACTION = (OF_TRANSACTION, (transaction(O.WRITE),))
READS_GROUP = (OF_GROUP, (group(O.READ),))
READS_TOPIC = (OF_TOPIC, (topic(O.READ),))
DESCRIBES_TOPIC = (OF_TOPIC, tuple(map(topic, (O.DESCRIBE, O.READ, O.WRITE, O.DELETE, O.ALTER))))
DESCRIBES_GROUP = (OF_GROUP, tuple(map(group, (O.DESCRIBE, O.READ, O.DELETE))))
ALTERS_CLUSTER = (OF_CLUSTER, (cluster(O.ALTER),))
DESCRIBES_CLUSTER = (OF_CLUSTER, (cluster(O.DESCRIBE), cluster(O.ALTER)))
_SET = {"configs": (), "resource_type": 2}
_BROKERS = {"configs": (), "resource_type": 4, "resource_name": "0"}
_LOGGERS = {"configs": (), "resource_type": 8, "resource_name": "0"}
_GROUPS = {"configs": (), "resource_type": 32, "resource_name": GROUP}


def _configs() -> Iterator[Case]:
    for spec, operation, implying in (
        (table.DESCRIBE_CONFIGS, O.DESCRIBE_CONFIGS, (O.DESCRIBE_CONFIGS, O.ALTER_CONFIGS)),
        (table.ALTER_CONFIGS, O.ALTER_CONFIGS, (O.ALTER_CONFIGS,)),
        (table.INCREMENTAL_ALTER_CONFIGS, O.ALTER_CONFIGS, (O.ALTER_CONFIGS,)),
    ):
        assert operation in implying
        yield Case(spec, _steps((OF_TOPIC, tuple(map(topic, implying)))), _SET, note=" of a topic")
        yield Case(spec, _steps((OF_CLUSTER, tuple(map(cluster, implying)))), _BROKERS, note=" of a broker")
        yield Case(spec, _steps((OF_CLUSTER, tuple(map(cluster, implying)))), _LOGGERS, note=" of a broker's loggers")
        yield Case(spec, _steps((OF_GROUP, tuple(map(group, implying)))), _GROUPS, note=" of a group")


CASES: tuple[Case, ...] = (
    Case(table.PRODUCE, _steps(WRITES_TRANSACTION, (OF_TOPIC, (topic(O.WRITE),))), note=" in a transaction"),
    Case(table.PRODUCE, _steps((OF_TOPIC, (topic(O.WRITE),))), {"transactional_id": None}),
    Case(table.FETCH, _steps(READS_TOPIC)),
    Case(table.LIST_OFFSETS, _steps(DESCRIBES_TOPIC)),
    Case(table.METADATA, _steps(DESCRIBES_TOPIC), versions=range(14)),
    Case(table.OFFSET_COMMIT, _steps(READS_GROUP, READS_TOPIC)),
    Case(table.OFFSET_FETCH, _steps(DESCRIBES_GROUP, DESCRIBES_TOPIC)),
    Case(table.FIND_COORDINATOR, _steps(DESCRIBES_GROUP), {"key": GROUP, "coordinator_keys": (GROUP,), "key_type": 0}),
    Case(
        table.FIND_COORDINATOR,
        _steps((OF_TRANSACTION, (transaction(O.DESCRIBE), transaction(O.WRITE)))),
        {"key": TRANSACTION, "coordinator_keys": (TRANSACTION,), "key_type": 1},
        versions=range(1, 7),
        note=" of a transaction",
    ),
    Case(table.JOIN_GROUP, _steps(READS_GROUP), {"session_timeout": datetime.timedelta(milliseconds=1)}),
    Case(table.HEARTBEAT, _steps(READS_GROUP)),
    Case(table.LEAVE_GROUP, _steps(READS_GROUP)),
    Case(table.SYNC_GROUP, _steps(READS_GROUP)),
    Case(table.DESCRIBE_GROUPS, _steps(DESCRIBES_GROUP), {"groups": (GROUP,)}),
    Case(
        table.CREATE_TOPICS,
        _steps((OF_TOPIC, (topic(O.CREATE, GONE), cluster(O.CREATE)))),
        {"name": GONE, "assignments": ()},
    ),
    Case(
        table.DELETE_TOPICS,
        _steps((OF_TOPIC, (topic(O.DELETE, GONE),))),
        {"name": GONE, "topic_names": (GONE,), "topic_id": None},
    ),
    Case(table.DELETE_RECORDS, _steps((OF_TOPIC, (topic(O.DELETE),)))),
    Case(table.INIT_PRODUCER_ID, _steps(WRITES_TRANSACTION), note=" of a transaction"),
    Case(
        table.INIT_PRODUCER_ID,
        _steps((OF_CLUSTER, (cluster(O.IDEMPOTENT_WRITE), topic(O.WRITE), topic(O.WRITE, "*")))),
        {"transactional_id": None, "producer_id": -1, "producer_epoch": -1},
    ),
    Case(
        table.OFFSET_FOR_LEADER_EPOCH,
        _steps((OF_TOPIC, (topic(O.DESCRIBE), topic(O.READ), cluster(O.CLUSTER_ACTION)))),
    ),
    Case(
        table.ADD_PARTITIONS_TO_TXN,
        _steps(WRITES_TRANSACTION, (OF_TOPIC, (topic(O.WRITE),))),
        versions=range(4),
    ),
    Case(
        table.ADD_PARTITIONS_TO_TXN,
        _steps((OF_CLUSTER, (cluster(O.CLUSTER_ACTION),))),
        versions=range(4, 6),
        note=" of a broker",
    ),
    Case(table.ADD_OFFSETS_TO_TXN, _steps(WRITES_TRANSACTION, READS_GROUP)),
    Case(table.END_TXN, _steps(WRITES_TRANSACTION)),
    Case(table.WRITE_TXN_MARKERS, _steps((OF_CLUSTER, (cluster(O.ALTER), cluster(O.CLUSTER_ACTION))))),
    Case(table.TXN_OFFSET_COMMIT, _steps(WRITES_TRANSACTION, READS_GROUP, READS_TOPIC)),
    Case(table.DESCRIBE_ACLS, _steps(DESCRIBES_CLUSTER)),
    Case(table.CREATE_ACLS, _steps(ALTERS_CLUSTER)),
    Case(table.DELETE_ACLS, _steps(ALTERS_CLUSTER)),
    *_configs(),
    Case(table.ALTER_REPLICA_LOG_DIRS, _steps(ALTERS_CLUSTER)),
    Case(table.DESCRIBE_LOG_DIRS, _steps(DESCRIBES_CLUSTER), versions=range(3, 6)),
    Case(table.CREATE_PARTITIONS, _steps((OF_TOPIC, (topic(O.ALTER),))), {"assignments": None}),
    Case(table.DELETE_GROUPS, _steps((OF_GROUP, (group(O.DELETE),))), {"groups_names": (GROUP,)}),
    Case(table.DESCRIBE_USER_SCRAM_CREDENTIALS, _steps(DESCRIBES_CLUSTER)),
    Case(table.ALTER_USER_SCRAM_CREDENTIALS, _steps(ALTERS_CLUSTER)),
    Case(table.DESCRIBE_CLIENT_QUOTAS, _steps((OF_CLUSTER, (cluster(O.DESCRIBE_CONFIGS),)))),
    Case(
        table.ALTER_CLIENT_QUOTAS,
        _steps((OF_CLUSTER, (cluster(O.ALTER_CONFIGS),))),
        {"entity_type": "user", "entity_name": "u", "key": "producer_byte_rate", "value": 1.0},
    ),
    Case(table.ELECT_LEADERS, _steps(ALTERS_CLUSTER)),
    Case(table.ALTER_PARTITION_REASSIGNMENTS, _steps(ALTERS_CLUSTER)),
    Case(table.LIST_PARTITION_REASSIGNMENTS, _steps(DESCRIBES_CLUSTER)),
    Case(table.OFFSET_DELETE, _steps((OF_GROUP, (group(O.DELETE),)), READS_TOPIC)),
    Case(table.DESCRIBE_QUORUM, _steps(DESCRIBES_CLUSTER)),
    Case(table.DESCRIBE_PRODUCERS, _steps(READS_TOPIC)),
    Case(table.UNREGISTER_BROKER, _steps(ALTERS_CLUSTER)),
    Case(
        table.DESCRIBE_TRANSACTIONS,
        _steps((OF_TRANSACTION, (transaction(O.DESCRIBE), transaction(O.WRITE)))),
        {"transactional_ids": (TRANSACTION,)},
    ),
    Case(table.LIST_CONFIG_RESOURCES, _steps((OF_CLUSTER, (cluster(O.DESCRIBE_CONFIGS), cluster(O.ALTER_CONFIGS))))),
    Case(table.DESCRIBE_TOPIC_PARTITIONS, _steps(DESCRIBES_TOPIC)),
)

WITHOUT_DENIALS = {
    table.API_VERSIONS: "everybody may ask",
    table.SASL_HANDSHAKE: "nobody has authenticated yet",
    table.SASL_AUTHENTICATE: "nobody has authenticated yet",
    table.GET_TELEMETRY_SUBSCRIPTIONS: "whoever may connect may push metrics",
    table.PUSH_TELEMETRY: "whoever may connect may push metrics",
    table.DESCRIBE_CLUSTER: "everybody may see the brokers",
    **dict.fromkeys(TOKEN_APIS, "who has not proved who he is may not ask; see test_delegation_tokens.py"),
    table.LIST_GROUPS: "leaves out groups",
    table.LIST_TRANSACTIONS: "leaves out transactions",
}
"""The APIs that deny nothing, and why."""


def denials(entity: Any) -> set[ErrorCode]:
    """All errors of authorisation that stand in an answer."""
    if isinstance(entity, ErrorCode):
        return {entity} & DENIALS
    if isinstance(entity, tuple):
        return set().union(*map(denials, entity)) if entity else set()
    if dataclasses.is_dataclass(entity):
        return set().union(set(), *(denials(getattr(entity, each.name)) for each in dataclasses.fields(entity)))
    return set()
