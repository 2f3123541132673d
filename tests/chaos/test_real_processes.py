"""SIGKILL and SIGSTOP of real processes, and a whole node away and back, under a load that knows what was acknowledged.

Victims and moments are drawn from a seed that is printed. After each fault: no acknowledged record is missing, none is there twice, the
order of every key is kept, all replicas are byte for byte the same below the high watermark, and the ISR is whole again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from process_faults import (
    Condition,
    Fault,
    Target,
    kill_broker,
    kill_controller,
    kill_follower,
    kill_leader,
    node_away,
    stop_controller,
    stop_follower,
    stop_leader,
    stopped,
)
from ray_clusters import eventually

import raylog
from raylog import NewTopic
from raylog.listener.moves import PATIENCE
from raylog.offsets_topic import TRANSACTIONS_TOPIC, partition_for
from raylog.records.batch import batches
from raylog.testing.verifiable_load import VerifiableLoad
from raylog.types import TopicPartition

pytestmark = pytest.mark.chaos

UnderLoad = Callable[..., AbstractContextManager[VerifiableLoad]]


def acknowledges(load: VerifiableLoad, target: Target, least: int, most: int) -> None:
    """Let the load go on: until a random number of further records is acknowledged, and no longer."""
    goal = load.ledger.acknowledged + target.dice.randint(least, most)
    eventually(lambda: load.ledger.acknowledged >= goal, f"{goal} acknowledged records, {load.ledger.acknowledged} are")


def successor(target: Target, before: dict[str, Any]) -> dict[str, Any] | None:
    """The status as a later controller knows it."""
    status = target.status()
    return status if status["controller"]["epoch"] > before["controller"]["epoch"] else None


def leaders(status: dict[str, Any]) -> list[tuple[int, int]]:
    return [(part["leader_node"], part["leader_epoch"]) for topic in status["topics"] for part in topic["partitions"]]


def all_controllers_follow(target: Target) -> bool:
    quorum = target.nodes.cluster.quorum()
    return len(quorum["voters"]) == 3 and all(each["reachable"] and each["lag"] == 0 for each in quorum["voters"])


@pytest.mark.parametrize(
    "strike", [kill_leader, kill_follower, kill_controller, kill_broker], ids=lambda each: each.__name__
)
def test_a_killed_process_costs_nothing_that_was_acknowledged(
    target: Target, under_load: UnderLoad, strike: Fault
) -> None:
    with under_load() as load:
        for _ in range(2):
            acknowledges(load, target, 2_000, 15_000)
            strike(target, lambda had_effect: eventually(had_effect, "the fault is noticed"))


@pytest.mark.parametrize("strike", [kill_leader, kill_broker], ids=lambda each: each.__name__)
def test_a_killed_process_costs_clients_outside_nothing_that_was_acknowledged(
    target: Target, under_load: UnderLoad, strike: Fault
) -> None:
    outside = raylog.connect(bootstrap_servers=target.nodes.cluster.bootstrap_servers())
    with under_load(outside.address) as load:
        acknowledges(load, target, 2_000, 15_000)
        strike(target, lambda had_effect: eventually(had_effect, "the fault is noticed"))


@pytest.mark.parametrize("strike", [stop_leader, stop_follower], ids=lambda each: each.__name__)
def test_a_process_that_fell_silent_and_wakes_up_costs_nothing_that_was_acknowledged(
    target: Target, under_load: UnderLoad, strike: Fault
) -> None:
    with under_load() as load:

        def hold(had_effect: Condition) -> None:
            eventually(had_effect, "the silent process is declared dead")
            acknowledges(load, target, 5_000, 15_000)

        acknowledges(load, target, 2_000, 15_000)
        strike(target, hold)
        acknowledges(load, target, 5_000, 15_000)


def test_a_kafka_client_does_not_wait_for_the_silent_process_that_its_connection_has_moved_to(target: Target) -> None:
    topic = "still"
    with target.nodes.cluster.admin() as admin:
        admin.create_topics([NewTopic(topic, 1, 3, configs={"min.insync.replicas": "2"})])
    alone = Target(target.nodes, topic, target.dice, target.faults)
    eventually(alone.is_whole, "all replicas in sync")
    patient = {"socket.timeout.ms": 300_000, "message.timeout.ms": 300_000}
    servers = target.nodes.cluster.bootstrap_servers()
    client = confluent_kafka.Producer(
        {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 0, **patient}
    )

    def write(value: bytes) -> None:
        client.produce(topic, value)
        assert client.flush(60) == 0, f"{value!r} was not acknowledged"

    for number in range(4 * PATIENCE):  # one by one, so that its connection moves to the process that leads
        write(b"%d" % number)
    with stopped(alone, alone.leaders):
        write(b"while it stands still")
    write(b"afterwards")
    with target.nodes.cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        found = [record.value for record in consumer.consume(4 * PATIENCE + 2, timeout=60)]
    assert found == [b"%d" % number for number in range(4 * PATIENCE)] + [b"while it stands still", b"afterwards"]


def test_a_transactional_producer_goes_on_while_its_coordinator_stands_still(target: Target) -> None:
    """Its connection to the coordinator has moved there, too."""
    topic, transactional_id = "in-transactions", "goes-on"
    with target.nodes.cluster.admin() as admin:
        admin.create_topics([NewTopic(topic, 1, 3, configs={"min.insync.replicas": "2"})])
    patient = {"socket.timeout.ms": 300_000, "message.timeout.ms": 300_000, "transaction.timeout.ms": 300_000}
    servers = target.nodes.cluster.bootstrap_servers()
    client = confluent_kafka.Producer(
        {"bootstrap.servers": servers, "transactional.id": transactional_id, "linger.ms": 0, **patient}
    )
    client.init_transactions(60)

    def commit(*values: bytes) -> None:
        client.begin_transaction()
        for value in values:
            client.produce(topic, value)
        client.commit_transaction(60)

    for number in range(4 * PATIENCE):
        commit(b"%d" % number)
    coordinated = Target(target.nodes, TRANSACTIONS_TOPIC, target.dice, target.faults)
    number = partition_for(transactional_id)
    with stopped(target, lambda status: [each for each in coordinated.leaders(status) if each.partition == number]):
        commit(b"while", b"it stands still")
    commit(b"afterwards")
    with target.nodes.cluster.consumer(auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
        consumer.assign([(topic, 0)])
        found = [record.value for record in consumer.consume(4 * PATIENCE + 3, timeout=60)]
    assert found == [b"%d" % each for each in range(4 * PATIENCE)] + [b"while", b"it stands still", b"afterwards"]


@pytest.fixture
def leaders_stay(target: Target) -> Iterator[None]:
    """No leadership goes back to where it was, as the controller would otherwise see to every few minutes."""
    name = "auto.leader.rebalance.enable"
    with target.nodes.cluster.admin() as admin:
        admin.alter_configs(broker="all", set={name: "false"})
        yield
        admin.alter_configs(broker="all", delete=[name])


@pytest.mark.usefixtures("leaders_stay")
def test_a_silent_controller_is_succeeded_and_stops_no_load(target: Target, under_load: UnderLoad) -> None:
    with under_load() as load:
        before = target.status()

        def hold(_: Condition) -> None:
            after = eventually(lambda: successor(target, before), "a standby serves")
            acknowledges(load, target, 20_000, 40_000)
            assert leaders(after) == leaders(before), "nobody but the controller fell silent"

        acknowledges(load, target, 2_000, 15_000)
        stop_controller(target, hold)
        acknowledges(load, target, 5_000, 15_000)
        eventually(lambda: all_controllers_follow(target), "the one that woke up follows")


def test_a_controller_whose_node_is_lost_is_succeeded(target: Target, under_load: UnderLoad) -> None:
    with under_load() as load:
        while (before := target.status())["controller"]["broker"] == 0:  # its node is Ray's head
            kill_controller(target, lambda had_effect: eventually(had_effect, "a standby serves"))
        home = before["controller"]["broker"]
        acknowledges(load, target, 2_000, 15_000)
        target.nodes.remove(home)
        eventually(lambda: successor(target, before), "a standby serves")
        with target.nodes.cluster.admin() as admin:
            admin.create_topics([NewTopic("made-meanwhile", 1, 2)])
        eventually(
            lambda: all(home in part["offline"] for part in target.parts()), "the node's replicas are known to be gone"
        )
        acknowledges(load, target, 5_000, 15_000)
        target.nodes.restore(home)
        acknowledges(load, target, 5_000, 15_000)
        eventually(lambda: all_controllers_follow(target), "the controller of the node that came back follows")


def test_a_node_that_went_and_came_back_with_its_disk_catches_up(target: Target, under_load: UnderLoad) -> None:
    with under_load() as load:

        def hold(had_effect: Condition) -> None:
            eventually(had_effect, "the node's replicas are known to be gone")
            acknowledges(load, target, 5_000, 15_000)

        acknowledges(load, target, 2_000, 15_000)
        node_away(target, hold)
        acknowledges(load, target, 5_000, 15_000)


def flip_a_bit(log: Path) -> int:
    """In the records of a batch in the middle of a log's file; returns its base offset."""
    content = log.read_bytes()
    views = list(batches(content, allow_partial_tail=True))
    view = views[len(views) // 2]
    with log.open("r+b") as file:
        file.seek(view.end - 1)
        file.write(bytes([content[view.end - 1] ^ 0x04]))
    return view.base_offset


def damage_told(target: Target, what: str) -> list[str]:
    return [f"{actor['broker']} {words}" for actor in target.status()["actors"] for words in actor[what]]


def test_a_bit_flipped_in_a_leaders_log_costs_nothing_that_was_acknowledged(
    target: Target, under_load: UnderLoad
) -> None:
    """Its readers read on, another replica leads, and the damaged copy is made anew: ``under_load`` compares all three."""
    with under_load() as load, target.nodes.cluster.consumer() as consumer:
        acknowledges(load, target, 5_000, 15_000)
        partition = target.dice.randrange(len(target.parts()))
        leader = target.part(partition)["leader"]
        name = f"{target.topic}-{partition}"
        logs = sorted((target.nodes.disks[leader] / name).glob("*.log"))
        offset = flip_a_bit(logs[-1])
        consumer.assign([TopicPartition(target.topic, partition)])
        consumer.seek(TopicPartition(target.topic, partition), max(0, offset - 100))
        read = []

        def reads_on() -> bool:
            read.extend(record.offset for record in consumer.consume(10_000, timeout=0.2))
            return bool(read) and read[-1] > offset + 100

        eventually(reads_on, f"{name} is read beyond offset {offset}")
        assert read == list(range(read[0], read[-1] + 1)), "without a gap"
        (words,) = eventually(lambda: damage_told(target, "mended"), "the damaged log is mended")
        assert words.startswith(f"{leader} {name}: ") and f"offset {offset}: a CRC does not fit" in words
        assert target.part(partition)["leader"] != leader
        acknowledges(load, target, 5_000, 15_000)
    assert damage_told(target, "damaged") == []
