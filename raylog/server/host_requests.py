"""The private requests about server actors and what they hold, as the controller's listener answers
them.
"""

from __future__ import annotations

from collections.abc import Callable

from kio.schema.errors import ErrorCode

from raylog.errors import error_for, kafka_error
from raylog.metadata import requests
from raylog.metadata.actors.disk_requests import DiskTarget, MoveToDisks, MovingToDisks
from raylog.metadata.records import HostKind
from raylog.metadata.requests import ControllerReply, Refused
from raylog.types import ReplicaMove
from raylog.wire import private
from raylog.wire.request import Request

Answer = Callable[[ControllerReply], None]
Ask = Callable[[requests.Request, Answer], int]
Park = Callable[[Request, int], None]
InvalidRequest = kafka_error(ErrorCode.invalid_request)


def handlers(ask: Ask, park: Park) -> dict[int, Callable[[Request], None]]:
    """``ask`` gives the controller a request and returns its token; ``park`` ties that to the
    connection of who asked.
    """

    def move_replicas(request: Request) -> None:
        body: private.MoveReplicasRequest = request.body
        try:
            moves = tuple(ReplicaMove(str(t), int(p), int(b), int(n)) for t, p, b, n in body.moves)
        except (TypeError, ValueError):
            request.refuse(InvalidRequest("a move is a topic, a partition, a broker id and a node id"))
            return

        def answer(reply: ControllerReply) -> None:
            if isinstance(reply, requests.ReplicasMoved):
                outcomes = tuple((each.error, each.message) for each in reply.partitions)
                request.reply(private.MoveReplicasResponse(outcomes))
            else:
                _refuse(request, reply)

        park(request, ask(requests.MoveReplicas(moves), answer))

    def plan_host(request: Request) -> None:
        body: private.PlanHostRequest = request.body
        kinds = {kind.value: kind for kind in HostKind}
        if body.kind not in kinds:
            request.refuse(InvalidRequest(f"no kind of host {body.kind!r}: choose from {', '.join(kinds)}"))
            return

        def answer(reply: ControllerReply) -> None:
            if isinstance(reply, requests.HostAnswer) and not reply.error:
                request.reply(private.PlanHostResponse(reply.node_id, reply.message or ""))
            else:
                _refuse(request, reply)

        park(request, ask(requests.PlanHost(body.broker_id, body.path, kinds[body.kind]), answer))

    def retire_host(request: Request) -> None:
        body: private.RetireHostRequest = request.body

        def answer(reply: ControllerReply) -> None:
            if isinstance(reply, requests.HostRetirement) and not reply.error:
                request.reply(private.RetireHostResponse(reply.moved, reply.remaining))
            else:
                _refuse(request, reply)

        park(request, ask(requests.RetireHost(body.node_id), answer))

    return {
        private.MOVE_REPLICAS: move_replicas,
        private.MOVE_TO_DISKS: _to_disks(ask, park),
        private.PLAN_HOST: plan_host,
        private.RETIRE_HOST: retire_host,
    }


def _to_disks(ask: Ask, park: Park) -> Callable[[Request], None]:
    def move_to_disks(request: Request) -> None:
        body: private.MoveToDisksRequest = request.body
        try:
            targets = tuple(DiskTarget(str(t), int(p), str(path)) for t, p, path in body.replicas)
        except (TypeError, ValueError):
            request.refuse(InvalidRequest("a move to a disk is a topic, a partition and a path"))
            return

        def answer(reply: ControllerReply) -> None:
            if isinstance(reply, MovingToDisks):
                request.reply(private.MoveToDisksResponse(reply.outcomes))
            else:
                _refuse(request, reply)

        park(request, ask(MoveToDisks(body.broker_id, targets), answer))

    return move_to_disks


def _refuse(request: Request, reply: ControllerReply) -> None:
    assert isinstance(reply, Refused | requests.HostAnswer | requests.HostRetirement), reply
    request.refuse(error_for(reply.error, reply.message))
