"""What a Broker answers itself, what it forwards and to whom, and how it says that somebody else is to be asked."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from kio.schema.errors import ErrorCode
from outside import Client, fetch, listener, metadata, milliseconds, parts, produce, request
from raw_requests import batch, eventually, isr_is_whole, part
from wire_ends import raw, read_frame

from raylog.client.sync import AdminClient
from raylog.errors import DisconnectedError
from raylog.testing.in_process import InProcessCluster
from raylog.types import BROKER_SLOT, Endpoint, node_id
from raylog.wire import private

pytestmark = pytest.mark.core

Open = Callable[..., Client]
NewTopicOf = Callable[..., str]
NOT_LEADER = ErrorCode.not_leader_or_follower


@contextmanager
def no_new_processes(running: InProcessCluster, kind: str) -> Iterator[None]:
    """Meanwhile no process of that kind starts."""
    build = running.launcher.build[kind]

    def held(spec: object) -> object:
        raise OSError("the test holds new processes back")

    running.launcher.build[kind] = held
    try:
        yield
    finally:
        running.launcher.build[kind] = build


def list_latest(topic: str, replica: int = -1) -> object:
    """Where a topic's first partition ends, asked as a consumer or as a follower."""
    return request(
        2,
        7,
        replica_id=replica,
        isolation_level=0,
        topics=lambda module: (
            module.ListOffsetsTopic(
                name=topic,
                partitions=(module.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1),),
            ),
        ),
    )


# ------------------------------------------------------------------ versions


def test_api_versions_lists_what_is_served(client: Open) -> None:
    reply = client().ask(request(18, 3, client_software_name="test", client_software_version="1"))
    spoken = {each.api_key: (each.min_version, each.max_version) for each in reply.api_keys}
    assert reply.error_code is ErrorCode.none
    assert spoken[3] == (0, 13) and spoken[60] == (0, 2) and spoken[18] == (0, 4)
    assert spoken[0][0] == 0, "librdkafka takes the codecs from it"
    assert not [key for key in spoken if key >= private.FIRST_API_KEY]


def test_a_feature_that_can_be_at_level_0_is_told_from_version_4_on(client: Open) -> None:
    """Java clients before 3.9 end their network thread over it (KAFKA-17492)."""
    told = {
        version: client().ask(request(18, version, client_software_name="test", client_software_version="1"))
        for version in (3, 4)
    }
    supported = {
        version: {each.name: each.min_version for each in reply.supported_features} for version, reply in told.items()
    }
    assert supported == {3: {"metadata.version": 7}, 4: {"metadata.version": 7, "transaction.version": 0}}
    for reply in told.values():
        finalized = {each.name: each.max_version_level for each in reply.finalized_features}
        assert finalized == {"metadata.version": 7, "transaction.version": 2}


def test_every_version_that_is_listed_is_answered(
    client: Open, new_topic: NewTopicOf, topic_id: Callable[[str], uuid.UUID]
) -> None:
    topic = new_topic((0, 1, 2))
    versions = {each.api_key: each for each in client().ask(request(18, 0)).api_keys}
    for version in range(versions[3].min_version, versions[3].max_version + 1):
        (found,) = client().ask(metadata(topic, version=version)).topics
        assert (found.name, found.error_code, len(found.partitions)) == (topic, ErrorCode.none, 1), version
        everything = client().ask(metadata(version=version))
        assert topic in [each.name for each in everything.topics] and len(everything.brokers) == 3
    for version in range(3, versions[0].max_version + 1):
        named = topic if version < 13 else topic_id(topic)
        (answer,) = client().ask(produce(named, {0: batch(b"v")}, version=version)).responses
        assert answer.partition_responses[0].error_code is ErrorCode.none, version
    for version in range(versions[1].min_version, versions[1].max_version + 1):
        named = topic if version < 13 else topic_id(topic)
        found = parts(client().ask(fetch(named, {0: 0}, version=version)))[0]
        assert found.error_code is ErrorCode.none and found.records, version


