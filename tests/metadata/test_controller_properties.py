"""Whatever happens in whatever order, the invariants hold and the log folds to the live state.

``check()`` of the controller runs inside ``World.feed`` after every event.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raylog.control.high_watermarks import HighWatermark
from raylog.metadata.configuration import effective_configs
from raylog.metadata.configuration.config_requests import (
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    ResourceChanges,
    ResourceType,
)
from raylog.metadata.events import ActorStarted
from raylog.metadata.image import MetadataImage
from raylog.metadata.partitions import elections
from raylog.metadata.records import decode_batch, encode_batch
from raylog.metadata.requests import (
    AlterReassignments,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    DrainBroker,
    PartitionGrowth,
    PartitionTarget,
    RegisterDisk,
    RequestedTopic,
    UnregisterBroker,
)
from raylog.raft.messages import EntryKind
from raylog.types import Condition

STEPS = (
    "kill", "kill", "restart", "restart", "suspect", "missing", "drop session", "come back", "come back", "time", "time",
    "shrink", "grow isr", "new controller", "create", "delete", "grow topic", "minimum", "unclean", "fail", "all gone",
    "mute", "high watermark", "high watermark",
    "reassign", "reassign", "cancel", "drain", "undrain", "unregister", "register", "all brokers", "one broker",
)  # fmt: skip


def disk_of(broker):
    return uuid.UUID(int=0xD000 + broker)


class Story:
    """A world to which things happen, chosen by numbers."""

    def __init__(self, new_world):
        self.world = new_world(num_partitions=1)
        self.world.starts_at_once = False
        self.epochs: dict[object, dict[int, tuple[int, int]]] = {}
        self.last: dict[object, object] = {}
        self.create(0)

    def happen(self, step: str, choice: int) -> None:
        world = self.world
        running = [process for _, process in sorted(world.processes.items()) if process.runs]
        connected = [process for process in running if process.session is not None]
        away = [process for process in running if process.session is None]
        partitions = sorted(
            id for ids in world.image.assigned.values() for id in ids if world.image.partition(id) is not None
        )
        match step:
            case "kill" if connected:
                connected[choice % len(connected)].kill()
            case "all gone":
                for process in connected:
                    process.runs = False
                world.restart_controller()
            case "restart" | "suspect" | "missing" if world.starts:
                self.start(choice, step)
            case "drop session" if connected:
                connected[choice % len(connected)].lose_session()
            case "come back" if away:
                process = away[choice % len(away)]
                process.mute = False
                process.hello()
                world.run_later()
            case "mute" if connected:
                connected[choice % len(connected)].mute = True
            case "high watermark" if partitions:
                self.report(partitions[choice % len(partitions)], choice)
            case "time":
                world.pass_time((50, 600, 1_200, 9_200)[choice % 4], step=50)
            case "new controller":
                world.restart_controller()
            case "create":
                self.create(choice)
            case "delete" if world.image.topic_ids:
                names = sorted(world.image.topic_ids)
                world.ask(DeleteTopics((names[choice % len(names)],)))
            case "grow topic" if world.image.topic_ids:
                names = sorted(world.image.topic_ids)
                name = names[choice % len(names)]
                world.ask(CreatePartitions((PartitionGrowth(name, len(world.image.topic_named(name).partitions) + 1),)))
            case "minimum" | "unclean" if world.image.topic_ids:
                names = sorted(world.image.topic_ids)
                key = {"minimum": "min.insync.replicas", "unclean": "unclean.leader.election.enable"}[step]
                value = str(1 + choice % 3) if step == "minimum" else ("true", "false")[choice % 2]
                world.configure(names[choice % len(names)], key, value)
            case "all brokers" | "one broker":
                self.configure_brokers(step, choice)
            case "drain" | "undrain":
                world.ask(DrainBroker(choice % 3, step == "drain"))
            case "unregister":
                world.ask(UnregisterBroker(choice % 3))
            case "register":
                broker = choice % 3
                world.ask(RegisterDisk(world.image.cluster_id, broker, disk_of(broker), f"/disks/{broker}"))
            case "reassign" | "cancel" if partitions:
                id = partitions[choice % len(partitions)]
                brokers = tuple((choice + place) % 3 for place in range(1 + choice // 3 % 3))
                target = PartitionTarget(
                    world.image.topics[id.topic_id].name, id.partition, brokers if step == "reassign" else None
                )
                world.ask(AlterReassignments((target,)))
            case "shrink" | "grow isr" | "fail" if partitions:
                self.touch(step, partitions[choice % len(partitions)], choice)
        self.observe()

    def configure_brokers(self, step, choice):
        keys = ("log.retention.ms", "min.insync.replicas", "unclean.leader.election.enable")
        key = keys[choice % 3] if step == "all brokers" else keys[0]
        value = ("true", "false")[choice % 2] if key == keys[2] else str(1 + choice % 5)
        operation = ConfigOperation.DELETE if choice > 8 else ConfigOperation.SET
        name = "" if step == "all brokers" else str(choice % 3)
        change = ConfigChange(key, operation, value)
        self.world.ask(AlterConfigs((ResourceChanges(ResourceType.BROKER, name, (change,)),)))

    def start(self, choice, step):
        start = self.world.starts.pop(choice % len(self.world.starts))
        old = self.world.processes.get(start.node_id)
        if old is not None and old.session is None:
            old.runs = False
        self.world.feed(ActorStarted(start.node_id))
        process = self.world.launch(start.node_id, says_hello=False)
        process.default_condition = {"suspect": Condition.SUSPECT, "missing": Condition.MISSING}.get(step)
        process.hello()
        self.world.run_later()

    def touch(self, step, id, choice):
        state = self.world.state(id)
        leader = self.world.processes.get(state.node_of(state.leader))
        if leader is None or leader.session is None or id not in leader.told:
            return
        if step == "fail":
            leader.fail(id)
            return
        others = [broker for broker in state.brokers if broker != state.leader]
        if any(state.node_of(broker) not in self.world.processes for broker in others):
            return
        isr = [state.leader] + [broker for index, broker in enumerate(others) if choice >> index & 1]
        leader.alter(id, *isr)

    def report(self, id, choice) -> None:
        """The leader of a partition, if it is connected, says how far its high watermark is."""
        state = self.world.state(id)
        leader = self.world.processes.get(state.node_of(state.leader))
        if leader is not None and leader.session is not None:
            leader.report(id, HighWatermark(state.leader_epoch, choice))

    def create(self, choice):
        name = f"t{choice % 5}"
        configs = (("replicas.per.actor", str(1 + choice % 3)), ("min.insync.replicas", str(1 + choice % 2)))
        self.world.ask(CreateTopics((RequestedTopic(name, 1 + choice % 3, 1 + choice % 3, configs=configs),)))

    def observe(self):
        """What must hold over time: epochs never go back, and each leader epoch has one replica and one incarnation."""
        for topic_id, topic in self.world.image.topics.items():
            for partition, state in topic.partitions.items():
                key = (topic_id, partition)
                before = self.last.get(key)
                if before is not None:
                    assert state.leader_epoch >= before.leader_epoch and state.partition_epoch >= before.partition_epoch
                    if before.isr and not state.isr:
                        assert any("no longer in sync" in notice for notice in self.world.notices)
                self.last[key] = state
                if state.leader >= 0:
                    who = (state.leader, state.leader_incarnation)
                    assert self.epochs.setdefault(key, {}).setdefault(state.leader_epoch, who) == who

    def fold(self) -> MetadataImage:
        """The image that the entries on the disk fold to."""
        image = MetadataImage.of([])
        image.cluster_id = self.world.image.cluster_id
        for entry in self.world.entries:
            if entry.kind is EntryKind.RECORDS:
                for record in decode_batch(entry.data):
                    image.apply(record)
        return image


stories = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 11)), max_size=40)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(stories)
def test_invariants_hold_and_the_log_folds_to_the_live_state(new_world, story):
    told = Story(new_world)
    for step, choice in story:
        told.happen(step, choice)
    image = told.world.image
    assert told.fold() == image
    assert MetadataImage.of(decode_batch(encode_batch(image.records()))) == image
    assert told.world.controller.active.latest == image
    for process in told.world.processes.values():
        if process.session is not None and not process.mute:
            for id in image.assigned.get(process.node, ()):
                topic = image.topics[id.topic_id]
                if id in process.held:
                    assert dict(process.told[id].config) == effective_configs.of_log(image, topic, process.broker), id
                    minimum = effective_configs.integer(image, topic, "min.insync.replicas")
                    assert process.told[id].min_isr == elections.effective_min_isr(image.partition(id), minimum), id


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(stories)
def test_when_everything_is_well_again_every_partition_with_a_log_has_a_leader(new_world, story):
    told = Story(new_world)
    for step, choice in story:
        told.happen(step, choice)
    world = told.world
    world.starts_at_once = True
    for process in list(world.processes.values()):
        process.mute = False
        if process.runs and process.session is None:
            process.hello()
            world.run_later()
    for start in list(world.starts):
        world.start(start)
    world.pass_time(45_000, step=250)
    for topic in world.image.topics.values():
        for partition, state in topic.partitions.items():
            for slot in state.replicas:
                assert world.processes[slot.node_id].session is not None, f"{slot} has no process"
            given_up = not state.isr and not state.elr
            failed = any(
                world.controller.active._sessions.of_node(slot.node_id).failed for slot in state.replicas
            )  # a disk that failed under a process stays failed as long as that lives
            assert state.leader >= 0 or given_up or failed, f"{topic.name}-{partition}: {state}"


def trace() -> str:
    """A digest of everything that a fixed story makes the controller say."""
    sys.path.insert(0, str(Path(__file__).parent))
    import conftest

    told = Story(conftest.World)
    for number in range(300):
        told.happen(STEPS[number * 7 % len(STEPS)], number * number % 11)
    world = told.world
    lines = [repr(entry) for entry in world.entries] + world.notices + [repr(start) for start in world.starts]
    lines += [repr(frame) for _, process in sorted(world.processes.items()) for frame in process.heard]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@pytest.mark.core
def test_the_same_story_gives_the_same_trace_under_another_hash_seed():
    digests = set()
    for seed in ("1", "2"):
        code = f"import runpy; print(runpy.run_path({__file__!r})['trace']())"
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(run.stdout.strip())
    assert len(digests) == 1 and len(digests.pop()) == 64
