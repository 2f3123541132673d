"""Access to kio's entity classes by API and version, and the few conversions that all API modules
need.

Loading is lazy: kio's modules are one per version, and a process uses only a handful. Classes come
back untyped on purpose: the field sets differ from version to version, and the API modules check
``fields_of`` where they do.
"""

from __future__ import annotations

import dataclasses
import datetime
import uuid
from collections.abc import Iterable
from functools import cache
from types import ModuleType
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode

from raylog.kafka.spec import ApiSpec
from raylog.replication.awaited import stand_in_id
from raylog.replication.events import LeaderHint

NO_DELAY = datetime.timedelta(0)
ZERO_UUID = uuid.UUID(int=0)
CODES: dict[int, ErrorCode] = {code.value: code for code in ErrorCode}


@cache
def response_class(spec: ApiSpec, version: int) -> Any:
    """kio's response class of that API and version."""
    return load_response_schema(spec.key, version)


@cache
def request_class(spec: ApiSpec, version: int) -> Any:
    """kio's request class of that API and version."""
    return load_request_schema(spec.key, version)


@cache
def module_of(entity: Any) -> ModuleType:
    """The module that holds an entity class and the classes nested in it."""
    import importlib

    return importlib.import_module(entity.__module__)


@cache
def fields_of(entity: Any) -> frozenset[str]:
    """The names of the fields that this version of an entity has."""
    return frozenset(field.name for field in dataclasses.fields(entity))


def milliseconds(delta: datetime.timedelta) -> int:
    """A kio duration as whole milliseconds."""
    return (delta.days * 86_400 + delta.seconds) * 1_000 + delta.microseconds // 1_000


def instant(wall_ms: int) -> datetime.datetime | None:
    """A wall-clock time as kio wants it: None where the log set none."""
    return None if wall_ms < 0 else datetime.datetime.fromtimestamp(wall_ms / 1_000, datetime.UTC)


class TopicNames:
    """The topics of the replicas that this process holds, by name and by id."""

    def __init__(self) -> None:
        self._ids: dict[str, uuid.UUID] = {}
        self._names: dict[uuid.UUID, str] = {}

    def add(self, name: str, topic_id: uuid.UUID) -> None:
        self._ids[name] = topic_id
        self._names[topic_id] = name

    def discard(self, topic_id: uuid.UUID) -> None:
        name = self._names.pop(topic_id, None)
        if name is not None and self._ids.get(name) == topic_id:
            del self._ids[name]

    def id_of(self, topic: Any) -> uuid.UUID:
        """The id of a request's topic, however its version names it; a made-up one for a name that
        is not here.
        """
        named = getattr(topic, "topic_id", None)
        if named is not None:
            return named  # type: ignore[no-any-return]
        return self.id_of_name(getattr(topic, "name", None) or getattr(topic, "topic", None) or "")

    def id_of_name(self, name: str) -> uuid.UUID:
        """The id of the topic of that name; a made-up one for a name that is not here."""
        known = self._ids.get(name)
        return known if known is not None else stand_in_id(name)

    def name_of(self, topic_id: uuid.UUID) -> str:
        return self._names.get(topic_id, "")


def endpoints(module: ModuleType, hints: Iterable[LeaderHint | None]) -> tuple[Any, ...]:
    """The ``node_endpoints`` of an answer: each hinted leader once."""
    seen = {hint.leader_node: hint.endpoint for hint in hints if hint is not None and hint.endpoint is not None}
    return tuple(
        module.NodeEndpoint(node_id=node, host=endpoint.host, port=endpoint.port, rack=None)
        for node, endpoint in sorted(seen.items())
    )


def build(entity: Any, **values: Any) -> Any:
    """An entity out of those values that this version has a field for. For answers off the hot
    path.
    """
    has = fields_of(entity)
    return entity(**{name: value for name, value in values.items() if name in has})
