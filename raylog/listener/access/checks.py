"""The building blocks of rules: a rule looks at one request of an API before its handler does.

A ``Rule`` returns the answer that denies the request, or None: then the handler carries out what is
left of it. What is denied of a request with several items is taken out of its body; a part of the
answer about it is added to the handler's (``Request.amend_reply``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from kio.schema.errors import ErrorCode

from raylog.kafka.refusal import refusal
from raylog.kafka.spec import ApiSpec, ErrorPlace
from raylog.listener.access.access import Access
from raylog.security.permissions import Operation, Resource
from raylog.wire.request import Request

Rule = Callable[[Access, Request], Any]
Check = Callable[[Access, Any], bool]
Item = TypeVar("Item")

MESSAGES: Final = {
    ErrorCode.cluster_authorization_failed: "Cluster authorization failed.",
    ErrorCode.group_authorization_failed: "Group authorization failed.",
    ErrorCode.topic_authorization_failed: "Topic authorization failed.",
    ErrorCode.transactional_id_authorization_failed: "Transactional Id authorization failed.",
    ErrorCode.unknown_topic_id: "This server does not host this topic ID.",
}
TOPIC_DENIED: Final = ErrorCode.topic_authorization_failed


def denied(spec: ApiSpec, request: Request, error: ErrorCode) -> Any:
    """The answer that denies the whole request."""
    return refusal(spec, request.version, request.body, error, MESSAGES.get(error))


def nothing(access: Access, request: Request) -> None:
    """The rule of what everybody may ask."""


def of_handler(access: Access, request: Request) -> None:
    """The rule of an API whose handler asks for itself (``Guard.access``)."""


def all_of(*rules: Rule) -> Rule:
    """The first denial counts."""

    def rule(access: Access, request: Request) -> Any:
        return next((answer for each in rules if (answer := each(access, request)) is not None), None)

    return rule


def whole(spec: ApiSpec, error: ErrorCode, *any_of: Check) -> Rule:
    """Deny the whole request unless one of the checks passes."""

    def rule(access: Access, request: Request) -> Any:
        if any(check(access, request.body) for check in any_of):
            return None
        return denied(spec, request, error)

    return rule


def on_cluster(*operations: Operation) -> Check:
    return lambda access, _: any(access.may_on_cluster(each, is_asked=each is operations[-1]) for each in operations)


def on(resource: Resource, operation: Operation, field: str) -> Check:
    """On the resource that this field of the request, or of its item, names."""
    return lambda access, body: access.may(operation, resource, getattr(body, field))


def on_topic(operation: Operation) -> Check:
    """On an item's topic, by whatever name the item has for it."""
    return lambda access, item: access.may_on_topic(operation, topic_of(item))


def topic_of(item: Any) -> Any:
    """The name, or the id, of an item's topic."""
    for field in ("name", "topic", "topic_id"):
        found = getattr(item, field, None)
        if found is not None:
            return found
    return None


def parted(found: Iterable[Item], may: Callable[[Item], bool]) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """Those that may, and the others, each in order."""
    passed: list[Item] = []
    refused: list[Item] = []
    for each in found:
        (passed if may(each) else refused).append(each)
    return tuple(passed), tuple(refused)


def items(
    spec: ApiSpec, error: ErrorCode, asked: str, replied: str, check: Check, *, place: ErrorPlace = ErrorPlace.ITEMS
) -> Rule:
    """Deny each item of the list ``asked`` that does not pass; the answer has it in ``replied``."""
    in_items = dataclasses.replace(spec, refused_at=place)

    def rule(access: Access, request: Request) -> Any:
        passed, refused = parted(getattr(request.body, asked) or (), lambda each: check(access, each))
        if not refused:
            return None
        body = dataclasses.replace(request.body, **{asked: refused})
        answer = refusal(in_items, request.version, body, error, MESSAGES.get(error))
        if not passed:
            return answer
        request.replace_body(dataclasses.replace(request.body, **{asked: passed}))
        added = getattr(answer, replied)
        request.amend_reply(lambda reply: dataclasses.replace(reply, **{replied: (*getattr(reply, replied), *added)}))
        return None

    return rule


def topics(spec: ApiSpec, operation: Operation, asked: str = "topics", replied: str = "topics") -> Rule:
    return items(spec, TOPIC_DENIED, asked, replied, on_topic(operation))
