"""What each API of a listener asks for, as Apache Kafka's KafkaApis and ControllerApis ask it, and
how each denial is told.

``RULES`` has one entry for each API that a Broker serves; a listener without one for each does not
start. ``PRIVATE`` are those of raylog's own APIs that it serves. Rules with more to them are in
``partial``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from raylog.kafka import table
from raylog.kafka.spec import ApiSpec
from raylog.listener.access import partial
from raylog.listener.access.access import Access
from raylog.listener.access.checks import (
    Check,
    Rule,
    all_of,
    items,
    nothing,
    of_handler,
    on,
    on_cluster,
    topics,
    whole,
)
from raylog.security.permissions import Operation, Resource
from raylog.wire import private
from raylog.wire.private_transactions import (
    EndSharedTransactionResponse,
    JoinTransactionResponse,
    KeepTransactionResponse,
)
from raylog.wire.request import Request

CLUSTER_DENIED: Final = ErrorCode.cluster_authorization_failed
GROUP_DENIED: Final = ErrorCode.group_authorization_failed
TRANSACTION_DENIED: Final = ErrorCode.transactional_id_authorization_failed


def _cluster(spec: ApiSpec, *operations: Operation) -> Rule:
    return whole(spec, CLUSTER_DENIED, on_cluster(*operations))


def _group(spec: ApiSpec, operation: Operation = Operation.READ) -> Rule:
    return whole(spec, GROUP_DENIED, on(Resource.GROUP, operation, "group_id"))


def _transaction(spec: ApiSpec) -> Rule:
    return whole(spec, TRANSACTION_DENIED, on(Resource.TRANSACTIONAL_ID, Operation.WRITE, "transactional_id"))


def _bare(resource: Resource, operation: Operation) -> Check:
    """On the resource that an item is the name of."""
    return lambda access, name: access.may(operation, resource, name)


def _may_init(access: Access, body: Any) -> bool:
    return access.may_on_cluster(Operation.IDEMPOTENT_WRITE, is_asked=False) or access.may_on_some_topic(
        Operation.WRITE
    )


def _init_producer_id(access: Access, request: Request) -> Any:
    return (_IDEMPOTENT if request.body.transactional_id is None else _TRANSACTIONAL)(access, request)


_IDEMPOTENT: Final = whole(table.INIT_PRODUCER_ID, CLUSTER_DENIED, _may_init)
_TRANSACTIONAL: Final = _transaction(table.INIT_PRODUCER_ID)

RULES: Final[Mapping[ApiSpec, Rule]] = {
    table.PRODUCE: partial.produce,
    table.FETCH: of_handler,
    table.LIST_OFFSETS: topics(table.LIST_OFFSETS, Operation.DESCRIBE),
    table.METADATA: of_handler,
    table.OFFSET_COMMIT: all_of(_group(table.OFFSET_COMMIT), topics(table.OFFSET_COMMIT, Operation.READ)),
    table.OFFSET_FETCH: partial.offset_fetch,
    table.FIND_COORDINATOR: partial.find_coordinator,
    table.JOIN_GROUP: _group(table.JOIN_GROUP),
    table.HEARTBEAT: _group(table.HEARTBEAT),
    table.LEAVE_GROUP: _group(table.LEAVE_GROUP),
    table.SYNC_GROUP: _group(table.SYNC_GROUP),
    table.DESCRIBE_GROUPS: all_of(
        items(table.DESCRIBE_GROUPS, GROUP_DENIED, "groups", "groups", _bare(Resource.GROUP, Operation.DESCRIBE)),
        partial.group_operations,
    ),
    table.LIST_GROUPS: partial.list_groups,
    table.API_VERSIONS: nothing,
    table.SASL_HANDSHAKE: nothing,
    table.SASL_AUTHENTICATE: nothing,
    table.CREATE_TOPICS: partial.create_topics,
    table.DELETE_TOPICS: partial.delete_topics,
    table.DELETE_RECORDS: topics(table.DELETE_RECORDS, Operation.DELETE),
    table.INIT_PRODUCER_ID: _init_producer_id,
    table.OFFSET_FOR_LEADER_EPOCH: partial.offset_for_leader_epoch,
    table.ADD_PARTITIONS_TO_TXN: partial.add_partitions,
    table.ADD_OFFSETS_TO_TXN: all_of(_transaction(table.ADD_OFFSETS_TO_TXN), _group(table.ADD_OFFSETS_TO_TXN)),
    table.END_TXN: _transaction(table.END_TXN),
    table.WRITE_TXN_MARKERS: _cluster(table.WRITE_TXN_MARKERS, Operation.ALTER, Operation.CLUSTER_ACTION),
    table.TXN_OFFSET_COMMIT: all_of(
        _transaction(table.TXN_OFFSET_COMMIT),
        _group(table.TXN_OFFSET_COMMIT),
        topics(table.TXN_OFFSET_COMMIT, Operation.READ),
    ),
    table.DESCRIBE_ACLS: _cluster(table.DESCRIBE_ACLS, Operation.DESCRIBE),
    table.CREATE_ACLS: _cluster(table.CREATE_ACLS, Operation.ALTER),
    table.DELETE_ACLS: _cluster(table.DELETE_ACLS, Operation.ALTER),
    table.DESCRIBE_CONFIGS: partial.configs(table.DESCRIBE_CONFIGS, Operation.DESCRIBE_CONFIGS, "results"),
    table.ALTER_CONFIGS: partial.configs(table.ALTER_CONFIGS, Operation.ALTER_CONFIGS, "responses"),
    table.ALTER_REPLICA_LOG_DIRS: partial.alter_replica_log_dirs,
    table.DESCRIBE_LOG_DIRS: partial.describe_log_dirs,
    table.CREATE_PARTITIONS: topics(table.CREATE_PARTITIONS, Operation.ALTER, replied="results"),
    table.DELETE_GROUPS: items(
        table.DELETE_GROUPS, GROUP_DENIED, "groups_names", "results", _bare(Resource.GROUP, Operation.DELETE)
    ),
    table.DESCRIBE_USER_SCRAM_CREDENTIALS: _cluster(table.DESCRIBE_USER_SCRAM_CREDENTIALS, Operation.DESCRIBE),
    table.ALTER_USER_SCRAM_CREDENTIALS: _cluster(table.ALTER_USER_SCRAM_CREDENTIALS, Operation.ALTER),
    table.DESCRIBE_CLIENT_QUOTAS: _cluster(table.DESCRIBE_CLIENT_QUOTAS, Operation.DESCRIBE_CONFIGS),
    table.ALTER_CLIENT_QUOTAS: _cluster(table.ALTER_CLIENT_QUOTAS, Operation.ALTER_CONFIGS),
    table.CREATE_DELEGATION_TOKEN: of_handler,
    table.RENEW_DELEGATION_TOKEN: of_handler,
    table.EXPIRE_DELEGATION_TOKEN: of_handler,
    table.DESCRIBE_DELEGATION_TOKEN: of_handler,
    table.ELECT_LEADERS: _cluster(table.ELECT_LEADERS, Operation.ALTER),
    table.INCREMENTAL_ALTER_CONFIGS: partial.configs(
        table.INCREMENTAL_ALTER_CONFIGS, Operation.ALTER_CONFIGS, "responses"
    ),
    table.ALTER_PARTITION_REASSIGNMENTS: _cluster(table.ALTER_PARTITION_REASSIGNMENTS, Operation.ALTER),
    table.LIST_PARTITION_REASSIGNMENTS: _cluster(table.LIST_PARTITION_REASSIGNMENTS, Operation.DESCRIBE),
    table.OFFSET_DELETE: all_of(
        _group(table.OFFSET_DELETE, Operation.DELETE), topics(table.OFFSET_DELETE, Operation.READ)
    ),
    table.DESCRIBE_QUORUM: _cluster(table.DESCRIBE_QUORUM, Operation.DESCRIBE),
    table.DESCRIBE_CLUSTER: partial.describe_cluster,
    table.DESCRIBE_PRODUCERS: topics(table.DESCRIBE_PRODUCERS, Operation.READ),
    table.UNREGISTER_BROKER: _cluster(table.UNREGISTER_BROKER, Operation.ALTER),
    table.DESCRIBE_TRANSACTIONS: all_of(
        items(
            table.DESCRIBE_TRANSACTIONS,
            TRANSACTION_DENIED,
            "transactional_ids",
            "transaction_states",
            _bare(Resource.TRANSACTIONAL_ID, Operation.DESCRIBE),
        ),
        partial.topics_of_transactions,
    ),
    table.LIST_TRANSACTIONS: partial.list_transactions,
    table.GET_TELEMETRY_SUBSCRIPTIONS: nothing,
    table.PUSH_TELEMETRY: nothing,
    table.LIST_CONFIG_RESOURCES: _cluster(table.LIST_CONFIG_RESOURCES, Operation.DESCRIBE_CONFIGS),
    table.DESCRIBE_TOPIC_PARTITIONS: of_handler,
}


def _shared(response: Callable[[int], Any]) -> Rule:
    def rule(access: Access, request: Request) -> Any:
        if access.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, request.body.transactional_id):
            return None
        return response(TRANSACTION_DENIED.value)

    return rule


PRIVATE: Final[Mapping[int, Rule]] = {
    private.JOIN_TRANSACTION: _shared(JoinTransactionResponse),
    private.KEEP_TRANSACTION: _shared(KeepTransactionResponse),
    private.END_SHARED_TRANSACTION: _shared(EndSharedTransactionResponse),
}
"""By API key: transactions of several producers."""
