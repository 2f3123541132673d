"""What the servers say to each other when the host of many leaders dies."""

from __future__ import annotations

from typing import Any

import pytest
from first_leaders import preferred_leaders_are_awaited
from raw_requests import eventually, isr_is_whole

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient, Producer
from raylog.control.session import Assignment, Assignments, FromController
from raylog.server.replica_server import ReplicaServer
from raylog.testing.in_process import cluster
from raylog.types import FIRST_REPLICA_SLOT, node_id

PARTITIONS = 40


class Listening(ReplicaServer):
    """Keeps the frames about partitions that its controller has sent."""

    def __init__(self, *options: Any, **named: Any) -> None:
        super().__init__(*options, **named)
        self.said: list[Assignment | Assignments] = []

    def _controller_said(self, frame: FromController) -> None:
        if isinstance(frame, Assignment | Assignments):
            self.said.append(frame)
        super()._controller_said(frame)


@pytest.mark.core
def test_the_new_leaders_of_many_partitions_hear_of_it_in_one_frame() -> None:
    with preferred_leaders_are_awaited(), cluster(3, replica_server=Listening) as running:
        admin = AdminClient(running.address)
        admin.create_topics(NewTopic("t", replica_assignment=dict.fromkeys(range(PARTITIONS), (0, 1, 2))))
        eventually(lambda: isr_is_whole(running, "t", PARTITIONS), "all replicas in sync")
        survivor: Any = running.launcher.servers[node_id(1, FIRST_REPLICA_SLOT)]
        survivor.said.clear()
        running.crash(node_id(0, FIRST_REPLICA_SLOT))
        with Producer(running.address, acks="all") as producer:
            for partition in range(PARTITIONS):
                producer.send("t", b"value", partition=partition)
            assert producer.flush(60) == 0
        admin.close()
    frames = [frame for frame in survivor.said if isinstance(frame, Assignments)]
    led = [[each.partition for each in frame.partitions if each.leader == 1] for frame in frames]
    assert list(range(PARTITIONS)) in led, led


@pytest.mark.core
def test_processes_that_share_a_partition_have_links_to_each_other_before_its_leader_dies() -> None:
    with cluster(4) as running, AdminClient(running.address) as admin:
        admin.create_topics(
            [NewTopic("t", replica_assignment={0: (0, 1, 2)}), NewTopic("u", replica_assignment={0: (3,)})]
        )
        eventually(lambda: isr_is_whole(running, "t"), "all replicas in sync")
        nodes = [node_id(broker, FIRST_REPLICA_SLOT) for broker in range(4)]

        def callers(node: int) -> set[int]:
            """The hosts of replicas that have proven who they are to this one."""
            return {each.peer.node_id for each in running.launcher.servers[node]._server.connections} & set(nodes)

        for node in nodes[:3]:
            eventually(lambda node=node: callers(node) == set(nodes[:3]) - {node}, f"links of the others to {node}")
        assert not callers(nodes[3]), "it shares no partition"
