"""How brokers' replication throttles are shared among their processes. Pure.

Kafka's rate is a broker's, and here a broker's replicas are spread over several processes. So the
controller divides: a broker's leader rate among its live processes that lead a partition which is
listed as throttled there and has a replica outside the ISR, its follower rate among those that hold
such a listed replica themselves outside the ISR. As replicas get in sync the others' shares grow.
What a process with a smaller task leaves over is not lent to the others: the rate is a limit, not a
promise.

The rate of moves between a broker's disks (``replica.alter.log.dirs.io.max.bytes.per.second``) is
divided among its processes that copy a future replica. A process has one account for what it copies
in, so one that takes both kinds of copies at once gets the smaller of its two shares for them
together.

A process that copies nothing throttled now has no limit: when it begins to, the same commit that
makes it so gives it its share.
"""

from __future__ import annotations

from raylog.configs import broker_configs
from raylog.configs import replication_quotas as throttled_replicas
from raylog.configs.replication_quotas import DISK_MOVE_RATE, FOLLOWER_RATE, FOLLOWERS, LEADER_RATE, LEADERS, RATES
from raylog.control.session import CopyRates
from raylog.metadata.image import MetadataImage
from raylog.types import broker_of

UNLIMITED = -1


def shares(image: MetadataImage) -> dict[int, CopyRates]:
    """By node, where there is a limit."""
    if not any(RATES & configs.keys() for configs in image.broker_configs.values()):
        return {}
    leaders, followers, movers = _copying(image)
    as_leader = _divided(image, LEADER_RATE, leaders)
    as_follower = _divided(image, FOLLOWER_RATE, followers)
    for node, rate in _divided(image, DISK_MOVE_RATE, movers).items():
        as_follower[node] = min(rate, as_follower.get(node, rate))
    return {node: CopyRates(as_leader.get(node), as_follower.get(node)) for node in as_leader.keys() | as_follower}


def _copying(image: MetadataImage) -> tuple[set[int], set[int], set[int]]:
    """The nodes whose processes send throttled copies now, those that take them, and those that
    copy replicas of their broker's other disks.
    """
    leaders: set[int] = set()
    followers: set[int] = set()
    movers: set[int] = set()
    for topic in image.topics.values():
        movers.update(slot.node_id for state in topic.partitions.values() for slot in state.futures)
        leader_list, follower_list = topic.configs.get(LEADERS, ""), topic.configs.get(FOLLOWERS, "")
        if not leader_list and not follower_list:
            continue
        for partition, state in topic.partitions.items():
            behind = [slot for slot in state.replicas if slot.broker_id not in state.isr]
            if behind and throttled_replicas.names(leader_list, partition, state.leader):
                leaders.add(state.node_of(state.leader))
            followers.update(
                slot.node_id for slot in behind if throttled_replicas.names(follower_list, partition, slot.broker_id)
            )
    return leaders, followers, movers


def _divided(image: MetadataImage, name: str, nodes: set[int]) -> dict[int, int]:
    alive = [node for node in sorted(nodes) if (actor := image.actors.get(node)) is not None and actor.alive]
    rates: dict[int, int] = {}
    for node in alive:
        broker = broker_of(node)
        rate = broker_configs.number(image.broker_configs, broker, name, default=UNLIMITED)
        if rate != UNLIMITED:
            sharing = sum(broker_of(other) == broker for other in alive)
            rates[node] = max(rate // sharing, min(rate, 1))
    return rates
