"""Limits how fast clients create and delete partitions (``controller_mutation_rate``, KIP-599).

A request costs as many tokens as partitions that it creates or deletes. In versions whose clients
know THROTTLING_QUOTA_EXCEEDED, a topic is refused by it while the bucket is in debt. In older ones
every topic is carried out, and the client waits until the debt is paid. What is only validated costs
nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from raylog.configs import broker_configs
from raylog.kafka import table
from raylog.kafka.context import RequestContext
from raylog.kafka.refusal import refusal
from raylog.kafka.spec import ApiSpec
from raylog.listener.access.checks import parted
from raylog.metadata.image import MetadataImage
from raylog.security.quota_rates import TokenBucket
from raylog.wire.request import Handler, Request

MESSAGE: Final = "The throttling quota has been exceeded."
BucketOf = Callable[[RequestContext], TokenBucket | None]
Throttle = Callable[[Request, int], None]


class _Mutation(NamedTuple):
    """``strict_from``: the first version whose clients know the error. ``cost`` of one topic of a
    request.
    """

    spec: ApiSpec
    strict_from: int
    replied: str
    cost: Callable[[MetadataImage, Any], int]


def _created(image: MetadataImage, topic: Any) -> int:
    if topic.assignments:
        return len(topic.assignments)
    if topic.num_partitions >= 0:
        return int(topic.num_partitions)
    return broker_configs.number(image.broker_configs, None, broker_configs.PARTITIONS, default=1)


def _deleted(image: MetadataImage, topic: Any) -> int:
    """``topic``: its name in old versions."""
    name = topic if isinstance(topic, str) else topic.name
    found = image.topic_named(name) if name is not None else image.topics.get(topic.topic_id)
    return 0 if found is None else len(found.partitions)


def _added(image: MetadataImage, topic: Any) -> int:
    found = image.topic_named(topic.name)
    return 0 if found is None else max(0, int(topic.count) - len(found.partitions))


MUTATIONS: Final = (
    _Mutation(table.CREATE_TOPICS, 6, "topics", _created),
    _Mutation(table.DELETE_TOPICS, 5, "responses", _deleted),
    _Mutation(table.CREATE_PARTITIONS, 3, "results", _added),
)


def behind(
    mutation: _Mutation,
    handler: Handler,
    *,
    bucket_of: BucketOf,
    image: Callable[[], MetadataImage],
    now_ms: Callable[[], int],
    throttle: Throttle,
) -> Handler:
    """The handler, asked for no more than its client's quota allows. ``throttle`` has the client of
    a request wait for so many milliseconds.
    """

    def handle(request: Request) -> Any:
        bucket = bucket_of(request.context)
        if bucket is None or getattr(request.body, "validate_only", False):
            return handler(request)
        is_strict = request.version >= mutation.strict_from
        asked = "topics" if hasattr(request.body, "topics") else "topic_names"

        def take(topic: Any) -> bool:
            if is_strict and bucket.tokens(now_ms()) < 0:
                return False
            bucket.take(mutation.cost(image(), topic), now_ms())
            return True

        passed, refused = parted(getattr(request.body, asked), take)
        if refused or not is_strict:
            delay_ms = bucket.throttle_ms(now_ms())
            if delay_ms:
                throttle(request, delay_ms)
        if refused:
            answer = _refusal(mutation.spec, request, asked, refused)
            if not passed:
                request.reply(answer)
                return None
            _refuse_some(request, asked, passed, mutation.replied, answer)
        return handler(request)

    return handle


def _refusal(spec: ApiSpec, request: Request, asked: str, refused: tuple[Any, ...]) -> Any:
    body = dataclasses.replace(request.body, **{asked: refused})
    return refusal(spec, request.version, body, ErrorCode.throttling_quota_exceeded, MESSAGE)


def _refuse_some(request: Request, asked: str, passed: tuple[Any, ...], replied: str, answer: Any) -> None:
    request.replace_body(dataclasses.replace(request.body, **{asked: passed}))
    added = getattr(answer, replied)
    request.amend_reply(lambda reply: dataclasses.replace(reply, **{replied: (*getattr(reply, replied), *added)}))
