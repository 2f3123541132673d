"""A topic that was just created, as its first clients find it: with a leader, whom they may ask at once.

``wire`` has every Metadata and FindCoordinator answer that leaves a Broker meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from kafka import KafkaProducer
from kio.schema.errors import ErrorCode
from outside import Client, fetch, metadata, milliseconds, produce, request
from outside import parts as fetched
from raw_requests import batch, eventually

from raylog.listener import coordinators, owners
from raylog.listener import fan_out as scattered
from raylog.listener.coordinator_search import CoordinatorSearch
from raylog.listener.router import Router
from raylog.offsets_topic import OFFSETS_TOPIC
from raylog.server import log_work
from raylog.testing.in_process import InProcessCluster, cluster

pytestmark = pytest.mark.core

Open = Callable[..., Client]
_numbers = itertools.count()
CREATE_TOPICS, CREATE_PARTITIONS = 19, 37
GONE = (ErrorCode.unknown_topic_or_partition, ErrorCode.not_leader_or_follower)


@dataclass
class Wire:
    """What Brokers have answered."""

    topics: list[Any] = field(default_factory=list)
    coordinators: list[ErrorCode] = field(default_factory=list)

    def of(self, name: str) -> list[Any]:
        """What was said of the partitions of a topic that is there."""
        answers = [topic for topic in self.topics if topic.name == name and topic.partitions]
        return [part for topic in answers for part in topic.partitions]

    def check(self, name: str) -> None:
        said = self.of(name)
        assert said, f"nobody was told of {name}"
        assert all(part.leader_id >= 0 and part.error_code is ErrorCode.none for part in said), said


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    seen = Wire()
    answer, found = Router._metadata_entity, CoordinatorSearch._found

    def watched(self: Router, *arguments: Any) -> Any:
        reply = answer(self, *arguments)
        seen.topics += reply.topics
        return reply

    def watched_coordinator(self: CoordinatorSearch, *arguments: Any) -> Any:
        reply = found(self, *arguments)
        seen.coordinators += [each.error_code for each in getattr(reply, "coordinators", (reply,))]
        return reply

    monkeypatch.setattr(Router, "_metadata_entity", watched)
    monkeypatch.setattr(CoordinatorSearch, "_found", watched_coordinator)
    return seen


@pytest.fixture
def name() -> str:
    return f"new-{next(_numbers)}"


@contextmanager
def processes_held_back(running: InProcessCluster) -> Iterator[Callable[[], None]]:
    """New processes for replicas come when the function that is yielded is called, or at the end."""
    build = running.launcher.build["replica"]
    gate = asyncio.Event()

    def held(spec: object) -> Any:
        server = build(spec)
        start = server.start

        async def later() -> Any:
            await gate.wait()
            return await start()

        server.start = later
        return server

    def let_go() -> None:
        running.loop.call_soon_threadsafe(gate.set)

    running.launcher.build["replica"] = held
    try:
        yield let_go
    finally:
        running.launcher.build["replica"] = build
        let_go()


@contextmanager
def openings_held_back(running: InProcessCluster) -> Iterator[Callable[[], None]]:
    """Logs are opened when the function that is yielded is called, or at the end."""
    open_log = log_work.open_log
    gate = threading.Event()

    def held(*arguments: Any, **options: Any) -> Any:
        gate.wait(60)
        return open_log(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_work, "open_log", held)
        try:
            yield gate.set
        finally:
            gate.set()


@pytest.fixture(params=["a process of its own", "a warm host"])
def hold_back(request: Any, running: InProcessCluster) -> Callable[[], Any]:
    """Keeps what is created next from serving: its processes don't start, or its logs don't open."""
    if request.param == "a warm host":
        return lambda: openings_held_back(running)
    return lambda: processes_held_back(running)


@pytest.fixture
def per_actor(hold_back: Any, request: Any) -> str:
    return "auto" if "warm" in request.node.callspec.id else "1"


def create(name: str, *assignment: tuple[int, ...], timeout_ms: int = 30_000, per_actor: str = "auto") -> Any:
    def topics(module: Any) -> Any:
        rows = tuple(
            module.CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in enumerate(assignment)
        )
        configs = (module.CreatableTopicConfig(name="replicas.per.actor", value=per_actor),)
        return (
            module.CreatableTopic(
                name=name, num_partitions=-1, replication_factor=-1, assignments=rows, configs=configs
            ),
        )

    return request(CREATE_TOPICS, 7, topics=topics, timeout=milliseconds(timeout_ms), validate_only=False)


def written(reply: Any) -> list[Any]:
    return [part for topic in reply.responses for part in topic.partition_responses]


def list_latest(name: str) -> Any:
    return request(
        2,
        7,
        replica_id=-1,
        isolation_level=0,
        topics=lambda module: (
            module.ListOffsetsTopic(
                name=name,
                partitions=(module.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1),),
            ),
        ),
    )


# ---------------------------------------------------------------------- with bytes


def test_a_created_topic_has_leaders_that_serve(client: Open, name: str, wire: Wire) -> None:
    (created,) = client(0).ask(create(name, (0, 1, 2), (1, 2, 0), (2, 0, 1))).topics
    assert created.error_code is ErrorCode.none
    for broker in (0, 1, 2):
        (part,) = written(client(broker).ask(produce(name, {broker: batch(b"first")})))
        assert part.error_code is ErrorCode.none
    client(0).ask(metadata(name))
    wire.check(name)
    assert all(part.leader_epoch == 0 for part in wire.of(name))


def test_what_is_asked_before_the_leaders_process_is_there_is_answered_when_it_is(
    running: InProcessCluster,
    client: Open,
    name: str,
    wire: Wire,
    hold_back: Callable[[], Any],
    per_actor: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scattered, "ARRIVAL_MS", 60_000)  # as long as a busy machine may take
    with hold_back() as let_go:
        (created,) = client(0).ask(create(name, (1, 0, 2), timeout_ms=100, per_actor=per_actor)).topics
        assert created.error_code is ErrorCode.request_timed_out
        leading = client(1)
        eventually(lambda: bool(leading.ask(metadata(name)).topics[0].partitions), f"broker 1 knows {name}")
        wire.check(name)
        (part,) = wire.of(name)[-1:]
        assert (part.leader_id, part.leader_epoch) == (1, -1)
        sent = leading.send(produce(name, {0: batch(b"first")}, timeout_ms=60_000))
        listed = client(1).send(list_latest(name))
        read = client(1).send(fetch(name, {0: 0}, max_wait_ms=60_000))
        silent = client(1)
        unanswered = produce(name, {0: batch(b"unanswered")}, acks=0)

        async def tell() -> None:
            silent.connection.send_unanswered(unanswered)

        running.run(tell())
        (elsewhere,) = written(client(0).ask(produce(name, {0: batch(b"x")})))
        assert elsewhere.error_code is ErrorCode.not_leader_or_follower, "another broker will lead"
        assert not (sent.done or listed.done or read.done)
        let_go()
        assert [part.error_code for part in written(sent.result())] == [ErrorCode.none]
        assert listed.result().topics[0].partitions[0].error_code is ErrorCode.none
        (found,) = fetched(read.result()).values()
        assert found.error_code is ErrorCode.none and found.records

        def end() -> int:
            return int(client(1).ask(list_latest(name)).topics[0].partitions[0].offset)

        eventually(lambda: end() == 2, "the record without acknowledgement is there, too")


def test_no_request_waits_longer_than_it_allows(
    client: Open, name: str, hold_back: Callable[[], Any], per_actor: str
) -> None:
    with hold_back():
        client(0).ask(create(name, (0,), timeout_ms=50, per_actor=per_actor))
        eventually(lambda: bool(client(0).ask(metadata(name)).topics[0].partitions), f"broker 0 knows {name}")
        reply = client(0).ask(produce(name, {0: batch(b"x")}, timeout_ms=100))
        assert written(reply)[0].error_code is ErrorCode.not_leader_or_follower
        (part,) = fetched(client(0).ask(fetch(name, {0: 0}, max_wait_ms=100))).values()
        assert (part.error_code, part.records or b"") == (ErrorCode.none, b"")
        (session,) = fetched(client(0).ask(fetch(name, {0: 0}, max_wait_ms=50, session=(0, 0)))).values()
        assert session.error_code is ErrorCode.none


def test_a_topic_that_is_deleted_meanwhile_ends_the_wait(
    client: Open, name: str, hold_back: Callable[[], Any], per_actor: str
) -> None:
    with hold_back():
        client(0).ask(create(name, (0,), timeout_ms=50, per_actor=per_actor))
        eventually(lambda: bool(client(0).ask(metadata(name)).topics[0].partitions), f"broker 0 knows {name}")
        waiting = client(0).send(produce(name, {0: batch(b"x")}, timeout_ms=60_000))
        client(1).ask(request(20, 5, topic_names=(name,), timeout=milliseconds(5_000)))
        assert written(waiting.result())[0].error_code in GONE


def test_the_first_metadata_answer_of_an_auto_created_topic_has_its_leaders(
    client: Open, name: str, wire: Wire
) -> None:
    for broker in (0, 1, 2):
        (topic,) = client(broker).ask(metadata(f"{name}-{broker}", create=True)).topics
        assert topic.error_code is ErrorCode.none and [part.leader_epoch for part in topic.partitions] == [0]
        wire.check(f"{name}-{broker}")


def test_brokers_that_are_asked_for_a_topic_at_once_all_name_its_leader(
    running: InProcessCluster, client: Open, name: str, wire: Wire
) -> None:
    with openings_held_back(running) as let_go:
        asked = [client(broker).send(metadata(name, create=True)) for broker in (0, 1, 2)]
        let_go()
        for each in asked:
            (topic,) = each.result().topics
            assert [part.leader_id >= 0 for part in topic.partitions] == [True]
    wire.check(name)


def test_new_partitions_of_a_topic_have_leaders_that_serve(client: Open, name: str, wire: Wire) -> None:
    client(0).ask(create(name, (0, 1)))
    growth = request(
        CREATE_PARTITIONS,
        3,
        topics=lambda module: (module.CreatePartitionsTopic(name=name, count=3, assignments=None),),
        timeout=milliseconds(30_000),
        validate_only=False,
    )
    (grown,) = client(0).ask(growth).results
    assert grown.error_code is ErrorCode.none
    (topic,) = client(0).ask(metadata(name)).topics
    for part in topic.partitions:
        (answer,) = written(client(part.leader_id).ask(produce(name, {part.partition_index: batch(b"x")})))
        assert answer.error_code is ErrorCode.none
    wire.check(name)


# ---------------------------------------------------------------------- with clients


def write_confluent(bootstrap: str, topic: str) -> None:
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"first", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(90) == 0 and errors == [None]


def write_kafka_python(bootstrap: str, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap.split(","), max_block_ms=90_000)
    try:
        assert producer.send(topic, b"first").get(90).offset == 0
    finally:
        producer.close()


def write_aiokafka(bootstrap: str, topic: str) -> None:
    async def write() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
        await producer.start()
        try:
            assert (await producer.send_and_wait(topic, b"first")).offset == 0
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(write(), 60))


CLIENTS = {"confluent-kafka": write_confluent, "kafka-python": write_kafka_python, "aiokafka": write_aiokafka}


@pytest.mark.parametrize("write", CLIENTS.values(), ids=CLIENTS)
@pytest.mark.parametrize("is_created", (False, True), ids=("creates itself", "is created"))
def test_the_first_record_of_a_client_finds_a_leader(
    running: InProcessCluster, name: str, wire: Wire, write: Callable[[str, str], None], is_created: bool
) -> None:
    bootstrap = running.bootstrap_servers()
    if is_created:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(name, 1, 3)])[name].result()
    write(bootstrap, name)
    wire.check(name)


def test_a_client_that_looks_at_new_partitions_finds_leaders(running: InProcessCluster, name: str, wire: Wire) -> None:
    admin = AdminClient({"bootstrap.servers": running.bootstrap_servers()})
    admin.create_topics([NewTopic(name, 2, 3)])[name].result()
    admin.create_partitions([NewPartitions(name, 6)])[name].result()
    assert len(admin.list_topics(name).topics[name].partitions) == 6
    wire.check(name)


def test_the_first_group_of_a_cluster_finds_its_coordinator_at_once(
    running: InProcessCluster, name: str, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinators, "FIRST_LEADERS_MS", 60_000)  # as long as a busy machine may take
    bootstrap = running.bootstrap_servers()
    write_confluent(bootstrap, name)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": name, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([name])
        found = consumer.poll(60)
        assert found is not None and found.error() is None and found.value() == b"first"
    finally:
        consumer.close()
    assert wire.coordinators and set(wire.coordinators) == {ErrorCode.none}


@pytest.fixture
def fresh() -> Iterator[InProcessCluster]:
    """A cluster without ``__consumer_offsets``."""
    with cluster(brokers=3) as found:
        yield found


def group_requests(group: str) -> list[tuple[Any, Callable[[Any], ErrorCode]]]:
    """One request of each kind about a group, and where its answer has the error."""
    member: dict[str, Any] = {"group_id": group, "member_id": "m", "group_instance_id": None}
    join = request(
        11,
        5,
        **{**member, "member_id": ""},
        session_timeout=milliseconds(10_000),
        rebalance_timeout=milliseconds(60_000),
        protocol_type="consumer",
        protocols=lambda module: (module.JoinGroupRequestProtocol(name="range", metadata=b""),),
    )
    sync = request(14, 3, **member, generation_id=1, assignments=())
    beat = request(12, 3, **member, generation_id=1)
    offsets = request(9, 5, group_id=group, topics=None)
    several = request(
        9,
        8,
        groups=lambda module: (module.OffsetFetchRequestGroup(group_id=group, topics=None),),
        require_stable=False,
    )
    return [
        (join, lambda reply: reply.error_code),
        (sync, lambda reply: reply.error_code),
        (beat, lambda reply: reply.error_code),
        (offsets, lambda reply: reply.error_code),
        (several, lambda reply: reply.groups[0].error_code),
    ]


@pytest.mark.parametrize("hold", [processes_held_back, openings_held_back], ids=["processes", "openings"])
def test_requests_about_groups_wait_for_a_coordinator_that_is_merely_new(
    fresh: InProcessCluster, hold: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that come before the Broker has heard of ``__consumer_offsets``."""
    for patience in ("UNKNOWN_TOPIC_MS", "FIRST_LEADERS_MS"):  # as long as a busy machine may take
        monkeypatch.setattr(coordinators, patience, 60_000)
    monkeypatch.setattr(owners, "OPEN_TIMEOUT_MS", 60_000)
    per_actor = "1" if hold is processes_held_back else "auto"
    with hold(fresh) as let_go:
        asked = group_requests("g")
        clients = [Client(fresh, 0) for _ in asked]
        waiting = [client.send(entity) for client, (entity, _) in zip(clients, asked, strict=True)]
        brokers = [(0,)] * 50  # nobody else may lead, however late this broker's processes are
        Client(fresh, 1).ask(create(OFFSETS_TOPIC, *brokers, timeout_ms=50, per_actor=per_actor))
        asker = Client(fresh, 0)
        eventually(lambda: bool(asker.ask(metadata(OFFSETS_TOPIC)).topics[0].partitions), "the Broker knows the topic")
        assert not any(each.done for each in waiting)
        let_go()
        found = [error_of(each.result()) for each, (_, error_of) in zip(waiting, asked, strict=True)]
    unknown = ErrorCode.unknown_member_id
    assert found == [ErrorCode.member_id_required, unknown, unknown, ErrorCode.none, ErrorCode.none]


def test_a_group_whose_topic_never_comes_has_no_coordinator(fresh: InProcessCluster) -> None:
    client = Client(fresh, 0)
    for entity, error_of in group_requests("g")[2:]:
        assert error_of(client.ask(entity)) is ErrorCode.not_coordinator