def test_an_unknown_topic_id_is_named_as_unknown(client: Open) -> None:
    unknown = uuid.UUID(int=5)
    assert parts(client().ask(fetch(unknown, {0: 0}, version=17)))[0].error_code is ErrorCode.unknown_topic_id
    (answer,) = client().ask(produce(unknown, {0: batch(b"v")}, version=13)).responses
    assert (answer.topic_id, answer.partition_responses[0].error_code) == (unknown, ErrorCode.unknown_topic_id)


def ask_raw(running: InProcessCluster, body: bytes) -> bytes:
    """The answer to a frame of these bytes."""

    async def ask() -> bytes:
        reader, writer = await raw(listener(running, 0))
        writer.write(len(body).to_bytes(4, "big") + body)
        answer = await asyncio.wait_for(read_frame(reader), 60)
        writer.close()
        return answer

    return running.run(ask())


def test_bytes_behind_a_request_are_skipped(running: InProcessCluster) -> None:
    """librdkafka leaves three there when it asks for all topics."""
    asked = bytes.fromhex("0003 000d 00000003 0007 72646b61666b61 00 00 00 00 00 010000")
    assert int.from_bytes(ask_raw(running, asked)[:4], "big") == 3


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(running: InProcessCluster) -> None:
    answer = ask_raw(running, b"\x00\x12\x00\x63" + (7).to_bytes(4, "big") + b"\xff\xff" + b"\x00")
    assert int.from_bytes(answer[:4], "big") == 7
    assert int.from_bytes(answer[4:6], "big") == ErrorCode.unsupported_version.value
    assert int.from_bytes(answer[6:10], "big") > 10, "with the ranges that are spoken"


def test_what_is_not_served_ends_the_connection_with_a_line_in_the_log(
    client: Open, caplog: pytest.LogCaptureFixture
) -> None:
    for entity, told in (
        (private.FindController(), "20006"),
        (private.OpenSession(), "OpenSession"),
        (request(77, 1, group_ids=(), include_authorized_operations=False), "share_group_describe"),
    ):
        caplog.clear()
        with pytest.raises(DisconnectedError):
            client().ask(entity)
        assert "closing the connection" in caplog.text and "not spoken here" in caplog.text, told


def test_a_listener_without_sasl_says_that_nobody_authenticates_there(client: Open) -> None:
    connection = client()
    handshake = connection.ask(request(17, 1, mechanism="PLAIN"))
    assert (handshake.error_code, handshake.mechanisms) == (ErrorCode.illegal_sasl_state, ())
    token = connection.ask(request(36, 2, auth_bytes=b"\0user\0password"))
    assert (token.error_code, token.auth_bytes) == (ErrorCode.illegal_sasl_state, b"")
    assert len(connection.ask(metadata()).brokers) == 3


# ------------------------------------------------------------------ metadata


def test_metadata_shows_brokers_and_nothing_of_what_is_inside(client: Open, new_topic: NewTopicOf) -> None:
    topic = new_topic((2, 0), (1, 2))
    reply = client().ask(metadata(topic))
    assert [(each.node_id, each.port) for each in reply.brokers] == [
        (broker, listener(client()._running, broker).port) for broker in range(3)
    ]
    assert reply.controller_id in (0, 1, 2)
    one, two = reply.topics[0].partitions
    assert (one.leader_id, one.replica_nodes, sorted(one.isr_nodes), one.offline_replicas) == (2, (2, 0), [0, 2], ())
    assert (two.leader_id, two.replica_nodes, two.leader_epoch) == (1, (1, 2), 0)


