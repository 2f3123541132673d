"""Load on the hosts of a simulated cluster, and what must hold while the controller adds and
retires hosts because of it.

In every third seed replicas are hot by turns: each heartbeat says how busy the host's loop would
be, and which replicas make it so. Bounds and windows are set low, so that hosts come and go within
a run, amid all other faults. In the other seeds nobody says how busy it is, and nothing scales.
What is hot is drawn by a hash: the other draws of a seed are what they were.

What must hold, besides all that holds of moves:

- no broker has more hosts than its machine has cores;
- only hosts that were added go away again;
- nothing flaps: a controller does not move a replica again before it has rested.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from raylog.control.session import REQUEST_COST_BYTES, Heartbeat, ReplicaLoad
from raylog.metadata.configuration.config_requests import (
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    ResourceChanges,
    ResourceType,
)
from raylog.metadata.image import MetadataImage
from raylog.metadata.records import HostKind, HostPlanned
from raylog.simulator.checkers import Violation
from raylog.types import TopicIdPartition, broker_of

if TYPE_CHECKING:
    from raylog.simulator.simulated_controller import ControllerProcess
    from raylog.simulator.simulated_sessions import ServerProcess
    from raylog.simulator.simulation import Simulation

CORES = 2
TURN_MS = 4_000  # how long a replica stays hot, or cold
COLD, WARM, HOT = 10, 150, 350  # thousandths of a core
PARTITIONS = 3  # of each topic, so that hosts have something to share out
RESTS = 6  # pauses between steps, until a replica that was moved may move again
BOUNDS_MS = {"busy.ms": 500, "idle.ms": 1_800, "backoff.ms": 300}


class SimulatedScaling:
    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.is_on = zlib.crc32(f"{simulation.seed} scales".encode()) % 3 == 0
        self._hosts: dict[int, HostPlanned] = {}  # those of the last committed image
        self._moved_at_ms: dict[tuple[str, int, int, TopicIdPartition], int] = {}  # by controller, term and broker

    def configure(self) -> None:
        """Set the bounds, once the brokers are registered."""
        if not self.is_on:
            return
        values = {name: str(ms * self.simulation.calm) for name, ms in BOUNDS_MS.items()}
        values |= {"busy.ratio": "0.3", "idle.ratio": "0.1"}
        changes = tuple(
            ConfigChange(f"actor.scaling.{name}", ConfigOperation.SET, value) for name, value in values.items()
        )
        request = AlterConfigs((ResourceChanges(ResourceType.BROKER, "", changes),))
        self.simulation.administration.administrator.request(request, lambda reply: None)

    def heartbeat(self, process: ServerProcess, held: list[TopicIdPartition]) -> Heartbeat:
        """What that process says, which has the logs of these replicas open."""
        if not self.is_on:
            return Heartbeat()
        demands = {id: self._demand(id) for id in held}
        busy = min(1_000, 5 + sum(demands.values()))
        loads = tuple(ReplicaLoad(*id, demand, demand * REQUEST_COST_BYTES, 0) for id, demand in demands.items())
        return Heartbeat(busy, 1 << 20, CORES, busy, loads)

    def _demand(self, id: TopicIdPartition) -> int:
        simulation = self.simulation
        if simulation.is_healing:
            return COLD
        turn = simulation.scheduler.now_ms // (TURN_MS * simulation.calm)
        number = zlib.crc32(f"{simulation.seed} {id.topic_id} {id.partition} {turn}".encode())
        return (COLD, WARM, HOT, HOT)[number % 4]

    # ---------------------------------------------------------------- what must hold

    def committed(self, image: MetadataImage) -> None:
        """An image of committed records, newer than all before."""
        if not self.is_on:
            return
        counts = self.simulation.counts
        by_broker: dict[int, int] = {}
        for node, host in image.hosts.items():
            if host.kind is HostKind.REPLICAS:
                by_broker[broker_of(node)] = by_broker.get(broker_of(node), 0) + 1
            counts["hosts added by themselves"] += host.is_automatic and node not in self._hosts
        for broker, count in by_broker.items():
            if count > CORES:
                raise Violation(f"broker {broker} has {count} hosts for replicas, and {CORES} cores")
        for node, host in self._hosts.items():
            if node in image.hosts or broker_of(node) not in image.brokers:
                continue
            if not host.is_automatic:
                raise Violation(f"host {node}, which nobody added and nobody retired, is gone")
            counts["hosts retired by themselves"] += 1
        self._hosts = dict(image.hosts)

    def decided(self, process: ControllerProcess) -> None:
        """A controller has handled an event: look at where it has just moved what."""
        controller = process.controller
        if not self.is_on or controller is None or controller.active is None:
            return
        scaling = controller.active.scaling
        rest_ms = RESTS * BOUNDS_MS["backoff.ms"] * self.simulation.calm
        for (broker, id), at_ms in scaling.moved_at_ms.items():
            key = (process.name, controller.quorum.term, broker, id)
            before_ms = self._moved_at_ms.get(key)
            if before_ms == at_ms:
                continue
            self.simulation.counts["moves by themselves"] += 1
            if before_ms is not None and at_ms - before_ms < rest_ms:
                raise Violation(
                    f"{process.name} moves broker {broker}'s {id} {at_ms - before_ms} ms after it moved it: it flaps"
                )
            self._moved_at_ms[key] = at_ms
