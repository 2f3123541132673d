"""Exactly once on real processes: copiers carry records from topic to topic while whoever they depend on, and they, are killed.

The shape of Apache Kafka's transactions system test. confluent-kafka's producers speak transactions of the protocol before v2.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from copies import Copies
from process_faults import Fault, Target, kill_broker, kill_controller, kill_leader, stopped
from ray_clusters import eventually, isr_is_whole

from raylog import NewTopic
from raylog.histories import check
from raylog.offsets_topic import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

pytestmark = pytest.mark.chaos

PARTITIONS = 3
COPIERS = 3
KILLS = int(os.environ.get("RAYLOG_CHAOS_KILLS", "100"))


@contextmanager
def copies_under_fire(target: Target, name: str, log: Path) -> Iterator[tuple[Target, Copies]]:
    """Copiers that have copied something, and the target with the output as its topic."""
    source, sink = f"input-{name}", f"output-{name}"
    configs = {"min.insync.replicas": "2", "retention.ms": "-1"}
    with target.nodes.cluster.admin() as admin:
        admin.create_topics([NewTopic(topic, PARTITIONS, 3, configs=configs) for topic in (source, sink)])
    bootstrap = target.nodes.cluster.bootstrap_servers()
    with Copies(bootstrap, source, sink, PARTITIONS, COPIERS, log) as copies:
        copies.goes_on_everywhere()
        for topic in (source, sink, TRANSACTIONS_TOPIC, OFFSETS_TOPIC):
            eventually(
                lambda topic=topic: isr_is_whole(target.nodes.cluster, topic), f"all replicas of {topic} in sync"
            )  # type: ignore[misc]
        yield replace(target, topic=sink), copies


def kill(target: Target, copies: Copies, whom: str) -> None:
    """SIGKILL somebody now."""
    faults: dict[str, tuple[Fault, str]] = {
        "leader": (kill_leader, target.topic),
        "transactions' coordinator": (kill_leader, TRANSACTIONS_TOPIC),
        "group's coordinator": (kill_leader, OFFSETS_TOPIC),
        "Broker": (kill_broker, target.topic),
        "controller": (kill_controller, target.topic),
    }
    if whom == "copier":
        target.dice.choice(copies.copiers).kill()
    else:
        fault, topic = faults[whom]
        fault(replace(target, topic=topic), lambda had_effect: None)


VICTIMS = ("leader", "transactions' coordinator", "group's coordinator", "Broker", "controller", "copier")
SILENT: dict[str, Callable[[Target], str]] = {
    "leader": lambda target: target.topic,
    "transactions' coordinator": lambda _: TRANSACTIONS_TOPIC,
}


def silence(stack: ExitStack, target: Target, copies: Copies, whom: str) -> None:
    """SIGSTOP somebody until the stack ends."""
    if whom == "copier":
        stack.enter_context(target.dice.choice(copies.copiers).stopped())
    else:
        struck = replace(target, topic=SILENT[whom](target))
        stack.enter_context(stopped(struck, struck.leaders))


def test_copies_are_there_once_while_brokers_and_copiers_are_killed(target: Target, tmp_path: Path) -> None:
    with copies_under_fire(target, "short", tmp_path / "copiers.log") as (struck, copies):
        with ExitStack() as stack:
            silence(stack, struck, copies, "copier")
            kill(struck, copies, "transactions' coordinator")
            copies.goes_on_everywhere()  # the silent one's partitions are others' by now
        for whom in struck.dice.sample([*VICTIMS, "copier"], k=len(VICTIMS) + 1):
            kill(struck, copies, whom)
            copies.goes_on(struck.dice.randint(0, 2_000))
        found = copies.finish()
    verdict = check(copies.recorder.history())
    print(copies.figures, *(each.words() for each in found), verdict.words(), (tmp_path / "copiers.log").read_text())
    assert all(each.holds for each in found), found
    if not verdict.holds:  # pytest would write a whole history into its message
        pytest.fail(verdict.words())
    assert verdict.polled == 2 * found[0].fed


@pytest.mark.slow
def test_copies_are_there_once_after_a_hundred_kills(target: Target, tmp_path: Path) -> None:
    began_at = time.monotonic()
    killed: Counter[str] = Counter()
    with copies_under_fire(target, "long", tmp_path / "copiers.log") as (struck, copies):
        while killed.total() < KILLS:
            with ExitStack() as stack:
                silence(stack, struck, copies, struck.dice.choice([*SILENT, "copier"]))
                for whom in struck.dice.sample(VICTIMS, k=4):
                    kill(struck, copies, whom)
                    killed[whom] += 1
                    copies.goes_on(struck.dice.randint(0, 3_000))
            for whom in struck.dice.sample(VICTIMS, k=6):
                kill(struck, copies, whom)
                killed[whom] += 1
                copies.goes_on(struck.dice.randint(0, 3_000))
        found = copies.finish()
    print(f"{time.monotonic() - began_at:.0f} s, {killed.total()} kills: {dict(killed)}")
    print(copies.figures, *(each.words() for each in found), (tmp_path / "copiers.log").read_text())
    assert all(each.holds for each in found), found
