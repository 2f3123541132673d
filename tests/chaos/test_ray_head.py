"""Machines of a Ray cluster go away, the head's first of all, under a load that knows what was acknowledged.

The Ray is one of four machines, each started by ``ray start`` as a user would (``tests/support/ray_machines.py``): the head holds no
broker, the others have a disk each. ``RAYLOG_HEAD_AWAY_S`` says for how long the head stays away (10 seconds).
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ray_clusters import PATIENCE_S, eventually, kill
from ray_machines import HEAD, RayMachines, namespace_command

import raylog
from raylog import NewTopic
from raylog.disks.disk import encode_id, format_disk, new_id, open_disk
from raylog.errors import RaylogError
from raylog.metadata.configuration.controller_config import ControllerConfig
from raylog.placement.groups import group_name
from raylog.testing.verifiable_load import VerifiableLoad, audit_of

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]  # on a busy machine each start of Ray takes its time

SESSION_TIMEOUT_S = ControllerConfig().session_timeout_ms / 1000
HEAD_AWAY_S = float(os.environ.get("RAYLOG_HEAD_AWAY_S", "10"))
PAUSE_MAX_S = 1.0
TOPIC = "fire"
PARTITIONS = 2
RECORDS_PER_SECOND = 2_000


@dataclass(slots=True)
class Fleet:
    """Three brokers, each on a machine of its own, and the cluster on them."""

    machines: RayMachines
    data: Path
    cluster: raylog.Cluster

    def status(self) -> dict[str, Any]:
        def ask() -> dict[str, Any] | None:
            try:
                return self.cluster.status(timeout_s=3)
            except RaylogError:
                return None

        found: dict[str, Any] = eventually(ask, "a controller answers")
        return found

    def parts(self) -> list[dict[str, Any]]:
        return [part for each in self.status()["topics"] if each["name"] == TOPIC for part in each["partitions"]]

    def actor(self, node_id: int) -> dict[str, Any]:
        found: dict[str, Any] = next(each for each in self.status()["actors"] if each["node_id"] == node_id)
        return found

    def pids(self) -> dict[int, int]:
        """The process of each server actor by node id; the controllers' by their own ids, negative."""
        controllers = [
            each.pid for name in self.machines.disks for each in self.machines.processes_called("ControllerActor", name)
        ]
        return {-pid: pid for pid in controllers} | {each["node_id"]: each["pid"] for each in self.status()["actors"]}

    def is_whole(self) -> bool:
        """Whether every replica is alive and in the ISR."""
        parts = self.parts()
        return bool(parts) and all(
            part["leader"] >= 0 and not part["offline"] and sorted(part["isr"]) == sorted(part["replicas"])
            for part in parts
        )

    def broker(self, broker: int) -> dict[str, Any]:
        found: dict[str, Any] = next(each for each in self.status()["brokers"] if each["id"] == broker)
        return found

    def a_leading_broker(self) -> int:
        """One that leads partitions and may go: no controller is on its disk."""
        with self.cluster.admin() as admin:
            admin.elect_leaders()
        home = self.status()["controller"]["broker"]
        return next(part["leader"] for part in self.parts() if part["leader"] not in (-1, home))

    def verify(self) -> None:
        """All replicas are the same, byte for byte."""
        with self.cluster.admin() as admin:
            verification = admin.verify_replicas([TOPIC])
        assert verification.holds, verification.words()

    def controllers_words(self) -> str:
        """What the controllers have said so far."""
        logs = sorted(self.machines.folder.glob("node-*/session_2*/logs/worker-*.err"))
        return "".join(line for log in logs for line in log.read_text().splitlines(True) if "raylog.controller" in line)

    @contextmanager
    def under_load(self) -> Iterator[VerifiableLoad]:
        """A load, and at its end what must hold: the ISR whole, nothing given up, nothing acknowledged lost."""
        address = self.cluster.address
        with VerifiableLoad(address, TOPIC, partitions=PARTITIONS, records_per_second=RECORDS_PER_SECOND) as load:
            acknowledges(load, 2_000)
            yield load
            eventually(self.is_whole, "all replicas in sync again")
        print(load.words())
        assert not load.ledger.failed, load.words()
        findings = audit_of(load, address)
        print(findings.words())
        assert findings.holds, findings.words()


