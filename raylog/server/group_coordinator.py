"""Group coordinators on the wire: Kafka's group APIs for the partitions of ``__consumer_offsets``
that this process holds.

A request is taken apart by the groups that it names (``gathered_parts``). Knows which connection a
native member speaks on, and tells of its end.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from dataclasses import replace

from raylog.coordination.runtime import CoordinatorRuntime, Replicas
from raylog.groups.context import GroupConfig, GroupCounts, commit_error
from raylog.groups.machine import GroupKind
from raylog.groups.records import GroupRecord
from raylog.groups.requests import GroupReply, TxnOffsetCommit
from raylog.groups.requests import Request as GroupRequest
from raylog.kafka.context import INTERNAL
from raylog.kafka.spec import ApiSpec
from raylog.replication.transaction_events import LeaveGiven, LeaveWanted
from raylog.server.apis import groups as apis
from raylog.server.apis.groups import Caller, GroupApi
from raylog.server.driver import LoopClock
from raylog.server.gathered_parts import gathering
from raylog.wire.request import Request
from raylog.wire.server_connection import ServerConnection

WantLeave = Callable[[Callable[[int], LeaveWanted], Callable[[LeaveGiven], None]], None]
"""Gives the machine of the replicas a LeaveWanted of a new token, and hands on what becomes of it."""


class GroupCoordinators:
    """``handlers`` go into the server's table; ``runtime`` is fed by the process that holds the
    replicas.
    """

    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupRequest, GroupReply, GroupRecord],
        want_leave: WantLeave,
        counts: GroupCounts | None = None,
    ) -> None:
        self.runtime = runtime
        self.counts = counts or GroupCounts()
        self._want_leave = want_leave
        self._connections: dict[ServerConnection, int] = {}
        self._connection_numbers = itertools.count(1)

    @classmethod
    def on(cls, replicas: Replicas, want_leave: WantLeave, *, config: GroupConfig | None = None) -> GroupCoordinators:
        """In the running event loop and its time. ``want_leave``: from the machine of the replicas."""
        kind = GroupKind(config, new_uuid=uuid.uuid4)
        return cls(CoordinatorRuntime(kind, replicas, LoopClock()), want_leave, kind.counts)

    def handlers(self) -> dict[ApiSpec, Callable[[Request], None]]:
        return {api.spec: self._handler(api) for api in apis.APIS}

    def _handler(self, api: GroupApi) -> Callable[[Request], None]:
        return gathering(
            self.runtime,
            lambda request: api.to_requests(request.body, request.version, self._caller(request)),
            api.to_entity,
            self.ask,
        )

    def ask(self, number: int, part: GroupRequest, then: Callable[[GroupReply], None]) -> None:
        """Ask the coordinator; of offsets of a transaction, when that one's coordinator has been asked
        (KIP-890). A process that does not lead refuses them anyway.
        """
        runtime = self.runtime
        place = runtime.led(number) if isinstance(part, TxnOffsetCommit) else None
        if place is None or not isinstance(part, TxnOffsetCommit):
            runtime.ask(number, part, then)
            return

        def given(leave: LeaveGiven) -> None:
            if leave.error:
                then(runtime.kind.machine(0).refuse(part, commit_error(leave.error)))
            else:
                runtime.ask(number, replace(part, leave=leave.leave), then)

        producer = part.producer_id, part.producer_epoch
        self._want_leave(lambda token: LeaveWanted(token, *place, part.membership, *producer), given)

    def _caller(self, request: Request) -> Caller:
        context, connection = request.context, request.connection
        # A native client speaks for itself, on a connection of its own.
        is_native = context.listener == INTERNAL and connection.peer.node_id < 0
        number = self._number_of(connection) if is_native else None
        return Caller(context.client_id or "", f"/{context.client_host}", number)

    def _number_of(self, connection: ServerConnection) -> int:
        number = self._connections.get(connection)
        if number is None:
            number = self._connections[connection] = next(self._connection_numbers)
            connection.on_lost(lambda: self._lost(connection))
        return number

    def _lost(self, connection: ServerConnection) -> None:
        self.runtime.connection_closed(self._connections.pop(connection))