def test_an_unknown_topic_is_named_as_unknown(client: Open) -> None:
    (found,) = client().ask(metadata("nowhere")).topics
    assert (found.name, found.error_code) == ("nowhere", ErrorCode.unknown_topic_or_partition)
    (found,) = (
        client()
        .ask(
            request(
                3,
                12,
                topics=lambda module: (module.MetadataRequestTopic(topic_id=uuid.UUID(int=9), name=None),),
                allow_auto_topic_creation=True,
                include_topic_authorized_operations=False,
            )
        )
        .topics
    )
    assert (found.name, found.topic_id, found.error_code) == (None, uuid.UUID(int=9), ErrorCode.unknown_topic_id)


def test_a_topic_is_created_by_who_allows_it(client: Open) -> None:
    (found,) = client().ask(metadata("made-outside", create=True)).topics
    assert found.error_code in (ErrorCode.none, ErrorCode.leader_not_available)
    eventually(lambda: client().ask(metadata("made-outside")).topics[0].partitions, "the topic's partitions")
    (refused,) = client().ask(metadata("no/name", create=True)).topics
    assert refused.error_code is ErrorCode.invalid_topic_exception


def test_many_who_want_the_same_topic_get_one(client: Open) -> None:
    asked = [client().send(metadata("wanted-by-many", create=True)) for _ in range(10)]
    errors = {each.result().topics[0].error_code for each in asked}
    assert errors <= {ErrorCode.none, ErrorCode.leader_not_available}


def commit(group: str, topic: str, offset: int) -> object:
    """A place for a group without members."""
    return request(
        8,
        8,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=lambda module: (
            module.OffsetCommitRequestTopic(
                name=topic,
                partitions=(
                    module.OffsetCommitRequestPartition(
                        partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=None
                    ),
                ),
            ),
        ),
    )


def coordinator(client: Client, group: str) -> object:
    return client.ask(request(10, 4, key_type=0, coordinator_keys=(group,))).coordinators[0]


def leader_of(client: Client, topic: str) -> int:
    """Of the topic's first partition, as Metadata names it."""
    return int(client.ask(metadata(topic)).topics[0].partitions[0].leader_id)


def a_group_of(client: Client, broker: int) -> str:
    """The name of a group that this broker coordinates."""
    eventually(lambda: coordinator(client, "any").error_code is ErrorCode.none, "coordinators")
    names = (f"group-{number}" for number in range(1_000))
    return next(name for name in names if coordinator(client, name).node_id == broker)


def test_a_broker_whose_listener_is_away_is_served_through_another_one(
    running: InProcessCluster, client: Open, new_topic: NewTopicOf
) -> None:
    topic = new_topic((2, 0, 1))
    here, group = client(), a_group_of(client(), 2)
    with no_new_processes(running, "broker"):
        running.crash(node_id(2, BROKER_SLOT))
        eventually(lambda: leader_of(here, topic) != 2, "it gone")
        assert [each.node_id for each in here.ask(metadata(topic)).brokers] == [0, 1, 2], "it may be back in a moment"
        (found,) = here.ask(metadata(topic)).topics[0].partitions
        assert (found.error_code, found.leader_epoch) == (ErrorCode.none, 0), "nobody else leads"
        assert (found.replica_nodes, found.offline_replicas) == ((2, 0, 1), ()), "its replicas live"
        door, other = client(found.leader_id), client({0: 1, 1: 0}[found.leader_id])
        eventually(lambda: leader_of(door, topic) != 2, "the door knows it, too")
        assert door.ask(produce(topic, {0: batch(b"v")})).responses[0].partition_responses[0].base_offset == 0
        assert parts(door.ask(fetch(topic, {0: 0})))[0].records
        assert door.ask(list_latest(topic)).topics[0].partitions[0].offset == 1
        refused = other.ask(produce(topic, {0: batch(b"v")}, version=11))
        (part_refused,) = refused.responses[0].partition_responses
        assert (part_refused.error_code, part_refused.current_leader.leader_id) == (NOT_LEADER, found.leader_id)
        assert [each.node_id for each in refused.node_endpoints] == [found.leader_id]
        assert coordinator(other, group).node_id == found.leader_id
        assert door.ask(commit(group, topic, 1)).topics[0].partitions[0].error_code is ErrorCode.none
        shown = [each.ask(request(16, 0)).groups for each in (door, other)]
        assert [group in [each.group_id for each in groups] for groups in shown] == [True, False]
        options = {"include_cluster_authorized_operations": False, "endpoint_type": 1}
        fenced = here.ask(request(60, 2, **options, include_fenced_brokers=True)).brokers
        assert [(each.broker_id, each.is_fenced) for each in fenced] == [(0, False), (1, False), (2, True)]
        assert len(here.ask(request(60, 2, **options, include_fenced_brokers=False)).brokers) == 2
    eventually(lambda: leader_of(door, topic) == 2, "the Broker back")
    late = door.ask(produce(topic, {0: batch(b"v")}, version=11)).responses[0].partition_responses[0]
    assert (late.error_code, late.current_leader.leader_id) == (NOT_LEADER, 2), "it sends back who is used to it"
    assert client(2).ask(produce(topic, {0: batch(b"v")})).responses[0].partition_responses[0].base_offset == 1