def acknowledges(load: VerifiableLoad, count: int) -> None:
    """Let the load go on until so many further records are acknowledged."""
    goal = load.ledger.acknowledged + count
    eventually(lambda: load.ledger.acknowledged >= goal, f"{goal} acknowledged records")


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    namespace = namespace_command()
    if namespace is None:
        pytest.skip("no PID namespace may be made here (unshare --pid): a restarted Ray head would see its own nodes")
    folder = Path(tempfile.mkdtemp(prefix="rl"))
    data = folder / "data"
    cluster_id, secret = encode_id(new_id()), "a secret of this test"
    disks = {
        f"node-{broker}": [
            format_disk(
                data / f"broker-{broker}",
                cluster_id=cluster_id,
                broker_id=broker,
                rack=None,
                controllers=[],
                secret=secret,
            ).path
        ]
        for broker in range(3)
    }
    machines = RayMachines(folder, namespace, disks)
    try:
        machines.start_all()
        with machines.command("up", data, "--address", machines.address) as up:
            output, _ = up.communicate(timeout=PATIENCE_S)
        assert up.returncode == 0, output
        made = Fleet(machines, data, raylog.connect(folder=data))
        with made.cluster.admin() as admin:
            admin.create_topics(
                [NewTopic(TOPIC, PARTITIONS, 3, configs={"min.insync.replicas": "2", "retention.ms": "-1"})]
            )
        eventually(made.is_whole, "all replicas in sync")
        yield made
    finally:
        machines.kill()
        shutil.rmtree(folder, ignore_errors=True)


# ------------------------------------------------------------------ the head

CLIENT = """
import ray
address, node_ip, ending = sys.argv[1:]
ray.init(address=address, _node_ip_address=node_ip, log_to_driver=False, logging_level="ERROR")
cluster = raylog.connect()
here = raylog.TopicPartition("beside", 0)
worst = sent = 0
with cluster.producer(acks="all") as producer, cluster.consumer() as consumer:
    consumer.assign([here])
    consumer.seek_to_beginning()
    while not os.path.exists(ending):
        started = time.monotonic()
        offset = producer.send("beside", b"x", partition=0).result(60).offset
        found = eventually(lambda: consumer.consume(1, timeout=1.0))
        assert found[0].offset == offset, (found, offset)
        if sent:  # the first one opens connections
            worst = max(worst, time.monotonic() - started)
        else:
            note(ready=True)
        sent += 1
        time.sleep(0.01)
note(worst=worst, sent=sent, alive=sum(node["Alive"] for node in ray.nodes()))
"""


