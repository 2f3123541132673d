"""A Broker of a simulated cluster: the production image copy, router and fetch sessions, behind a
listener for Kafka's clients.

It folds the frames of its session into its copy of the image, answers from it, and forwards over
real connections to the processes that lead and to the controller, all in virtual time. Its control
session is that of every simulated server (``simulated_sessions``).

Unlike the real one it refuses connections until it has an image, and no connection moves to a host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylog.control.session import ImageChanged
from raylog.kafka.context import EXTERNAL
from raylog.listener.router import Router
from raylog.metadata.image import MetadataImage
from raylog.metadata.image_copy import ImageCopy
from raylog.simulator.processes import Machine
from raylog.simulator.simulated_loop import AcceptedEnd, loop_of
from raylog.simulator.simulated_network import End, Link
from raylog.simulator.simulated_servers import BrokerProcess
from raylog.simulator.simulated_sessions import ActorSpec, OneSaid
from raylog.simulator.wire_servers import SECRET
from raylog.types import Endpoint, broker_of
from raylog.wire.handshake import Peer
from raylog.wire.ports import Port
from raylog.wire.server_connection import ServerConnection

if TYPE_CHECKING:
    from raylog.simulator.simulated_clients import ClientSimulation


class WireBrokerProcess(BrokerProcess):
    """``router`` begins to answer with the first whole image."""

    def __init__(self, simulation: ClientSimulation, machine: Machine, spec: ActorSpec) -> None:
        super().__init__(simulation, machine, spec)
        self._copy = ImageCopy()
        self._is_answering = False
        self._loop = loop_of(self, simulation.network)
        self.advertised = simulation.network.listen(self, _KafkaListener(self))
        simulation.kafka_listeners[broker_of(spec.node_id)] = self.advertised
        self.router = Router(
            broker_id=broker_of(spec.node_id),
            caller=Peer(spec.node_id, spec.incarnation),
            secret=SECRET,
            cluster_id=simulation.cluster_id,
            ports=(Port(EXTERNAL, self.advertised),),
            image=self._image,
            controller=self._controller,
            clock=self._loop.clock,
        )

    def _image(self) -> MetadataImage:
        assert self._copy.image is not None, "the listener answers from the first image on"
        return self._copy.image

    def _controller(self) -> tuple[int, Endpoint] | None:
        endpoint = self.control.welcomed_at
        places = self.simulation.controllers.places
        return next(((place.broker_id, place.endpoint) for place in places if place.endpoint == endpoint), None)

    def controller_said(self, frame: OneSaid) -> None:
        super().controller_said(frame)
        if isinstance(frame, ImageChanged) and self._copy.fold(frame):
            self.simulation.counts["images that a Broker folded"] += 1
            self._loop.run(self._image_changed)

    def _image_changed(self) -> None:
        self.router.image_changed()
        if not self._is_answering:
            self._is_answering = True
            self.router.server.begin()

    def accepted_client(self) -> End:
        if not self._is_answering:
            return _NotYet(self)
        return AcceptedEnd(self._loop, _NotYet(self), lambda: ServerConnection(self.router.server))

    def on_end(self) -> None:
        super().on_end()
        self._loop.abandon()


class _KafkaListener:
    def __init__(self, broker: WireBrokerProcess) -> None:
        self._broker = broker

    def accepted(self, link: Link) -> End:
        return self._broker.accepted_client()


class _NotYet:
    """The end of a link to somebody who is not served: one who came too early, or who does not
    speak Kafka's protocol.
    """

    def __init__(self, broker: WireBrokerProcess) -> None:
        self._broker = broker

    def opened(self, link: Link) -> None:
        raise AssertionError("an accepted link was opened")

    def refused(self, link: Link) -> None:
        raise AssertionError("an accepted link was refused")

    def received(self, link: Link, message: object) -> None:
        link.close(self._broker)

    def closed(self, link: Link) -> None:
        """Nothing was begun."""