# ------------------------------------------------------------------ whom to ask


def test_another_brokers_partition_is_refused_with_the_leader_named(client: Open, new_topic: NewTopicOf) -> None:
    topic = new_topic((1, 2))
    other = client(0)
    written = other.ask(produce(topic, {0: batch(b"v")}, version=11))
    refused = written.responses[0].partition_responses[0]
    assert (refused.error_code, refused.current_leader.leader_id) == (NOT_LEADER, 1)
    assert [(each.node_id, each.port) for each in written.node_endpoints] == [(1, listener(other._running, 1).port)]
    read = parts(other.ask(fetch(topic, {0: 0}, version=12)))[0]
    assert (read.error_code, read.current_leader.leader_id) == (NOT_LEADER, 1)
    listed = other.ask(
        request(
            2,
            7,
            replica_id=-1,
            isolation_level=0,
            topics=lambda module: (
                module.ListOffsetsTopic(
                    name=topic,
                    partitions=(module.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1),),
                ),
            ),
        )
    )
    assert listed.topics[0].partitions[0].error_code is NOT_LEADER
    assert client(1).ask(produce(topic, {0: batch(b"v")})).responses[0].partition_responses[0].base_offset == 0


def test_a_request_for_many_partitions_is_split_and_put_together_in_order(client: Open, new_topic: NewTopicOf) -> None:
    topic = new_topic((0, 1), (0, 2), (1, 0), (0, 1))
    reply = client(0).ask(produce(topic, {number: batch(b"%d" % number) for number in (3, 2, 9, 0, 1)}))
    found = [(each.index, each.error_code) for each in reply.responses[0].partition_responses]
    assert found == [
        (3, ErrorCode.none),
        (2, NOT_LEADER),
        (9, ErrorCode.unknown_topic_or_partition),
        (0, ErrorCode.none),
        (1, ErrorCode.none),
    ]
    read = parts(client(0).ask(fetch(topic, dict.fromkeys((3, 0, 1), 0))))
    assert [bytes(read[number].records)[-2:-1] for number in (3, 0, 1)] == [b"3", b"0", b"1"]


def test_produce_without_acknowledgement_is_forwarded(client: Open, new_topic: NewTopicOf) -> None:
    topic = new_topic((0, 1), (0, 2))
    mine = client(0)

    async def send() -> None:
        mine.connection.send_unanswered(produce(topic, {0: batch(b"a"), 1: batch(b"b")}, acks=0))

    mine._running.run(send())
    eventually(
        lambda: all(each.high_watermark == 1 for each in parts(mine.ask(fetch(topic, {0: 0, 1: 0}))).values()), "it"
    )


