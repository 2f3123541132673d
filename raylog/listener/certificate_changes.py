"""Certificates of this Broker's listeners that are changed while it runs (KIP-226).

The controller stores what is set of a broker, and can't read its files. So a change of certificates
is checked here, before it is passed on: with it, what is set already and what the start said, each
listener has to have certificates that fit. What does not fit is answered INVALID_CONFIG for its
resource (what clients hear, ``config_refusals`` makes of it), and nothing of that resource changes.
Clients send a broker's changes to that broker; a change for another one is passed on unchecked, and
the controller refuses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from raylog.configs.certificate_configs import certificate_configs, listener_of
from raylog.errors import ConfigError
from raylog.kafka import table
from raylog.kafka.refusal import refused_item
from raylog.kafka.spec import ApiSpec
from raylog.listener.controller_link import ControllerLink
from raylog.listener.routes import Routes
from raylog.metadata.configuration.config_requests import ConfigOperation, ResourceType
from raylog.server.apis.api import answer
from raylog.wire.request import Handler, Request

Check = Callable[[Mapping[str, str]], None]
"""Raises ConfigError for certificates that listeners can't go by. Reads files."""
ALTERATIONS: Final = (table.ALTER_CONFIGS, table.INCREMENTAL_ALTER_CONFIGS)


def check_none(configs: Mapping[str, str]) -> None:
    """Of listeners without TLS."""
    raise ConfigError("there are no listeners with TLS")


def handlers(link: ControllerLink, routes: Routes, check: Check) -> dict[ApiSpec, Handler]:
    """Of the APIs that change configs."""
    return {spec: _handler(spec, link.forward(spec), routes, check) for spec in ALTERATIONS}


def _handler(spec: ApiSpec, forward: Callable[[Request], Any], routes: Routes, check: Check) -> Handler:
    async def handle(request: Request) -> Any:
        refused: dict[int, str] = {}
        for place, resource in enumerate(request.body.resources):
            wanted = _wanted(resource, routes, replaces=spec is table.ALTER_CONFIGS)
            if wanted is None:
                continue
            try:
                await asyncio.to_thread(check, wanted)
            except ConfigError as error:
                refused[place] = str(error)
        if refused:
            _take_out(spec, request, refused)
        return await forward(request)

    return handle


def _wanted(resource: Any, routes: Routes, *, replaces: bool) -> dict[str, str] | None:
    """The certificates' configs of this Broker after the change; None if it changes none of them."""
    if resource.resource_type != ResourceType.BROKER.value or resource.resource_name != str(routes.broker_id):
        return None
    before = certificate_configs(routes.image.broker_configs.get(routes.broker_id, {}))
    after = {} if replaces else dict(before)
    for change in resource.configs:
        if listener_of(change.name) is None:
            continue
        operation = ConfigOperation.SET.value if replaces else change.config_operation
        if operation == ConfigOperation.SET.value:
            after[change.name] = change.value or ""
        elif operation == ConfigOperation.DELETE.value:
            after.pop(change.name, None)
    return after if after != before else None


def _take_out(spec: ApiSpec, request: Request, refused: Mapping[int, str]) -> None:
    """Pass on the other resources only, and answer for these."""
    asked = request.body.resources
    kind = answer(spec, request.version)[1].AlterConfigsResourceResponse
    request.replace_body(
        replace(request.body, resources=tuple(each for place, each in enumerate(asked) if place not in refused))
    )

    def amend(reply: Any) -> Any:
        passed_on = iter(reply.responses)
        responses = (
            refused_item(kind, each, ErrorCode.invalid_config, refused[place]) if place in refused else next(passed_on)
            for place, each in enumerate(asked)
        )
        return replace(reply, responses=tuple(responses))

    request.amend_reply(amend)
