"""Every Kafka API that raylog speaks, once: its key, name and versions stand nowhere else.

``serving`` makes the tables of one server out of the handlers that it has. ``authorised_by`` is
what Apache Kafka's authorizer asks; ``raylog.listener.access`` says how, and asks.

Versions that are not spoken: Produce 0–2 carry message sets v0/v1, which nobody writes any more,
and OffsetCommit and OffsetFetch of version 0 went to ZooKeeper. Produce is *claimed* from version 0
on, as Apache Kafka 4 does, because librdkafka concludes from the range which codecs there are
(KAFKA-18659). AddPartitionsToTxn names several transactions from version 4 on, and is sent by
leaders then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from raylog.kafka.spec import (
    NOT_SPOKEN,
    ApiOwner,
    ApiSpec,
    ErrorPlace,
    GroupSplit,
    PartitionSplit,
    Permission,
    ServerKind,
)
from raylog.security.permissions import Operation, Resource

HandlerT = TypeVar("HandlerT", bound=Callable[[Any], Any])


def _topic(operation: Operation) -> Permission:
    return Permission(operation, Resource.TOPIC)


def _group(operation: Operation) -> Permission:
    return Permission(operation, Resource.GROUP)


def _transactional_id(operation: Operation) -> Permission:
    return Permission(operation, Resource.TRANSACTIONAL_ID)


def _cluster(operation: Operation) -> Permission:
    return Permission(operation, Resource.CLUSTER)


# ------------------------------------------------------------------ partitions

PRODUCE = ApiSpec(
    0,
    "Produce",
    ApiOwner.LEADER,
    range(3, 14),
    (_topic(Operation.WRITE), _transactional_id(Operation.WRITE)),
    claimed=range(14),
    keeps_frame=True,
    partitions=PartitionSplit(
        "topic_data", "partition_data", "index",
        "responses", "TopicProduceResponse", "partition_responses", "PartitionProduceResponse", "index",
        has_timeout=True,
    ),
)  # fmt: skip
FETCH = ApiSpec(
    1,
    "Fetch",
    ApiOwner.REPLICA,
    range(4, 19),
    (_topic(Operation.READ),),
    keeps_frame=True,
    refused_at=ErrorPlace.OUTERMOST,
)
LIST_OFFSETS = ApiSpec(
    2,
    "ListOffsets",
    ApiOwner.LEADER,
    range(1, 12),
    (_topic(Operation.DESCRIBE),),
    partitions=PartitionSplit(
        "topics", "partitions", "partition_index",
        "topics", "ListOffsetsTopicResponse", "partitions", "ListOffsetsPartitionResponse", "partition_index",
    ),
)  # fmt: skip
DELETE_RECORDS = ApiSpec(
    21,
    "DeleteRecords",
    ApiOwner.LEADER,
    range(3),
    (_topic(Operation.DELETE),),
    partitions=PartitionSplit(
        "topics", "partitions", "partition_index",
        "topics", "DeleteRecordsTopicResult", "partitions", "DeleteRecordsPartitionResult", "partition_index",
        has_timeout=True,
    ),
)  # fmt: skip
OFFSET_FOR_LEADER_EPOCH = ApiSpec(
    23,
    "OffsetForLeaderEpoch",
    ApiOwner.LEADER,
    range(2, 5),
    (_topic(Operation.DESCRIBE), _cluster(Operation.CLUSTER_ACTION)),
    partitions=PartitionSplit(
        "topics", "partitions", "partition",
        "topics", "OffsetForLeaderTopicResult", "partitions", "EpochEndOffset", "partition",
    ),
)  # fmt: skip
DESCRIBE_PRODUCERS = ApiSpec(
    61,
    "DescribeProducers",
    ApiOwner.LEADER,
    range(1),
    (_topic(Operation.READ),),
    partitions=PartitionSplit(
        "topics", "partition_indexes", "",
        "topics", "TopicResponse", "partitions", "PartitionResponse", "partition_index",
    ),
)  # fmt: skip
WRITE_TXN_MARKERS = ApiSpec(
    27,
    "WriteTxnMarkers",
    ApiOwner.LEADER,
    range(1, 3),
    (_cluster(Operation.CLUSTER_ACTION), _cluster(Operation.ALTER)),
)
ALTER_REPLICA_LOG_DIRS = ApiSpec(34, "AlterReplicaLogDirs", ApiOwner.BROKER, range(1, 3), (_cluster(Operation.ALTER),))
DESCRIBE_LOG_DIRS = ApiSpec(
    35,
    "DescribeLogDirs",
    ApiOwner.PROCESSES,
    range(1, 6),
    (_cluster(Operation.DESCRIBE),),
    refused_at=ErrorPlace.OUTERMOST,
)

# ------------------------------------------------------------------ what a Broker knows

METADATA = ApiSpec(3, "Metadata", ApiOwner.BROKER, range(14), (_topic(Operation.DESCRIBE),), inside=range(4, 13))
FIND_COORDINATOR = ApiSpec(
    10,
    "FindCoordinator",
    ApiOwner.BROKER,
    range(7),
    (_group(Operation.DESCRIBE), _transactional_id(Operation.DESCRIBE)),
)
API_VERSIONS = ApiSpec(18, "ApiVersions", ApiOwner.SERVER, range(5), ())
DESCRIBE_CLUSTER = ApiSpec(60, "DescribeCluster", ApiOwner.BROKER, range(3), (), inside=range(3))
GET_TELEMETRY_SUBSCRIPTIONS = ApiSpec(71, "GetTelemetrySubscriptions", ApiOwner.BROKER, range(1), ())
PUSH_TELEMETRY = ApiSpec(72, "PushTelemetry", ApiOwner.BROKER, range(1), ())
LIST_CONFIG_RESOURCES = ApiSpec(
    74,
    "ListConfigResources",
    ApiOwner.BROKER,
    range(2),
    (_cluster(Operation.DESCRIBE_CONFIGS),),
    refused_at=ErrorPlace.OUTERMOST,
)
DESCRIBE_TOPIC_PARTITIONS = ApiSpec(
    75, "DescribeTopicPartitions", ApiOwner.BROKER, range(1), (_topic(Operation.DESCRIBE),)
)

# ------------------------------------------------------------------ groups

OFFSET_COMMIT = ApiSpec(
    8, "OffsetCommit", ApiOwner.GROUP_COORDINATOR, range(2, 10), (_group(Operation.READ), _topic(Operation.READ))
)
OFFSET_FETCH = ApiSpec(
    9,
    "OffsetFetch",
    ApiOwner.GROUP_COORDINATOR,
    range(1, 10),
    (_group(Operation.DESCRIBE), _topic(Operation.DESCRIBE)),
    groups=GroupSplit("groups", "groups", "group_id", first_version=8),
    refused_at=ErrorPlace.OUTERMOST,
)
TXN_OFFSET_COMMIT = ApiSpec(
    28,
    "TxnOffsetCommit",
    ApiOwner.GROUP_COORDINATOR,
    range(6),
    (Permission(Operation.WRITE, Resource.TRANSACTIONAL_ID), _group(Operation.READ), _topic(Operation.READ)),
)
JOIN_GROUP = ApiSpec(11, "JoinGroup", ApiOwner.GROUP_COORDINATOR, range(10), (_group(Operation.READ),))
HEARTBEAT = ApiSpec(12, "Heartbeat", ApiOwner.GROUP_COORDINATOR, range(5), (_group(Operation.READ),))
LEAVE_GROUP = ApiSpec(
    13,
    "LeaveGroup",
    ApiOwner.GROUP_COORDINATOR,
    range(6),
    (_group(Operation.READ),),
    refused_at=ErrorPlace.OUTERMOST,
)
SYNC_GROUP = ApiSpec(14, "SyncGroup", ApiOwner.GROUP_COORDINATOR, range(6), (_group(Operation.READ),))
DESCRIBE_GROUPS = ApiSpec(
    15,
    "DescribeGroups",
    ApiOwner.GROUP_COORDINATOR,
    range(7),
    (_group(Operation.DESCRIBE),),
    groups=GroupSplit("groups", "groups"),
)
LIST_GROUPS = ApiSpec(
    16,
    "ListGroups",
    ApiOwner.GROUP_COORDINATOR,
    range(6),
    (_cluster(Operation.DESCRIBE), _group(Operation.DESCRIBE)),
)
DELETE_GROUPS = ApiSpec(
    42,
    "DeleteGroups",
    ApiOwner.GROUP_COORDINATOR,
    range(3),
    (_group(Operation.DELETE),),
    groups=GroupSplit("groups_names", "results"),
)
OFFSET_DELETE = ApiSpec(
    47,
    "OffsetDelete",
    ApiOwner.GROUP_COORDINATOR,
    range(1),
    (_group(Operation.DELETE), _topic(Operation.READ)),
    refused_at=ErrorPlace.OUTERMOST,
)

# ------------------------------------------------------------------ transactions

ADD_PARTITIONS_TO_TXN = ApiSpec(
    24,
    "AddPartitionsToTxn",
    ApiOwner.TRANSACTION_COORDINATOR,
    range(6),
    (_transactional_id(Operation.WRITE), _topic(Operation.WRITE), _cluster(Operation.CLUSTER_ACTION)),
    groups=GroupSplit("transactions", "results_by_transaction", "transactional_id", first_version=4),
)
ADD_OFFSETS_TO_TXN = ApiSpec(
    25,
    "AddOffsetsToTxn",
    ApiOwner.TRANSACTION_COORDINATOR,
    range(5),
    (_transactional_id(Operation.WRITE), _group(Operation.READ)),
)
END_TXN = ApiSpec(26, "EndTxn", ApiOwner.TRANSACTION_COORDINATOR, range(6), (_transactional_id(Operation.WRITE),))
DESCRIBE_TRANSACTIONS = ApiSpec(
    65,
    "DescribeTransactions",
    ApiOwner.TRANSACTION_COORDINATOR,
    range(1),
    (_transactional_id(Operation.DESCRIBE), _topic(Operation.DESCRIBE)),
    groups=GroupSplit("transactional_ids", "transaction_states"),
)
LIST_TRANSACTIONS = ApiSpec(
    66,
    "ListTransactions",
    ApiOwner.TRANSACTION_COORDINATOR,
    range(3),
    (_transactional_id(Operation.DESCRIBE),),
    refused_at=ErrorPlace.OUTERMOST,
)

SASL_HANDSHAKE = ApiSpec(17, "SaslHandshake", ApiOwner.BROKER, range(2), ())
SASL_AUTHENTICATE = ApiSpec(36, "SaslAuthenticate", ApiOwner.BROKER, range(3), ())

# ------------------------------------------------------------------ the controller

DESCRIBE_ACLS = ApiSpec(29, "DescribeAcls", ApiOwner.CONTROLLER, range(1, 4), (_cluster(Operation.DESCRIBE),))
CREATE_ACLS = ApiSpec(30, "CreateAcls", ApiOwner.CONTROLLER, range(1, 4), (_cluster(Operation.ALTER),))
DELETE_ACLS = ApiSpec(31, "DeleteAcls", ApiOwner.CONTROLLER, range(1, 4), (_cluster(Operation.ALTER),))
CREATE_TOPICS = ApiSpec(
    19, "CreateTopics", ApiOwner.CONTROLLER, range(2, 8), (_cluster(Operation.CREATE), _topic(Operation.CREATE))
)
DELETE_TOPICS = ApiSpec(20, "DeleteTopics", ApiOwner.CONTROLLER, range(1, 7), (_topic(Operation.DELETE),))
INIT_PRODUCER_ID = ApiSpec(
    22,
    "InitProducerId",
    ApiOwner.CONTROLLER,
    range(6),
    (_transactional_id(Operation.WRITE), _cluster(Operation.IDEMPOTENT_WRITE), _topic(Operation.WRITE)),
    also=ApiOwner.TRANSACTION_COORDINATOR,
)
DESCRIBE_CONFIGS = ApiSpec(
    32,
    "DescribeConfigs",
    ApiOwner.CONTROLLER,
    range(1, 5),
    (_cluster(Operation.DESCRIBE_CONFIGS), _topic(Operation.DESCRIBE_CONFIGS), _group(Operation.DESCRIBE_CONFIGS)),
)
ALTER_CONFIGS = ApiSpec(
    33,
    "AlterConfigs",
    ApiOwner.CONTROLLER,
    range(3),
    (_cluster(Operation.ALTER_CONFIGS), _topic(Operation.ALTER_CONFIGS), _group(Operation.ALTER_CONFIGS)),
)
CREATE_PARTITIONS = ApiSpec(37, "CreatePartitions", ApiOwner.CONTROLLER, range(4), (_topic(Operation.ALTER),))
DESCRIBE_USER_SCRAM_CREDENTIALS = ApiSpec(
    50,
    "DescribeUserScramCredentials",
    ApiOwner.CONTROLLER,
    range(1),
    (_cluster(Operation.DESCRIBE),),
    refused_at=ErrorPlace.OUTERMOST,
)
ALTER_USER_SCRAM_CREDENTIALS = ApiSpec(
    51, "AlterUserScramCredentials", ApiOwner.CONTROLLER, range(1), (_cluster(Operation.ALTER),)
)
DESCRIBE_CLIENT_QUOTAS = ApiSpec(
    48,
    "DescribeClientQuotas",
    ApiOwner.CONTROLLER,
    range(2),
    (_cluster(Operation.DESCRIBE_CONFIGS),),
    refused_at=ErrorPlace.OUTERMOST,
)
ALTER_CLIENT_QUOTAS = ApiSpec(
    49, "AlterClientQuotas", ApiOwner.CONTROLLER, range(2), (_cluster(Operation.ALTER_CONFIGS),)
)
CREATE_DELEGATION_TOKEN = ApiSpec(
    38,
    "CreateDelegationToken",
    ApiOwner.CONTROLLER,
    range(1, 4),
    (Permission(Operation.CREATE_TOKENS, Resource.USER),),
)
RENEW_DELEGATION_TOKEN = ApiSpec(39, "RenewDelegationToken", ApiOwner.CONTROLLER, range(1, 3), ())
EXPIRE_DELEGATION_TOKEN = ApiSpec(40, "ExpireDelegationToken", ApiOwner.CONTROLLER, range(1, 3), ())
DESCRIBE_DELEGATION_TOKEN = ApiSpec(
    41,
    "DescribeDelegationToken",
    ApiOwner.CONTROLLER,
    range(1, 4),
    (
        Permission(Operation.DESCRIBE, Resource.DELEGATION_TOKEN),
        Permission(Operation.DESCRIBE_TOKENS, Resource.USER),
    ),
    refused_at=ErrorPlace.OUTERMOST,
)
ELECT_LEADERS = ApiSpec(
    43,
    "ElectLeaders",
    ApiOwner.CONTROLLER,
    range(3),
    (_cluster(Operation.ALTER),),
    refused_at=ErrorPlace.EVERYWHERE,
)
INCREMENTAL_ALTER_CONFIGS = ApiSpec(
    44,
    "IncrementalAlterConfigs",
    ApiOwner.CONTROLLER,
    range(2),
    (_cluster(Operation.ALTER_CONFIGS), _topic(Operation.ALTER_CONFIGS), _group(Operation.ALTER_CONFIGS)),
)
ALTER_PARTITION_REASSIGNMENTS = ApiSpec(
    45,
    "AlterPartitionReassignments",
    ApiOwner.CONTROLLER,
    range(2),
    (_cluster(Operation.ALTER),),
    refused_at=ErrorPlace.EVERYWHERE,
)
LIST_PARTITION_REASSIGNMENTS = ApiSpec(
    46, "ListPartitionReassignments", ApiOwner.CONTROLLER, range(1), (_cluster(Operation.DESCRIBE),)
)
DESCRIBE_QUORUM = ApiSpec(
    55,
    "DescribeQuorum",
    ApiOwner.CONTROLLER,
    range(3),
    (_cluster(Operation.DESCRIBE),),
    refused_at=ErrorPlace.OUTERMOST,
)
ALLOCATE_PRODUCER_IDS = ApiSpec(
    67, "AllocateProducerIds", ApiOwner.CONTROLLER, NOT_SPOKEN, (_cluster(Operation.CLUSTER_ACTION),), inside=range(1)
)
UNREGISTER_BROKER = ApiSpec(64, "UnregisterBroker", ApiOwner.CONTROLLER, range(1), (_cluster(Operation.ALTER),))

APIS: tuple[ApiSpec, ...] = tuple(
    sorted((each for each in list(globals().values()) if isinstance(each, ApiSpec)), key=lambda spec: spec.key)
)
"""All of them, by key."""
BY_KEY: Mapping[int, ApiSpec] = {spec.key: spec for spec in APIS}
assert len(BY_KEY) == len(APIS), "two APIs have one key"


def _owned_by(owner: ApiOwner) -> tuple[ApiSpec, ...]:
    return tuple(spec for spec in APIS if spec.owner is owner and spec.versions)


OF_LEADERS = tuple(spec for spec in _owned_by(ApiOwner.LEADER) if spec.partitions is not None)
OF_CONTROLLER, OF_GROUPS, OF_TRANSACTIONS = map(
    _owned_by, (ApiOwner.CONTROLLER, ApiOwner.GROUP_COORDINATOR, ApiOwner.TRANSACTION_COORDINATOR)
)
"""Those that a Broker passes on in one way each: split by partition, as they are, and split by
group or by transactional id. Without those that are spoken inside only.
"""
IN_TRANSACTIONS = (ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN)
"""Those that clients send to a coordinator in each transaction."""


# ------------------------------------------------------------------ what servers serve


class Serving(NamedTuple):
    """What a server needs to know of the Kafka APIs that it serves, as ``raylog.wire.server`` takes
    it.
    """

    handlers: dict[int, Any]
    versions: dict[int, range]
    claimed_versions: dict[int, range]
    undecoded: tuple[int, ...]


def served_by(server: ServerKind) -> tuple[ApiSpec, ...]:
    """The APIs that such a server serves, by key."""
    return tuple(spec for spec in APIS if spec.spoken_by(server))


def serving(server: ServerKind, handlers: Mapping[ApiSpec, HandlerT]) -> Serving:
    """The tables of a server that has these handlers: one for each API that is its own, and for no
    other.

    ApiVersions needs none, every server answers it out of these tables
    (``raylog.wire.api_versions``).
    """
    served = served_by(server)
    missing = [str(spec) for spec in served if spec not in handlers and spec.owner is not ApiOwner.SERVER]
    foreign = [str(spec) for spec in handlers if spec not in served]
    assert not missing, f"{server.value} has no handler of {', '.join(missing)}"
    assert not foreign, f"{server.value} does not serve {', '.join(foreign)}"
    is_outside = server is ServerKind.BROKER
    return Serving(
        handlers={spec.key: handler for spec, handler in handlers.items()},
        versions={spec.key: spec.spoken_by(server) for spec in served},
        claimed_versions={spec.key: spec.claimed for spec in served if spec.claimed is not None and is_outside},
        undecoded=tuple(spec.key for spec in served if spec.keeps_frame and is_outside),
    )