def test_produce_without_acknowledgement_to_the_wrong_broker_ends_the_connection(
    client: Open, new_topic: NewTopicOf
) -> None:
    topic = new_topic((1, 2))
    mine = client(0)

    async def send() -> None:
        mine.connection.send_unanswered(produce(topic, {0: batch(b"a")}, acks=0))

    mine._running.run(send())
    eventually(lambda: not mine.connection.is_open, "the connection's end")


def test_nobody_outside_is_a_follower(
    client: Open, new_topic: NewTopicOf, topic_id: Callable[[str], uuid.UUID], running: InProcessCluster
) -> None:
    """Else he could read what is not committed, and make it look so."""
    topic = new_topic((0, 1), min_insync_replicas="2")
    client(0).ask(produce(topic, {0: batch(b"committed")}))
    with no_new_processes(running, "replica"):
        running.crash(next(node for node in part(running, topic)["replica_nodes"] if node >> 16 == 1))
        eventually(lambda: list(part(running, topic)["isr"]) == [0], "the follower out of the ISR")
        client(0).ask(produce(topic, {0: batch(b"not committed")}, acks=1))
        for replica in (None, (1, 5)):
            found = parts(client(0).ask(fetch(topic_id(topic), {0: 0}, version=17, replica=replica)))[0]
            assert (found.error_code, found.high_watermark) == (ErrorCode.none, 1)
            assert b"not committed" not in bytes(found.records)
        for claimed in (-1, 1):
            assert client(0).ask(list_latest(topic, claimed)).topics[0].partitions[0].offset == 1
    eventually(lambda: isr_is_whole(running, topic), "the follower back")


def test_log_directories_are_those_of_all_processes(client: Open, new_topic: NewTopicOf) -> None:
    topic = new_topic((0, 1), (0, 2))
    reply = client(0).ask(
        request(35, 4, topics=lambda module: (module.DescribableLogDirTopic(topic=topic, partitions=(0, 1)),))
    )
    (result,) = reply.results
    assert [len(each.partitions) for each in result.topics] == [2]


def test_producers_are_described_by_the_leaders(client: Open, new_topic: NewTopicOf) -> None:
    topic = new_topic((0, 1), (1, 0))
    client(0).ask(produce(topic, {0: batch(b"v", producer_id=7, sequence=0)}))
    reply = client(0).ask(
        request(61, 0, topics=lambda module: (module.TopicRequest(name=topic, partition_indexes=(1, 0)),))
    )
    one, two = reply.topics[0].partitions
    assert (one.partition_index, one.error_code, one.active_producers) == (1, NOT_LEADER, ())
    assert (two.partition_index, two.error_code) == (0, ErrorCode.none)
    assert [each.producer_id for each in two.active_producers] == [7]


def test_limits_change_while_a_broker_runs(running: InProcessCluster, client: Open, new_topic: NewTopicOf) -> None:
    topic = new_topic((1, 0))
    router = running.launcher.servers[node_id(1, BROKER_SLOT)].router
    before = router.server.limits
    with AdminClient(running.address) as admin:
        limits = {
            "max.connections": 0,
            "queued.max.request.bytes": 1_000_000,
            "max.incremental.fetch.session.cache.slots": 0,
        }
        kept = client(1)
        kept.ask(metadata())
        admin.alter_configs(broker=1, set={name: str(value) for name, value in limits.items()})
        eventually(lambda: router.server.limits.connections_max == 0, "the limits")
        assert router.server.limits.server_bytes_max == 1_000_000
        assert kept.ask(fetch(topic, {0: 0}, session=(0, 0))).session_id == 0, "no slot for a session"
        with pytest.raises(DisconnectedError):
            client(1).ask(metadata())
        assert client(0).ask(metadata()).brokers, "the other brokers' are their own"
        admin.alter_configs(broker=1, set={"queued.max.request.bytes": "-1"})
        eventually(lambda: router.server.limits.server_bytes_max == sys.maxsize, "no limit")
        admin.alter_configs(broker=1, delete=list(limits))
        eventually(lambda: router.server.limits == before, "the limits as before")


