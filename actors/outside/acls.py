"""DescribeAcls, CreateAcls and DeleteAcls (keys 29 to 31), versions 1–3: SECURITY_DISABLED.

Apache Kafka's brokers give the same answer when no authoriser is configured. Admin clients know it, and tools that copy ACLs
(MirrorMaker 2) skip them and go on.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from raylog.actors.apis.api import answer
from raylog.actors.apis.entities import NO_DELAY
from raylog.wire.server import Handler, Request

DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS = 29, 30, 31
VERSIONS = {key: range(1, 4) for key in (DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS)}
_REFUSAL: dict[str, Any] = {
    "error_code": ErrorCode.security_disabled,
    "error_message": "There are no ACLs: raylog has no authorizer yet.",
}


def handlers() -> dict[int, Handler]:
    return {DESCRIBE_ACLS: _describe, CREATE_ACLS: _create, DELETE_ACLS: _delete}


def _describe(request: Request) -> None:
    cls, _ = answer(DESCRIBE_ACLS, request.version)
    request.reply(cls(throttle_time=NO_DELAY, resources=(), **_REFUSAL))


def _create(request: Request) -> None:
    cls, module = answer(CREATE_ACLS, request.version)
    results = tuple(module.AclCreationResult(**_REFUSAL) for _ in request.body.creations)
    request.reply(cls(throttle_time=NO_DELAY, results=results))


def _delete(request: Request) -> None:
    cls, module = answer(DELETE_ACLS, request.version)
    results = tuple(module.DeleteAclsFilterResult(matching_acls=(), **_REFUSAL) for _ in request.body.filters)
    request.reply(cls(throttle_time=NO_DELAY, filter_results=results))