def test_reading_writing_and_elections_go_on_while_the_head_is_away(fleet: Fleet) -> None:
    """The client is a Ray driver on another node, which writes records and reads each one back."""
    machines = fleet.machines
    with fleet.cluster.admin() as admin:
        admin.create_topics([NewTopic("beside", 1, 3, configs={"min.insync.replicas": "2"})])
    with fleet.under_load() as load, machines.program(CLIENT, machines.address, machines.ip("node-1")) as client:
        before = fleet.pids()
        away_at = time.monotonic()
        machines.kill(HEAD)
        acknowledges(load, 2_000)
        part = fleet.parts()[0]
        victim, epoch = part["leader_node"], part["leader_epoch"]
        kill(before[victim])
        eventually(lambda: fleet.parts()[0]["leader_epoch"] > epoch, "another leader")
        eventually(lambda: time.monotonic() - away_at > HEAD_AWAY_S, "the head was away for long")
        assert fleet.actor(victim)["state"] != "live", "who has started it without a head?"
        acknowledges(load, 2_000)
        machines.start(HEAD)
        eventually(lambda: fleet.actor(victim)["state"] == "live", "the killed leader's process is started again")
        back_at = time.monotonic()
        after = fleet.pids()
    pause_s, slowest_s = load.ledger.longest_pause(away_at, back_at), client.facts["worst"]
    print(
        f"Ray's head was away for {back_at - away_at:.1f} s: longest pause of a partition {1000 * pause_s:,.0f} ms; a client on "
        f"another node wrote and read {client.facts['sent']:,} records one by one, the slowest in {1000 * slowest_s:,.0f} ms."
    )
    assert {node for node, pid in before.items() if after.get(node) != pid} == {victim}, "the others keep theirs"
    assert len(after) == len(before) == 3 + 3 + 3 * 2, "controllers, Brokers, hosts"
    assert pause_s < PAUSE_MAX_S and slowest_s < PAUSE_MAX_S
    assert client.facts["alive"] == 4, "the client's own Ray connection works again"


# ------------------------------------------------------------------ a node

NOTICE = """
import ray
from ray.core.generated import autoscaler_pb2
address, node = sys.argv[1:]
gcs = ray._raylet.GcsClient(address=address)
told_at = time.time()
reason = autoscaler_pb2.DRAIN_NODE_REASON_PREEMPTION
accepted, why_not = gcs.drain_node(node, reason, "the provider wants it back", int(told_at + 600) * 1000)
assert accepted, why_not
note(told_at=told_at)
"""


def test_leaders_leave_a_node_within_a_second_of_its_drain_notice(fleet: Fleet) -> None:
    """What ``ray drain-node`` does, in a program that tells when it did it. Then the node goes, and one with its disk comes."""
    machines = fleet.machines
    with fleet.under_load() as load:
        broker = fleet.a_leading_broker()
        machine = f"node-{broker}"
        notice = machines.run(NOTICE, machines.address, machines.node_id(machine))
        eventually(lambda: broker not in {part["leader"] for part in fleet.parts()}, "the leaders leave", timeout_s=10)
        left_s = time.time() - notice["told_at"]
        pause_s = load.ledger.longest_pause(time.monotonic() - 2 * left_s, time.monotonic())
        print(
            f"Leaders had left a node {1000 * left_s:,.0f} ms after its notice; a partition paused for {1000 * pause_s:,.0f} ms."
        )
        assert all(sorted(part["isr"]) == sorted(part["replicas"]) for part in fleet.parts()), "its replicas follow on"
        assert fleet.broker(broker)["draining"]
        machines.kill(machine)
        machines.start(machine)
        eventually(fleet.is_whole, "the replicas of the new node are in sync")
        assert not fleet.broker(broker)["draining"], "the new node is not draining"
    assert left_s < 1.0
    with fleet.cluster.admin() as admin:
        admin.elect_leaders()
    assert broker in {part["leader"] for part in fleet.parts()}, "it may lead again"


def test_the_leaders_of_a_node_that_fell_silent_move_after_the_session_timeout(fleet: Fleet) -> None:
    with fleet.under_load() as load:
        broker = fleet.a_leading_broker()
        silent_at = time.monotonic()
        with fleet.machines.silent(f"node-{broker}"):
            eventually(lambda: broker not in {part["leader"] for part in fleet.parts()}, "its leaders move")
            moved_s = time.monotonic() - silent_at
            acknowledges(load, 2_000)
        print(f"Leaders had left a silent node after {moved_s:.1f} s.")
        eventually(fleet.is_whole, "the node that woke up is in sync")
    assert SESSION_TIMEOUT_S - 2.5 < moved_s < SESSION_TIMEOUT_S + 4, "the last heartbeat came up to two seconds before"
    fleet.verify()


