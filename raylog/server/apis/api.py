"""How the controller answers an API: the two translations between Kafka's entities and the
controller's requests and replies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from raylog.kafka.spec import ApiSpec
from raylog.metadata import requests
from raylog.metadata.requests import ControllerReply
from raylog.server.apis.entities import module_of, response_class


class Api(NamedTuple):
    """``to_request`` may raise a KafkaError for what cannot be asked; ``to_entity`` is given a
    reply that is no Refused. ``asked_by`` adds the principal who asks, where that matters, and
    ``sent_by`` the node id of the server that passes it on (−1: none does).
    """

    spec: ApiSpec
    to_request: Callable[[Any, int], requests.Request]
    to_entity: Callable[[Any, ControllerReply, int], Any]
    asked_by: Callable[[Any, str], requests.Request] | None = None
    sent_by: Callable[[Any, int], requests.Request] | None = None


def answer(spec: ApiSpec, version: int) -> tuple[Any, Any]:
    """The response class of an API and the module of the classes nested in it."""
    cls = response_class(spec, version)
    return cls, module_of(cls)
