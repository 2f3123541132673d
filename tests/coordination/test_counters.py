"""A coordinator of another kind than groups, in the simulated cluster: a counter never goes back and never runs ahead.

``support.counters`` is all that the second kind brings: ``CoordinatorRuntime`` does the rest, through deaths of its leaders.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from raylog.coordination.context import CoordinatorContext
from raylog.metadata.requests import CreateTopics, ElectionType, RequestedTopic
from raylog.simulator.administration import Administration
from raylog.simulator.checkers import Violation
from raylog.simulator.coordinator_processes import CoordinatorCall, CoordinatorProcess
from raylog.simulator.processes import Machine
from raylog.simulator.simulated_servers import BrokerProcess
from raylog.simulator.simulated_sessions import ActorSpec
from raylog.simulator.simulation import Simulation
from raylog.simulator.workload import Client
from raylog.types import TopicIdPartition
from tests.support.counters import Add, Count, Counted, Counters

pytestmark = pytest.mark.sim

SEEDS = (1, 2, 3)
NAME = "visits"


class Counting(Client):
    """Adds one at a time, and holds each answer against those before it."""

    def __init__(self, simulation: CounterSimulation, machine: Machine, id: TopicIdPartition) -> None:
        super().__init__("counting", simulation, machine)
        self.id = id
        self.asked = 0
        self.counted = 0
        self.is_over = False
        self.later(1, self._add, "adds")

    def stop(self) -> None:
        """Go on: what is counted once all is at rest shows whether anything was lost."""

    def leader_found(self) -> None:
        self._add()

    def _add(self) -> None:
        leader = self.leader
        if leader is None:
            self.find_leader(Counters.topic, self.id, newer_than=-1)
            return
        self.asked += 1
        self.ask(leader.endpoint, CoordinatorCall(self.id, Add(NAME), False), self._answered)

    def _answered(self, reply: Any) -> None:
        if reply is None or reply.error:
            self.leader = None
        else:
            assert isinstance(reply, Counted)
            if not self.counted < reply.value <= self.asked:
                raise Violation(f"counted {reply.value} after {self.counted}, asked {self.asked} times")
            self.counted = reply.value
            self.simulation.counts["additions"] += 1
        if not self.is_over:
            self.simulation.rhythm.later(self.later, 50_000, self._add, "adds")


class CounterAdministration(Administration):
    """One topic; leaders move, brokers are drained, replicas are reassigned."""

    simulation: CounterSimulation

    def _registered(self, reply: object) -> None:
        self._to_register -= 1
        if not self._to_register:
            topic = RequestedTopic(Counters.topic, 1, -1)
            self.administrator.request(CreateTopics((topic,)), lambda reply: self._describe())
            self._later()
            self._move_later()

    def _change(self) -> None:
        if not self._stopped:
            self.scheduler.rng.choice((lambda: self.elect(ElectionType.PREFERRED), self._drain))()
            self._later()

    def _follow(self, name: str, id: TopicIdPartition, configs: dict[str, str]) -> None:
        simulation = self.simulation
        simulation.checkers.history(id, name)
        simulation.counting = Counting(simulation, simulation.client_machine, id)
        simulation.consumers.append(simulation.counting)


class CounterSimulation(Simulation):
    coordinated_topics: ClassVar = (Counters.topic,)

    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__(seed, **options)
        self.administration = CounterAdministration(self)
        self.counting: Counting | None = None
        self._counted_at_rest: int | None = None

    def start_actor(self, machine: Machine, spec: ActorSpec, *, is_broker: bool) -> None:
        if is_broker:
            BrokerProcess(self, machine, spec)
        else:
            CoordinatorProcess(self, machine, spec, Counters())

    def _unfinished(self) -> str | None:
        """It is at rest when it has counted once more and then stopped."""
        counting = self.counting
        if counting is None:
            return "nobody counts"
        if self._counted_at_rest is None:
            self._counted_at_rest = self.counts["additions"]
        if self.counts["additions"] == self._counted_at_rest:
            return "it does not count"
        counting.is_over = True
        return super()._unfinished()

    def _uneven(self) -> str | None:
        reason = super()._uneven()
        assert self.counting is not None
        for process, replica in self._replicas_of(self.counting.id):
            coordinator = process.runtime.coordinator_of(0)  # type: ignore[attr-defined]
            if reason is None and (coordinator is None or coordinator.position < replica.log.high_watermark):
                reason = f"{process.name} has not read its log"
        return reason

    def known(self) -> dict[str, dict[str, int]]:
        """What each replica's coordinator makes of the log."""
        assert self.counting is not None
        coordinators = {
            process.name: process.runtime.coordinator_of(0)  # type: ignore[attr-defined]
            for process, _ in self._replicas_of(self.counting.id)
        }
        return {name: each.machine.values for name, each in coordinators.items() if each is not None}

    def _compare(self) -> None:
        super()._compare()
        for name, values in self.known().items():
            if values[NAME] < self.counting.counted:  # type: ignore[union-attr]
                raise Violation(f"{name} knows {values}, {self.counting.counted} was acknowledged")  # type: ignore[union-attr]


def run(seed: int) -> CounterSimulation:
    simulation = CounterSimulation(seed, events=2_500)
    simulation.run()
    return simulation


@pytest.mark.parametrize("seed", SEEDS)
def test_a_counter_survives_its_leaders(seed: int) -> None:
    counts = run(seed).counts
    assert counts["additions"] > 10 and counts["coordinators that took over"] > 1, counts


def test_an_answer_before_the_record_is_replicated_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks above see something: with replies that don't wait, an acknowledged addition is lost sooner or later."""
    write = CoordinatorContext.write

    def hasty(self: Any, records: tuple[Count, ...], answered: Any, **outcomes: Any) -> None:
        answered(0)
        write(self, records, **outcomes)

    monkeypatch.setattr(CoordinatorContext, "write", hasty)
    with pytest.raises(Violation):
        for seed in range(1, 60):
            run(seed)
