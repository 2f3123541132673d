"""DescribeAcls, CreateAcls and DeleteAcls: SECURITY_DISABLED.

Apache Kafka's brokers give the same answer when no authoriser is configured. Admin clients know it,
and tools that copy ACLs (MirrorMaker 2) skip them and go on.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from raylog.kafka.refusal import refusal
from raylog.kafka.spec import ApiSpec
from raylog.wire.request import Handler, Request

MESSAGE = "There are no ACLs: raylog has no authorizer yet."


def handler(spec: ApiSpec) -> Handler:
    """Return the handler of one of them."""

    def refuse(request: Request) -> None:
        request.reply(refusal(spec, request.version, request.body, ErrorCode.security_disabled, MESSAGE))

    return refuse
