"""From which replica a consumer reads a partition: the nearest of those in sync (KIP-392, chosen by
the client).

Nearest is a replica on this machine, then one in the consumer's rack (``client.rack``), then any;
the leader, where it is as near as another one. Metadata name the nodes' addresses, their racks and
the partitions' ISR, so nobody has to be asked. With ``fetch.from=leader`` it is always the leader.

A follower is only trusted as far as the metadata are:

- Only members of the ISR are read from, as described under the leader epoch that holds now. After a
  change of leader it is the leader's turn until the topic has been described anew, which
  ``to_review`` asks for.
- Where a follower is nearer than the leader, the topic is described anew every ``REVIEW_S``; one
  whose description is twice as old (no controller answers) is read from its leader.
- A follower that refuses, breaks off or says nothing is avoided for ``AVOID_S``, and the partition
  goes on at the leader at once. Whether an offset is out of range only the leader can say. Who only
  knows another leader epoch is avoided for ``RETRY_S``.

Lives in the fetcher's loop and asks nobody itself.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass

from raylog.client.config import ConsumerConfig
from raylog.client.links.metadata import Metadata, PartitionLeader
from raylog.types import Endpoint, TopicPartition

REVIEW_S = 30.0
AVOID_S = 10.0
RETRY_S = 0.5
_REVIEW_PAUSE_S = 1.0

_HERE, _IN_RACK, _AWAY = range(3)


@dataclass(frozen=True, slots=True)
class NearReplica:
    """A replica that is nearer than the leader."""

    node: int
    endpoint: Endpoint


class NearestReplicas:
    """``now``: the loop's time. ``is_here``: whether a host is this machine."""

    def __init__(
        self,
        config: ConsumerConfig,
        metadata: Metadata,
        now: Callable[[], float],
        is_here: Callable[[str], bool] | None = None,
    ) -> None:
        self._metadata = metadata
        self._now = now
        self._is_here = is_here or is_this_machine
        self._rack = config.client_rack
        self._leaders_only = config.fetch_from == "leader"
        self._hosts: dict[str, bool] = {}
        self._avoided: dict[tuple[TopicPartition, int], float] = {}  # until when
        self._watched: dict[str, bool] = {}  # topics of which followers are nearer; whether their description is void
        self._reviewed_at: dict[str, float] = {}

    def follower(self, key: TopicPartition, leader: PartitionLeader) -> NearReplica | None:
        """The follower to read a partition from; None: the leader is as near."""
        if self._leaders_only or (distance := self._distance(leader.node, leader.endpoint)) == _HERE:
            return None
        view = self._metadata.cached(key.topic)
        if view is None or key.partition >= len(view.partitions):
            return None
        part = view.partitions[key.partition]
        found: NearReplica | None = None
        is_watched = False
        for node in part.replicas:
            endpoint = self._metadata.nodes.get(node)
            if endpoint is None or node == leader.node or (theirs := self._distance(node, endpoint)) >= distance:
                continue
            is_watched = True  # one that cannot be read now may be later
            if node in part.isr and node not in part.offline and not self._is_avoided(key, node):
                found, distance = NearReplica(node, endpoint), theirs
        if not is_watched:
            return None
        is_void = part.isr_epoch != leader.epoch
        self._watched[key.topic] = self._watched.get(key.topic, False) or is_void
        if is_void or self._now() - view.fetched_at > 2 * REVIEW_S:
            return None
        return found

    def avoid(self, key: TopicPartition, follower: int, *, seconds: float = AVOID_S) -> None:
        """It did not give what was asked for: read from the leader, and have the topic described
        anew.
        """
        self._avoided[key, follower] = self._now() + seconds
        self._watched[key.topic] = True

    def to_review(self) -> list[str]:
        """Topics to describe anew now; each is named once a second at most."""
        if not self._watched:
            return []
        now, due = self._now(), []
        for topic, is_void in self._watched.items():
            view = self._metadata.cached(topic)
            is_due = is_void or view is None or now - view.fetched_at >= REVIEW_S
            if is_due and now - self._reviewed_at.get(topic, float("-inf")) >= _REVIEW_PAUSE_S:
                self._reviewed_at[topic] = now
                due.append(topic)
        return due

    def reviewed(self, topics: list[str]) -> None:
        """They were described anew. Those of which followers are nearer still are watched on from
        the next choice.
        """
        for topic in topics:
            self._watched.pop(topic, None)

    def _is_avoided(self, key: TopicPartition, node: int) -> bool:
        until = self._avoided.get((key, node))
        if until is None:
            return False
        if self._now() < until:
            return True
        del self._avoided[key, node]
        return False

    def _distance(self, node: int, endpoint: Endpoint | None) -> int:
        if endpoint is not None:
            is_here = self._hosts.get(endpoint.host)
            if is_here is None:
                is_here = self._hosts[endpoint.host] = self._is_here(endpoint.host)
            if is_here:
                return _HERE
        return _IN_RACK if self._rack and self._metadata.racks.get(node) == self._rack else _AWAY


def is_this_machine(host: str) -> bool:
    """Whether a numeric address is one of this machine's own; a name never is."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if address.is_loopback:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(
                (host, 9)
            )  # sends nothing: it only chooses the route, and to oneself one comes from where one goes
            return bool(probe.getsockname()[0] == host)
    except OSError:
        return False
