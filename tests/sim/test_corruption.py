"""Which logs the simulator may damage at rest: only those of which a whole and trusted copy runs elsewhere."""

from __future__ import annotations

import dataclasses

import pytest

from raylog.replication.replica import Replica
from raylog.simulator.simulation import Simulation
from raylog.types import TopicIdPartition

pytestmark = pytest.mark.sim


def copies(simulation: Simulation, id: TopicIdPartition) -> dict[str, Replica]:
    """By machine."""
    return {
        process.machine.name: replica
        for process in simulation.replica_processes()
        for each, replica in process.host.replicas.items()
        if each == id
    }


def victims(simulation: Simulation, id: TopicIdPartition) -> set[str]:
    """The machines on whose disks that partition's log may be damaged."""
    exposed = simulation.faults.corruption.exposed
    return {machine.name for machine in simulation.broker_machines if id in exposed(machine).values()}


def test_a_log_is_damaged_at_rest_only_where_another_copy_is_whole_and_trusted() -> None:
    simulation = Simulation(11, events=300)
    simulation.run()  # and healed: every copy is whole
    ids = [id for id, _, state in simulation.partitions() if len(state.isr) == 3]
    id = next(id for id in ids if all(replica.open_log().log_end_offset for replica in copies(simulation, id).values()))
    found = copies(simulation, id)
    first, second, third = sorted(found)
    assert victims(simulation, id) == {first, second, third}
    found[first].open_log().is_suspect = True
    assert victims(simulation, id) == {first, second, third}
    found[second].open_log().is_suspect = True
    assert victims(simulation, id) == {first, second}, "the third is the only copy that is trusted"
    found[third].open_log().is_suspect = True
    assert victims(simulation, id) == set()
    for replica in found.values():
        replica.open_log().is_suspect = False
    found[first].open_log().truncate_to(found[first].open_log().log_end_offset - 1)
    found[second].open_log().truncate_to(found[second].open_log().log_end_offset - 1)
    assert victims(simulation, id) == {first, second}, "the third is the only copy that is whole"


def test_who_was_just_taken_out_of_the_isr_is_no_other_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decision waits for its commit, and may get it from a successor after the rot."""
    simulation = Simulation(11, events=300)
    simulation.run()
    id, state = next((id, state) for id, _, state in simulation.partitions() if len(state.isr) == 3)
    names = {broker: simulation.machine_of(broker).name for broker in state.isr}
    last = state.isr[0]
    monkeypatch.setattr(simulation, "decided", lambda id: dataclasses.replace(state, isr=(last,)))
    assert victims(simulation, id) == set(names.values()) - {names[last]}
