"""Refused configs of brokers, as Kafka clients hear of them: INVALID_REQUEST.

Inside the cluster a config that cannot be set is INVALID_CONFIG, whatever it would be set of. Apache
Kafka says that of topics, loggers, groups and subscriptions. Of brokers it says INVALID_REQUEST,
which its developers call wrong and keep for the sake of the programs that tell by it that the value
is at fault and not the cluster (KAFKA-13609). The message is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.kafka.spec import ApiSpec
from raylog.metadata.configuration.config_requests import ResourceType
from raylog.wire.request import Handler, Request

BROKER = ResourceType.BROKER.value


def handlers(inside: Mapping[ApiSpec, Handler]) -> dict[ApiSpec, Handler]:
    """Of the APIs that change configs; ``inside`` answers as the cluster's own programs know it."""
    return {spec: _handler(each) for spec, each in inside.items()}


def _handler(inside: Handler) -> Handler:
    def handle(request: Request) -> Any:
        if any(each.resource_type == BROKER for each in request.body.resources):
            request.replace_body(request.body)
            request.amend_reply(_in_kafkas_words)
        return inside(request)

    return handle


def _in_kafkas_words(reply: Any) -> Any:
    return replace(reply, responses=tuple(map(_refusal, reply.responses)))


def _refusal(outcome: Any) -> Any:
    if outcome.resource_type != BROKER or outcome.error_code is not ErrorCode.invalid_config:
        return outcome
    return replace(outcome, error_code=ErrorCode.invalid_request)
