"""The private request that plans where controllers are, as the controller's listener answers it."""

from __future__ import annotations

from collections.abc import Callable

from raylog.errors import error_for
from raylog.metadata import requests
from raylog.metadata.requests import ControllerReply, Refused
from raylog.server.host_requests import Ask, InvalidRequest, Park
from raylog.wire import private
from raylog.wire.request import Request


def handlers(ask: Ask, park: Park) -> dict[int, Callable[[Request], None]]:
    """``ask`` and ``park`` as for ``host_requests``."""

    def plan_controllers(request: Request) -> None:
        body: private.PlanControllersRequest = request.body
        try:
            plan = requests.PlanControllers(tuple(map(int, body.broker_ids)), int(body.count))
        except (TypeError, ValueError):
            request.refuse(InvalidRequest("a plan is a list of broker ids, or how many controllers there shall be"))
            return

        def answer(reply: ControllerReply) -> None:
            assert isinstance(reply, requests.ControllersPlan | Refused), reply
            if isinstance(reply, Refused) or reply.error:
                request.refuse(error_for(reply.error, reply.message))
            else:
                request.reply(private.PlanControllersResponse(reply.broker_ids))

        park(request, ask(plan, answer))

    return {private.PLAN_CONTROLLERS: plan_controllers}
