"""What is denied of a request with several items, what is left out of an answer, and what a client is told that it may do."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from acl_cases import CLUSTER, GROUP, OF_CLUSTER, OF_TOPIC, TOPIC, TRANSACTION, acl, cluster, group, topic, transaction
from authorized import Clients, authorized_cluster, set_configs
from kio.schema.errors import ErrorCode
from outside import Client, fetch, metadata, parts, produce, request
from raw_requests import batch, eventually

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.kafka import table
from raylog.kafka.context import RequestContext
from raylog.listener.access.access import Access
from raylog.listener.access.rules import RULES
from raylog.metadata.image import MetadataImage
from raylog.security.acl import AclBinding
from raylog.security.acls import Acls
from raylog.security.authorizer import Authorizer
from raylog.security.permissions import Operation, PatternType, PermissionType, Resource

pytestmark = pytest.mark.core
SECRET = "secret"
NONE = ErrorCode.none


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    with authorized_cluster() as found:
        with AdminClient(found.running.address) as admin:
            admin.create_topics([NewTopic(SECRET, replica_assignment={0: (0,)})])
        eventually(lambda: SECRET in found.image().topic_ids, "the Broker knows the topic")
        yield found


def secret_id(clients: Clients) -> uuid.UUID:
    found: uuid.UUID = clients.image().topic_ids[SECRET]
    return found


def produce_to_both(acks: int = -1, transactional_id: str | None = None, data: bytes = b"") -> Any:
    data = data or batch(b"v")
    return request(
        0,
        9,
        transactional_id=transactional_id,
        acks=acks,
        timeout=produce(TOPIC, {}).timeout,
        topic_data=lambda module: tuple(
            module.TopicProduceData(name=name, partition_data=(module.PartitionProduceData(index=0, records=data),))
            for name in (TOPIC, SECRET)
        ),
    )


def end_of(clients: Clients, name: str) -> int:
    clients.grant(topic(Operation.READ), topic(Operation.READ, SECRET))
    return int(parts(clients.ask(fetch(name, {0: 0})))[0].high_watermark)


def test_a_produce_writes_to_the_topics_that_are_allowed(clients: Clients) -> None:
    before = end_of(clients, TOPIC), end_of(clients, SECRET)
    clients.grant(topic(Operation.WRITE))
    reply = clients.ask(produce_to_both())
    found = {each.name: each.partition_responses[0].error_code for each in reply.responses}
    assert found == {TOPIC: NONE, SECRET: OF_TOPIC}
    assert (end_of(clients, TOPIC), end_of(clients, SECRET)) == (before[0] + 1, before[1])


@pytest.mark.parametrize("version", [3, 9, 12, 13])
def test_a_simple_produce_and_fetch_are_asked_about_before_they_are_passed_on(clients: Clients, version: int) -> None:
    named: Any = secret_id(clients) if version >= 13 else SECRET
    before = end_of(clients, SECRET)
    clients.grant(topic(Operation.WRITE), topic(Operation.READ))
    written = clients.ask(produce(named, {0: batch(b"v")}, version=version))
    assert written.responses[0].partition_responses[0].error_code is OF_TOPIC
    for session in ((0, -1), (0, 0)) if version >= 7 else ((0, -1),):
        read = clients.ask(fetch(named, {0: 0}, version=max(version, 4), session=session))
        assert parts(read)[0].error_code is OF_TOPIC and not parts(read)[0].records
    assert end_of(clients, SECRET) == before


def test_a_produce_without_acks_that_is_denied_ends_the_connection(clients: Clients) -> None:
    before = end_of(clients, SECRET)
    for body in (produce(SECRET, {0: batch(b"v")}, acks=0), produce_to_both(acks=0)):
        clients.grant(topic(Operation.WRITE))
        other = Client(clients.running, 0)
        other.send(body)
        eventually(lambda other=other: not other.connection.is_open, "the connection has ended")
        other.close()
    assert end_of(clients, SECRET) == before


def test_records_of_a_transaction_need_an_id_that_is_allowed(clients: Clients) -> None:
    plain = batch(b"v", producer_id=7, sequence=0)
    records = plain[:22] + bytes([plain[22] | 0x10]) + plain[23:]
    clients.grant(topic(Operation.WRITE), transaction(Operation.WRITE))
    denied = ErrorCode.transactional_id_authorization_failed
    for named, expected in ((None, True), ("other", True), (TRANSACTION, False)):
        reply = clients.ask(produce(TOPIC, {0: records}, transactional_id=named))
        assert (reply.responses[0].partition_responses[0].error_code is denied) is expected, (named, reply)


def test_a_session_is_asked_about_at_each_fetch(clients: Clients) -> None:
    clients.grant(topic(Operation.READ))
    first = clients.ask(fetch(TOPIC, {0: 0}, session=(0, 0)))
    assert parts(first)[0].error_code is NONE and first.session_id
    clients.grant()
    second = clients.ask(fetch(TOPIC, {}, session=(first.session_id, 1)))
    assert parts(second)[0].error_code is OF_TOPIC and not parts(second)[0].records


def names(reply: Any) -> dict[str | None, ErrorCode]:
    return {each.name: each.error_code for each in reply.topics}


def test_metadata_hides_topics_that_nobody_named(clients: Clients) -> None:
    clients.grant(topic(Operation.DESCRIBE))
    for version in (0, 1, 12):
        assert names(clients.ask(metadata(version=version))) == {TOPIC: NONE}
        assert names(clients.ask(metadata(TOPIC, SECRET, version=version))) == {TOPIC: NONE, SECRET: OF_TOPIC}
        assert names(clients.ask(metadata(SECRET, version=version))) == {SECRET: OF_TOPIC}
        assert names(clients.ask(metadata("nowhere", version=version))) == {"nowhere": OF_TOPIC}
    asked = request(
        3,
        12,
        topics=lambda module: (module.MetadataRequestTopic(name=None, topic_id=secret_id(clients)),),
        allow_auto_topic_creation=True,
        include_topic_authorized_operations=False,
    )
    (found,) = clients.ask(asked).topics
    assert (found.name, found.topic_id, found.error_code) == (None, secret_id(clients), OF_TOPIC)
    assert not found.partitions


def test_metadata_creates_topics_for_those_who_may(clients: Clients) -> None:
    wanted = topic(Operation.DESCRIBE, "wanted")
    clients.grant(wanted)
    assert names(clients.ask(metadata("wanted", version=8, create=True))) == {"wanted": OF_TOPIC}
    clients.grant(wanted, topic(Operation.CREATE, "wanted"))
    assert names(clients.ask(metadata("wanted", version=8, create=True)))["wanted"] is not OF_TOPIC
    eventually(lambda: "wanted" in clients.image().topic_ids, "the topic is there")
    clients.grant(topic(Operation.DESCRIBE, "second"), cluster(Operation.CREATE))
    assert names(clients.ask(metadata("second", version=8, create=True)))["second"] is not OF_TOPIC


def test_pages_of_topics_have_those_that_may_be_described(clients: Clients) -> None:
    clients.grant(topic(Operation.READ))
    everything = request(75, 0, topics=(), response_partition_limit=100, cursor=None)
    assert names(clients.ask(everything)) == {TOPIC: NONE}
    both = request(
        75,
        0,
        topics=lambda module: tuple(module.TopicRequest(name=each) for each in (TOPIC, SECRET)),
        response_partition_limit=100,
        cursor=None,
    )
    assert names(clients.ask(both)) == {TOPIC: NONE, SECRET: OF_TOPIC}
    assert (
        clients.ask(everything).topics[0].topic_authorized_operations == 1 << Operation.READ | 1 << Operation.DESCRIBE
    )


def named_of(module: Any, *topics: str) -> Any:
    return tuple(module.OffsetFetchRequestTopics(name=name, partition_indexes=(0,)) for name in topics)


def commit(*topics: str) -> Any:
    return request(
        8,
        8,
        group_id=GROUP,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=lambda module: tuple(
            module.OffsetCommitRequestTopic(
                name=name,
                partitions=(
                    module.OffsetCommitRequestPartition(
                        partition_index=0, committed_offset=5, committed_leader_epoch=-1, committed_metadata=""
                    ),
                ),
            )
            for name in topics
        ),
    )


@pytest.mark.parametrize("version", [2, 7, 8])
def test_offsets_are_committed_and_fetched_of_topics_that_are_allowed(clients: Clients, version: int) -> None:
    clients.grant(group(Operation.READ), topic(Operation.READ), topic(Operation.READ, SECRET))
    assert not any(part.error_code for each in clients.ask(commit(TOPIC, SECRET)).topics for part in each.partitions)
    clients.grant(group(Operation.READ), topic(Operation.READ))
    committed = clients.ask(commit(TOPIC, SECRET))
    assert {each.name: each.partitions[0].error_code for each in committed.topics} == {TOPIC: NONE, SECRET: OF_TOPIC}

    def fetched(*topics: str) -> dict[str, tuple[ErrorCode, int]]:
        def named(module: Any, kind: str) -> Any:
            if not topics:
                return None
            return tuple(getattr(module, kind)(name=name, partition_indexes=(0,)) for name in topics)

        stable = {"require_stable": False} if version >= 7 else {}
        if version >= 8:
            groups = lambda module: (  # noqa: E731
                module.OffsetFetchRequestGroup(group_id=GROUP, topics=named(module, "OffsetFetchRequestTopics")),
            )
            reply = clients.ask(request(9, version, groups=groups, **stable)).groups[0]
        else:
            values = {"group_id": GROUP, **stable}
            reply = clients.ask(
                request(9, version, topics=lambda module: named(module, "OffsetFetchRequestTopic"), **values)
            )
        assert not reply.error_code
        return {
            each.name: (each.partitions[0].error_code, each.partitions[0].committed_offset) for each in reply.topics
        }

    denied_group = ErrorCode.group_authorization_failed
    if version >= 8:
        other = request(
            9,
            version,
            groups=lambda module: tuple(
                module.OffsetFetchRequestGroup(group_id=each, topics=named_of(module, TOPIC))
                for each in (GROUP, "other")
            ),
            require_stable=False,
        )
        groups = {each.group_id: (each.error_code, len(each.topics)) for each in clients.ask(other).groups}
        assert groups == {GROUP: (NONE, 1), "other": (denied_group, 0)}
    assert fetched(TOPIC, SECRET) == {TOPIC: (NONE, 5), SECRET: (OF_TOPIC, -1)}
    assert fetched() == {TOPIC: (NONE, 5)}
    assert fetched(SECRET) == {SECRET: (OF_TOPIC, -1)}


def test_topics_are_created_and_deleted_of_those_that_are_allowed(clients: Clients) -> None:
    def create(*topics: str) -> Any:
        return request(
            19,
            7,
            topics=lambda module: tuple(
                module.CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=())
                for name in topics
            ),
            timeout=produce(TOPIC, {}).timeout,
            validate_only=False,
        )

    prefix = acl(Operation.CREATE, Resource.TOPIC, "my-", pattern=PatternType.PREFIXED)
    shown = acl(Operation.DESCRIBE_CONFIGS, Resource.TOPIC, "my-b", pattern=PatternType.PREFIXED)
    clients.grant(prefix, shown)
    reply = clients.ask(create("my-a", "my-b", "other"))
    assert names(reply) == {"my-a": NONE, "my-b": NONE, "other": OF_TOPIC}
    told = {each.name: (each.topic_config_error_code, each.num_partitions, bool(each.configs)) for each in reply.topics}
    assert told["my-a"] == (OF_TOPIC.value, -1, False) and told["my-b"] == (0, 1, True)
    clients.grant(topic(Operation.DELETE, "my-a"))
    deleted = clients.ask(request(20, 5, topic_names=("my-a", SECRET), timeout=produce(TOPIC, {}).timeout))
    assert {each.name: each.error_code for each in deleted.responses} == {"my-a": NONE, SECRET: OF_TOPIC}
    unknown = uuid.uuid4()
    by_id = request(
        20,
        6,
        topics=lambda module: tuple(
            module.DeleteTopicState(name=None, topic_id=each) for each in (secret_id(clients), unknown)
        ),
        timeout=produce(TOPIC, {}).timeout,
    )
    assert {each.topic_id: (each.name, each.error_code) for each in clients.ask(by_id).responses} == {
        secret_id(clients): (None, OF_TOPIC),
        unknown: (None, ErrorCode.unknown_topic_id),
    }
    assert SECRET in clients.image().topic_ids


def test_an_id_that_a_broker_does_not_know_yet_is_not_deleted_unasked(clients: Clients) -> None:
    """Its controller may know it, and asks nobody."""
    by_id = request(
        20,
        6,
        topics=lambda module: (module.DeleteTopicState(name=None, topic_id=secret_id(clients)),),
        timeout=produce(TOPIC, {}).timeout,
    )
    replies: list[Any] = []
    asked = SimpleNamespace(body=by_id, version=6, amend_reply=replies.append, replace_body=replies.append)
    nobody = RequestContext("User:x", "EXTERNAL", "127.0.0.1", None)
    access = Access(Authorizer(Acls()), nobody, MetadataImage.empty(), "DeleteTopics")
    answer = RULES[table.DELETE_TOPICS](access, asked)  # type: ignore[arg-type]
    assert [each.error_code for each in answer.responses] == [ErrorCode.unknown_topic_id] and not replies


def test_lists_leave_out_what_may_not_be_described(clients: Clients) -> None:
    clients.grant(group(Operation.READ), topic(Operation.READ))
    clients.ask(commit(TOPIC))  # so that there is the group
    listed = request(16, 4, states_filter=())

    def groups() -> list[str]:
        reply = clients.ask(listed)
        assert not reply.error_code
        return [each.group_id for each in reply.groups]

    assert groups() == [GROUP]
    clients.grant()
    assert groups() == []
    clients.grant(cluster(Operation.DESCRIBE))
    assert groups() == [GROUP]
    clients.grant(transaction(Operation.WRITE))
    clients.ask(
        request(
            22,
            4,
            transactional_id=TRANSACTION,
            transaction_timeout=produce(TOPIC, {}).timeout,
            producer_id=-1,
            producer_epoch=-1,
        )
    )
    transactions = request(66, 0, state_filters=(), producer_id_filters=())
    assert [each.transactional_id for each in clients.ask(transactions).transaction_states] == [TRANSACTION]
    clients.grant()
    assert clients.ask(transactions).transaction_states == ()


def test_log_dirs_are_not_shown_where_an_answer_has_no_place_for_an_error(clients: Clients) -> None:
    asked = request(35, 1, topics=None)
    clients.grant()
    assert clients.ask(asked).results == ()
    clients.grant(cluster(Operation.DESCRIBE))
    assert clients.ask(asked).results


def test_clients_learn_what_they_may_do(clients: Clients) -> None:
    clients.grant(topic(Operation.WRITE), group(Operation.READ), cluster(Operation.ALTER))
    asked = request(
        3,
        8,
        topics=lambda module: (module.MetadataRequestTopic(name=TOPIC),),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    reply = clients.ask(asked)
    assert reply.topics[0].topic_authorized_operations == 1 << Operation.WRITE | 1 << Operation.DESCRIBE
    assert reply.cluster_authorized_operations == 1 << Operation.ALTER | 1 << Operation.DESCRIBE
    described = request(60, 0, include_cluster_authorized_operations=True)
    assert clients.ask(described).cluster_authorized_operations == 1 << Operation.ALTER | 1 << Operation.DESCRIBE
    groups = request(15, 5, groups=(GROUP,), include_authorized_operations=True)
    assert clients.ask(groups).groups[0].authorized_operations == 1 << Operation.READ | 1 << Operation.DESCRIBE
    clients.grant()
    assert clients.ask(described).cluster_authorized_operations == 0


def test_acls_are_created_found_and_deleted_by_clients_that_may(clients: Clients) -> None:
    mine = cluster(Operation.ALTER)
    other = acl(Operation.READ, Resource.TOPIC, "a", principal="User:b", pattern=PatternType.PREFIXED)
    clients.grant(mine)
    created = clients.ask(request(30, 3, creations=lambda module: (_creation(module, other),)))
    assert created.results[0].error_code is NONE
    filter = {
        "resource_type_filter": 2,
        "resource_name_filter": "abc",
        "pattern_type_filter": 2,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    (found,) = clients.ask(request(29, 3, **filter)).resources
    assert (found.resource_name, found.pattern_type, found.acls[0].principal) == ("a", 4, "User:b")
    deleted = clients.ask(request(31, 3, filters=lambda module: (module.DeleteAclsFilter(**filter),)))
    assert [each.resource_name for each in deleted.filter_results[0].matching_acls] == ["a"]
    assert clients.ask(request(29, 3, **filter)).resources == ()


def _creation(module: Any, binding: AclBinding) -> Any:
    from authorized import creation

    return creation(module, binding)


def test_denials_stand_in_the_log_and_permissions_only_where_somebody_looks(
    clients: Clients, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "raylog.authorizer")
    clients.grant(topic(Operation.READ))
    clients.ask(fetch(TOPIC, {0: 0}))
    assert caplog.messages == []
    clients.ask(fetch(SECRET, {0: 0}))
    assert caplog.messages[-1] == (
        "Principal = User:ANONYMOUS is Denied operation = READ from host = 127.0.0.1 on resource = TOPIC:LITERAL:secret "
        "for request = Fetch based on rule DefaultDeny"
    )
    caplog.set_level(logging.DEBUG, "raylog.authorizer")
    clients.ask(fetch(TOPIC, {0: 0}))
    assert "is Allowed operation = READ" in caplog.messages[-1] and "MatchingAcl(ALLOW" in caplog.messages[-1]


def test_super_users_and_the_cluster_itself_are_asked_nothing(clients: Clients) -> None:
    clients.grant(acl(Operation.ALL, Resource.CLUSTER, CLUSTER, permission=PermissionType.DENY, principal="User:*"))
    listed = request(46, 0, topics=None, timeout=produce(TOPIC, {}).timeout)
    assert clients.ask(listed).error_code is OF_CLUSTER
    with AdminClient(clients.running.address) as admin:
        assert TOPIC in admin.list_topics()
    try:
        set_configs(clients.running, super_users="User:alice;User:ANONYMOUS")
        eventually(lambda: clients.ask(listed).error_code is NONE, "the super user is known")
    finally:
        set_configs(clients.running)
    eventually(lambda: clients.ask(listed).error_code is OF_CLUSTER, "it is none any more")


def test_everybody_may_do_what_no_acl_is_about_if_the_start_says_so(clients: Clients) -> None:
    clients.grant(topic(Operation.DESCRIBE, SECRET))
    try:
        set_configs(clients.running, allow_everyone_if_no_acl_found="true")
        eventually(lambda: parts(clients.ask(fetch(TOPIC, {0: 0})))[0].error_code is NONE, "everybody may read it")
        assert parts(clients.ask(fetch(SECRET, {0: 0})))[0].error_code is OF_TOPIC
    finally:
        set_configs(clients.running)
    eventually(lambda: parts(clients.ask(fetch(TOPIC, {0: 0})))[0].error_code is OF_TOPIC, "nobody may")