GROUP = """
import ray
from ray.util.placement_group import placement_group_table
address, node_ip, name = sys.argv[1:]
ray.init(address=address, _node_ip_address=node_ip, log_to_driver=False, logging_level="ERROR")
def states():
    return [each["state"] for each in placement_group_table().values() if each["name"] == name]
eventually(lambda: states() != ["CREATED"])  # Ray has noticed
note(states=states())
"""


def test_the_leaders_of_a_node_that_ended_move_at_once_and_its_processes_wait_for_it(fleet: Fleet) -> None:
    machines = fleet.machines
    with fleet.under_load() as load:
        broker = fleet.a_leading_broker()
        machine = f"node-{broker}"
        ended_at = time.monotonic()
        machines.kill(machine)
        eventually(lambda: broker not in {part["leader"] for part in fleet.parts()}, "its leaders move")
        moved_s = time.monotonic() - ended_at
        acknowledges(load, 2_000)
        name = group_name(open_disk(machines.disks[machine][0]).directory_id)
        elsewhere = next(each for each in machines.disks if each != machine)
        waiting = machines.run(GROUP, machines.address, machines.ip(elsewhere), name)
        noticed_s = time.monotonic() - ended_at
        assert waiting["states"] == ["RESCHEDULING"], "Ray keeps the group for the disk"
        mine = [each for each in fleet.status()["actors"] if each["broker"] == broker]
        assert {each["state"] for each in mine} == {"starting"}, "one creation of each is pending"
        machines.start(machine)
        eventually(fleet.is_whole, "the node's replicas have caught up")
    pause_s = load.ledger.longest_pause(ended_at, ended_at + 5)
    print(
        f"Leaders had left a node that ended after {1000 * moved_s:,.0f} ms; a partition paused for {1000 * pause_s:,.0f} ms."
    )
    assert moved_s < SESSION_TIMEOUT_S / 2 and pause_s < SESSION_TIMEOUT_S / 2
    said = fleet.controllers_words().count("could not be created")
    tries = 1 + math.ceil(math.log2(max(1.0, 1000 * noticed_s / ControllerConfig().start_backoff_ms)))
    assert said <= tries * len(mine), "each was tried with backoff until Ray gave up the node; from then on Ray waits"
    fleet.verify()


# ------------------------------------------------------------------ everything

HOLDER = """
import fcntl
from pathlib import Path
disk, ending = map(Path, sys.argv[1:])
held = [open(path, "r+") for path in sorted(disk.rglob("*.lock"))]
for each in held:
    fcntl.flock(each, fcntl.LOCK_EX)
note(ready=True)
eventually(ending.exists)
note(held=len(held))
"""


def test_up_rebuilds_everything_from_the_disks_when_ray_has_forgotten_it(fleet: Fleet) -> None:
    """Ray's state is deleted and everybody killed; but the locks of one broker's folders are still held for a moment."""
    machines = fleet.machines
    with fleet.under_load() as load:
        lost_at = time.monotonic()
        machines.kill()
        shutil.rmtree(machines.store)
        with machines.program(HOLDER, machines.disks["node-2"][0]) as holder:
            machines.start_all()
            up_at, acknowledged = time.monotonic(), load.ledger.acknowledged
            with machines.command("up", fleet.data, "--address", machines.address) as up:
                eventually(lambda: load.ledger.acknowledged > acknowledged, "the cluster serves")
                serves_at = time.monotonic()
                eventually(lambda: machines.processes_called("BrokerActor", "node-2"), "a new process of broker 2")
                acknowledges(load, 2_000)
                assert not fleet.broker(2)["live"], "its folder is locked"
                holder.end()
                output, _ = up.communicate(timeout=PATIENCE_S)
        assert up.returncode == 0 and "3 brokers" in output, output
    assert holder.facts["held"] > 1
    print(
        f"Ray was there again, empty, {up_at - lost_at:.1f} s after everything was lost; `raylog up` served {serves_at - up_at:.1f} s "
        "later."
    )
