"""The servers of a simulated cluster as the production clients meet them: they speak raylog's wire
protocol, too.

A replica process and a controller answer the other simulated processes with values, as before, and
whoever sends bytes through the production ``Server``: its handshake, its frames, and the
translations of ``raylog.server.apis`` between Kafka's entities and the machines' events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from raylog.control.session import Assignment
from raylog.errors import ClusterError
from raylog.groups.machine import GroupKind
from raylog.groups.records import GroupRecord
from raylog.groups.requests import GroupReply
from raylog.groups.requests import Request as GroupRequest
from raylog.kafka import table
from raylog.kafka.spec import ServerKind
from raylog.metadata.events import RequestAbandoned, RequestReceived
from raylog.metadata.requests import ControllerReply
from raylog.replication.events import Cancelled
from raylog.server.apis import admin, configs, fetch, offsets, operations, produce
from raylog.server.apis.entities import TopicNames
from raylog.server.controller_requests import ControllerRequests
from raylog.server.group_coordinator import GroupCoordinators
from raylog.simulator.coordinator_processes import CoordinatorProcess
from raylog.simulator.processes import Machine
from raylog.simulator.simulated_controller import ControllerProcess
from raylog.simulator.simulated_loop import AcceptedEnd, loop_of
from raylog.simulator.simulated_network import End, Link
from raylog.simulator.simulated_sessions import ActorSpec
from raylog.types import CONTROLLER_SLOT, ActorIdentity, Endpoint, node_id
from raylog.wire import private
from raylog.wire.request import Handler, Request
from raylog.wire.server import Server
from raylog.wire.server_connection import ServerConnection

if TYPE_CHECKING:
    from raylog.simulator.simulated_clients import ClientSimulation
    from raylog.simulator.simulated_quorum import Place

SECRET = b"simulated"
ToEntity = Callable[[Any], Any]


class WireReplicaProcess(CoordinatorProcess[GroupRequest, GroupReply, GroupRecord]):
    """A process that holds replicas and coordinates groups, for the production clients."""

    def __init__(self, simulation: ClientSimulation, machine: Machine, spec: ActorSpec) -> None:
        kind = GroupKind(simulation.group_config, new_uuid=simulation.new_uuid)
        super().__init__(simulation, machine, spec, kind)
        self._names = TopicNames()
        self._asked: dict[int, tuple[Request, ToEntity]] = {}
        self._loop = loop_of(self, simulation.network)
        handlers: dict[Any, Handler] = {
            table.PRODUCE: self._produce,
            table.FETCH: self._fetch_records,
            table.LIST_OFFSETS: self._list_offsets,
            table.OFFSET_FOR_LEADER_EPOCH: self._epoch_ends,
            **GroupCoordinators(self.runtime, self.want_leave).handlers(),
        }
        self._server = Server(
            {
                **{spec.key: handler for spec, handler in handlers.items()},
                private.FIND_CONTROLLER: self._find_controller,
                private.OPEN_DOOR: _no_door,
            },
            identity=self.identity,
            secret=SECRET,
            borrows_records=True,
            versions={spec.key: spec.spoken_by(ServerKind.REPLICAS) for spec in handlers},
        )
        self._loop.run(self._server.begin)

    def on_end(self) -> None:
        super().on_end()
        self._loop.abandon()

    def controller_said(self, frame: Any) -> None:
        if isinstance(frame, Assignment):
            self._names.add(frame.topic, frame.topic_id)
        super().controller_said(frame)

    def accepted(self, link: Link) -> End:
        return AcceptedEnd(self._loop, super().accepted(link), lambda: ServerConnection(self._server))

    # ---------------------------------------------------------------- requests, as ReplicaServer takes them

    def answer(self, token: int, reply: Any) -> None:
        asked = self._asked.pop(token, None)
        if asked is None:
            super().answer(token, reply)
        else:
            request, to_entity = asked
            request.reply(to_entity(reply))

    def _park(self, request: Request, to_entity: ToEntity) -> int:
        token = self.new_token()
        self._asked[token] = (request, to_entity)
        return token

    def _parked(self, request: Request, token: int) -> None:
        if token in self._asked:
            request.on_close(lambda _: self._abandon(token))

    def _abandon(self, token: int) -> None:
        if self._asked.pop(token, None) is not None:
            self.handle(Cancelled(token))

    def _produce(self, request: Request) -> None:
        body = request.body
        token = self._park(request, lambda reply: produce.entity(body, reply, request.version))
        if body.acks == 0:
            del self._asked[token]
        self.handle(produce.event(body, token, self._names, request.version))
        if body.acks:
            self._parked(request, token)
        else:
            request.done()

    def _fetch_records(self, request: Request) -> None:
        body = request.body
        token = self._park(request, lambda reply: fetch.entity(body, reply, request.version))
        self.handle(fetch.event(body, token, self._names, request.version))
        self._parked(request, token)

    def _list_offsets(self, request: Request) -> None:
        body = request.body
        token = self._park(request, lambda reply: offsets.list_offsets_entity(body, reply, request.version))
        self.handle(offsets.list_offsets_event(body, token, self._names, request.version))
        self._parked(request, token)

    def _epoch_ends(self, request: Request) -> None:
        body = request.body
        token = self._park(request, lambda reply: offsets.epoch_entity(body, reply, request.version))
        self.handle(offsets.epoch_event(body, token, self._names, request.version))
        self._parked(request, token)

    def _find_controller(self, request: Request) -> None:
        request.reply(_found(self.control.welcomed_at))


class WireControllerProcess(ControllerProcess):
    """A controller, for the production clients. It listens where the one before it at its place
    did.
    """

    def __init__(self, simulation: ClientSimulation, place: Place) -> None:
        super().__init__(simulation, place)
        self.endpoint = simulation.controller_endpoints.setdefault(place.number, self.endpoint)
        simulation.network.listen_at(self.endpoint, self, self)
        self._loop = loop_of(self, simulation.network)
        self._requests = ControllerRequests(self._asked, self._active_elsewhere)
        apis = (*admin.APIS, *configs.APIS, *operations.APIS)
        self._identity = ActorIdentity(
            simulation.cluster_id, node_id(place.broker_id, CONTROLLER_SLOT), place.directory_id, 1
        )
        self._server = Server(
            {
                **{api.spec.key: self._requests.kafka_handler(api) for api in apis},
                private.AWAIT_LEADER: self._requests.await_leader,
                private.FIND_CONTROLLER: lambda request: request.reply(_found(self._active_endpoint())),
            },
            identity=self._identity,
            secret=SECRET,
            versions={api.spec.key: api.spec.spoken_by(ServerKind.CONTROLLER) for api in apis},
        )
        self._loop.run(self._server.begin)

    def accepted(self, link: Link) -> End:
        inner = super().accepted(link)
        if self.controller is None:  # it does not listen yet
            return inner
        self._server.identity = replace(self._identity, incarnation=self.incarnation)
        return AcceptedEnd(self._loop, inner, lambda: ServerConnection(self._server))

    def on_end(self) -> None:
        super().on_end()
        self._loop.abandon()

    def _asked(self, event: RequestReceived | RequestAbandoned) -> None:
        self.handle(replace(event, token=-event.token))  # the others' are positive

    def answer(self, token: int, reply: ControllerReply) -> None:
        if token < 0:
            self._requests.answered(-token, reply)
        else:
            super().answer(token, reply)

    def _active_endpoint(self) -> Endpoint | None:
        """Where the controller listens that this one follows, if it is one of those that it has a
        link to.
        """
        assert self.controller is not None
        leader = self.controller.quorum.leader
        if leader == self.identity:
            return self.endpoint
        peer = self.peers.get(leader) if leader is not None else None
        return peer.endpoint if peer is not None else None

    def _active_elsewhere(self) -> Endpoint | None:
        endpoint = self._active_endpoint()
        return endpoint if endpoint != self.endpoint else None


def _found(endpoint: Endpoint | None) -> private.ControllerFound:
    return private.ControllerFound(endpoint.host, endpoint.port) if endpoint is not None else private.ControllerFound()


def _no_door(request: Request) -> None:
    """Connections stay where they are: handing a socket over is the kernel's business."""
    raise ClusterError("a simulated process takes no connection over")