def test_a_request_that_is_too_large_ends_its_connection(
    running: InProcessCluster, client: Open, new_topic: NewTopicOf
) -> None:
    topic = new_topic((1, 0))
    router = running.launcher.servers[node_id(1, BROKER_SLOT)].router
    with AdminClient(running.address) as admin:
        admin.alter_configs(broker=1, set={"socket.request.max.bytes": "2000"})
        try:
            eventually(lambda: router.server.limits.request_bytes_max == 2_000, "the limit")
            client(1).ask(produce(topic, {0: batch(bytes(1_000))}))
            with pytest.raises(DisconnectedError):
                client(1).ask(produce(topic, {0: batch(bytes(3_000))}))
        finally:
            admin.alter_configs(broker=1, delete=["socket.request.max.bytes"])


# ------------------------------------------------------------------ the controller


def test_the_quorum_is_described(client: Open) -> None:
    reply = client(2).ask(
        request(
            55,
            2,
            topics=lambda module: (
                module.TopicData(
                    topic_name="__cluster_metadata", partitions=(module.PartitionData(partition_index=0),)
                ),
            ),
        )
    )
    assert reply.error_code is ErrorCode.none and reply.topics[0].partitions[0].leader_id == 0


def test_what_changes_the_cluster_goes_to_the_controller(client: Open) -> None:
    def created(module: object) -> object:
        topic = module.CreatableTopic  # type: ignore[attr-defined]
        return (topic(name="by-way-of-2", num_partitions=2, replication_factor=3, assignments=(), configs=()),)

    reply = client(2).ask(request(19, 7, topics=created, timeout=milliseconds(10_000), validate_only=False))
    assert (reply.topics[0].error_code, reply.topics[0].num_partitions) == (ErrorCode.none, 2)
    given = client(1).ask(
        request(22, 4, transactional_id=None, transaction_timeout=milliseconds(1), producer_id=-1, producer_epoch=-1)
    )
    assert given.error_code is ErrorCode.none and given.producer_id >= 0


def test_without_a_controller_metadata_is_told_from_the_copy_and_changes_wait(
    running: InProcessCluster, client: Open, new_topic: NewTopicOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic((0, 1, 2))
    link = running.launcher.servers[node_id(1, BROKER_SLOT)].router._link
    find, searches = link._find, Counter[str]()

    def counted() -> Endpoint | None:
        searches["of broker 1"] += 1
        return find()

    monkeypatch.setattr(link, "_find", counted)
    running.stop_controller()
    try:
        (found,) = client(0).ask(metadata(topic)).topics
        assert found.partitions[0].leader_id == 0
        assert client(0).ask(produce(topic, {0: batch(b"v")})).responses[0].partition_responses[0].base_offset == 0
        waiting = client(1).send(
            request(
                22, 4, transactional_id=None, transaction_timeout=milliseconds(1), producer_id=-1, producer_epoch=-1
            )
        )
        eventually(lambda: searches["of broker 1"] >= 3, "a search for the controller, again and again")
        assert not waiting.done
    finally:
        running.start_controller()
    assert waiting.result().error_code is ErrorCode.none, "it was sent when the controller was back"


def test_the_image_follows_what_happens(running: InProcessCluster, client: Open, new_topic: NewTopicOf) -> None:
    topic = new_topic((0, 1, 2), min_insync_replicas="2")
    running.crash(part(running, topic)["leader_node"])
    eventually(lambda: client(2).ask(metadata(topic)).topics[0].partitions[0].leader_id == 1, "the new leader")
    eventually(lambda: isr_is_whole(running, topic), "the replica back")
    with AdminClient(running.address) as admin:
        admin.delete_topics([topic])
    eventually(lambda: client(2).ask(metadata(topic)).topics[0].error_code, "the end of the topic")
