"""Requests to a controller, from their arrival until it answers them.

Each becomes a ``RequestReceived`` with a token of its own, and waits here for the ``Reply`` of that
token. One whose connection ends is abandoned: the controller is told, and does not answer it.

Invariant: a token has at most one answer outstanding, and none after its reply or its connection's
end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.errors import KafkaError, error_for
from raylog.kafka.refusal import refusal
from raylog.metadata import requests
from raylog.metadata.events import RequestAbandoned, RequestReceived
from raylog.metadata.requests import ClusterDescribed, ClusterStatusReport, ControllerReply, Refused, TopicsDescribed
from raylog.server.apis.api import Api
from raylog.server.apis.entities import CODES
from raylog.types import Endpoint
from raylog.wire import private
from raylog.wire.request import Request

OnReply = Callable[[ControllerReply], None]
Describe = Callable[[ClusterStatusReport, list[TopicsDescribed | ClusterDescribed]], dict[str, Any]]


class ControllerRequests:
    def __init__(
        self,
        handle: Callable[[RequestReceived | RequestAbandoned], None],
        active_elsewhere: Callable[[], Endpoint | None],
    ) -> None:
        """``handle`` takes events to the controller; ``active_elsewhere`` is where another
        controller that is active listens, if known.
        """
        self._handle = handle
        self._active_elsewhere = active_elsewhere
        self._waiting: dict[int, OnReply] = {}
        self._last_token = 0

    # ------------------------------------------------------------------ asking

    def ask(self, request: requests.Request, answer: OnReply) -> int:
        """Asks the controller; ``answer`` gets its reply, now or later. Returns the token."""
        self._last_token += 1
        token = self._last_token
        self._waiting[token] = answer
        self._handle(RequestReceived(token, request))
        return token

    def park(self, request: Request, token: int) -> None:
        """Abandons what was asked if the connection of ``request`` ends before the answer."""
        if token in self._waiting:
            request.on_close(lambda _: self._abandon(token))

    def answered(self, token: int, reply: ControllerReply) -> None:
        answer = self._waiting.pop(token, None)
        if answer is not None:
            answer(self._with_hint(reply))

    def _abandon(self, token: int) -> None:
        if self._waiting.pop(token, None) is not None:
            self._handle(RequestAbandoned(token))

    def _with_hint(self, reply: ControllerReply) -> ControllerReply:
        """A refusal of a controller that is not active names the one that is, if it is known."""
        if isinstance(reply, Refused) and reply.error == ErrorCode.not_controller:
            leader = self._active_elsewhere()
            if leader is not None:
                return replace(reply, message=f"{reply.message}; the active one listens at {leader}")
        return reply

    # ------------------------------------------------------------------ handlers

    def kafka_handler(self, api: Api) -> Callable[[Request], None]:
        """The handler of a Kafka API that the controller answers."""

        def handle(request: Request) -> None:
            body, version = request.body, request.version

            def answer(reply: ControllerReply) -> None:
                if isinstance(reply, Refused):
                    request.reply(refusal(api.spec, version, body, CODES[reply.error], reply.message))
                else:
                    request.reply(api.to_entity(body, reply, version))

            try:
                asked = api.to_request(body, version)
            except KafkaError as error:
                answer(Refused(int(error.code), str(error)))
                return
            if api.asked_by is not None:
                asked = api.asked_by(asked, request.context.principal)
            if api.sent_by is not None:
                asked = api.sent_by(asked, request.peer.node_id)
            self.park(request, self.ask(asked, answer))

        return handle

    def await_leader(self, request: Request) -> None:
        body: private.AwaitLeaderRequest = request.body
        asked = requests.AwaitLeader(body.topic, body.partition, body.newer_than_epoch, body.timeout_ms)

        def answer(reply: ControllerReply) -> None:
            if isinstance(reply, requests.LeaderFound) and not reply.error and reply.endpoint is not None:
                endpoint = reply.endpoint
                request.reply(
                    private.AwaitLeaderResponse(reply.leader_node, reply.leader_epoch, endpoint.host, endpoint.port)
                )
            elif isinstance(reply, requests.LeaderFound):
                where = f"{body.topic}-{body.partition}"
                request.refuse(error_for(reply.error, f"no leader of {where} newer than epoch {body.newer_than_epoch}"))
            else:
                _refuse(request, reply)

        self.park(request, self.ask(asked, answer))

    def drain_broker(self, request: Request) -> None:
        body: private.DrainBrokerRequest = request.body

        def answer(reply: ControllerReply) -> None:
            if isinstance(reply, requests.BrokerDrained) and not reply.error:
                request.reply(private.DrainBrokerResponse(reply.moved, reply.remaining))
            elif isinstance(reply, requests.BrokerDrained):
                request.refuse(error_for(reply.error, reply.message))
            else:
                _refuse(request, reply)

        self.park(request, self.ask(requests.DrainBroker(body.broker_id, body.is_draining), answer))

    def cluster_status(self, request: Request, describe: Describe) -> None:
        """Answers with what ``describe`` makes of the controller's report, its topics and its
        brokers.
        """
        described: list[TopicsDescribed | ClusterDescribed] = []

        def note(reply: ControllerReply) -> None:
            if isinstance(reply, TopicsDescribed | ClusterDescribed):
                described.append(reply)

        def answer(reply: ControllerReply) -> None:
            if isinstance(reply, ClusterStatusReport):
                request.reply(private.ClusterStatusReply(describe(reply, described)))
            else:
                _refuse(request, reply)

        self.ask(requests.DescribeTopics(), note)
        self.ask(requests.DescribeCluster(), note)
        self.park(request, self.ask(requests.ClusterStatus(), answer))


def _refuse(request: Request, reply: ControllerReply) -> None:
    assert isinstance(reply, Refused), reply
    request.refuse(error_for(reply.error, reply.message))
