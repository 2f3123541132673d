"""What an API of the controller is: a key, the versions spoken, and the two translations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from raylog.actors.apis.entities import module_of, response_class
from raylog.metadata import requests
from raylog.metadata.requests import ControllerReply


class Api(NamedTuple):
    """``to_request`` may raise a KafkaError for what cannot be asked; ``to_entity`` answers a Refused with the error on every item."""

    key: int
    versions: range
    to_request: Callable[[Any, int], requests.Request]
    to_entity: Callable[[Any, ControllerReply, int], Any]


def answer(key: int, version: int) -> tuple[Any, Any]:
    """The response class of an API and the module of the classes nested in it."""
    cls = response_class(key, version)
    return cls, module_of(cls)
