"""What a start tells the controller of configs, as the controller's listener takes it."""

from __future__ import annotations

from collections.abc import Callable

from kio.schema.errors import ErrorCode

from raylog.errors import error_for, kafka_error
from raylog.metadata.configuration.config_requests import ConfigsAltered, SetStaticConfigs
from raylog.metadata.records import StaticSource
from raylog.metadata.requests import ControllerReply, Refused
from raylog.server.host_requests import Ask, Park
from raylog.wire import private
from raylog.wire.request import Request

InvalidRequest = kafka_error(ErrorCode.invalid_request)


def handlers(ask: Ask, park: Park) -> dict[int, Callable[[Request], None]]:
    """``ask`` and ``park`` as for ``host_requests``."""

    def set_static_configs(request: Request) -> None:
        body: private.SetStaticConfigsRequest = request.body
        try:
            source = StaticSource(body.source)
            configs = tuple(sorted((str(name), str(value)) for name, value in body.configs.items()))
        except (AttributeError, ValueError):
            request.refuse(InvalidRequest("static configs are a source, 0 or 1, and a map of names to values"))
            return

        def answer(reply: ControllerReply) -> None:
            if isinstance(reply, Refused):
                request.refuse(error_for(reply.error, reply.message))
                return
            assert isinstance(reply, ConfigsAltered), reply
            (outcome,) = reply.resources
            if outcome.error:
                request.refuse(error_for(outcome.error, outcome.message))
            else:
                request.reply(private.SetStaticConfigsResponse())

        park(request, ask(SetStaticConfigs(source, configs, bool(body.replaces)), answer))

    return {private.SET_STATIC_CONFIGS: set_static_configs}
