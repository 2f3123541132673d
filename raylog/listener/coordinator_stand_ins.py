"""Brokers that stand in for a coordinator of transactions that died on them a moment ago.

When such a process dies another broker's takes its partitions over. Clients could be told of that
broker and go there, as in Kafka, but the one they know is still there: only its process has gone. So
for ``NAMED_MS`` FindCoordinator names that broker again, and it passes requests on to the process that
coordinates now, for as long as that is another broker's; clients stay there, and as a rule the lead
comes back to them when the cluster is balanced.

librdkafka needs that. When its connection ends it connects to the same broker again, and 500 ms later
it asks for the coordinator and sends what was in flight in the same moment. If the answer is another
broker, it ends its connection with that request on it, and waits for 500 ms more.

A lead that moves while its process lives is no death: clients get NOT_COORDINATOR. Nor is a broker
named whose Broker is another one by now, which does not know what it would stand in for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from raylog.listener.owners import Owner
from raylog.listener.routes import Routes
from raylog.metadata.records import PartitionState
from raylog.offsets_topic import TRANSACTIONS_TOPIC
from raylog.types import BROKER_SLOT, NO_LEADER, node_id

NAMED_MS: Final = 5_000


class _Named(NamedTuple):
    """``process``: of its Broker."""

    broker: int
    process: Owner | None
    since_ms: int


class CoordinatorStandIns:
    """Those of the partitions of ``__transaction_state``, in the sight of one Broker."""

    def __init__(self, routes: Routes, now_ms: Callable[[], int]) -> None:
        self._routes = routes
        self._now_ms = now_ms
        self._states: dict[int, PartitionState] = {}
        self._named: dict[int, _Named] = {}  # by partition
        self._here: set[int] = set()

    def follow(self) -> None:
        """Note who has died or leads again with a change of the image."""
        topic = self._routes.image.topic_named(TRANSACTIONS_TOPIC)
        states = topic.partitions if topic is not None else {}
        for number, state in states.items():
            before = self._states.get(number)
            if before is not state and before is not None and before.leader != NO_LEADER:
                self._follow(number, before)
            if number in self._named and state.leader == self._named[number].broker:
                del self._named[number]
            if state.leader == self._routes.broker_id:
                self._here.discard(number)
        self._states = dict(states)

    def _follow(self, number: int, before: PartitionState) -> None:
        process = self._routes.owner(before.node_of(before.leader))
        if process is not None and process.incarnation == before.leader_incarnation:
            return
        named = self.broker(number)
        broker = before.leader if named is None else named
        self._named[number] = _Named(broker, self._process(broker), self._now_ms())
        if broker == self._routes.broker_id:
            self._here.add(number)

    def _process(self, broker: int) -> Owner | None:
        return self._routes.owner(node_id(broker, BROKER_SLOT))

    def broker(self, number: int) -> int | None:
        """Return the broker that is to be named instead of the one whose process coordinates a partition;
        None: it is that one.
        """
        named = self._named.get(number)
        if named is None or self._now_ms() - named.since_ms >= NAMED_MS:
            return None
        is_there = named.process is not None and named.process == self._process(named.broker)
        return named.broker if is_there and self._routes.listener(named.broker) is not None else None

    def passes_on(self, number: int) -> bool:
        """Return whether this broker stands in for the one whose process coordinates a partition."""
        return number in self._here
