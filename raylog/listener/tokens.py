"""Delegation tokens at a listener: who may ask about them, and which ones a client sees (KIP-48,
KIP-373). The controller decides the rest.

Only clients that have proved who they are may ask, and not by a token: what a token opens must not
outlive it. Others are answered DELEGATION_TOKEN_REQUEST_NOT_ALLOWED. Making a token for somebody
else takes CreateTokens on that user. A client sees the tokens that it owns, has asked for or may
renew; others by Describe on the token, or by DescribeTokens on its owner.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

from kio.schema.errors import ErrorCode

from raylog.kafka import table
from raylog.kafka.context import ANONYMOUS
from raylog.kafka.refusal import refusal
from raylog.kafka.spec import ApiSpec
from raylog.listener.access.access import Access
from raylog.listener.controller_link import ControllerLink
from raylog.security.permissions import Operation, Resource
from raylog.wire.request import Handler, Request
from raylog.wire.sasl import SaslConnection

TOKEN_APIS: Final = (
    table.CREATE_DELEGATION_TOKEN,
    table.RENEW_DELEGATION_TOKEN,
    table.EXPIRE_DELEGATION_TOKEN,
    table.DESCRIBE_DELEGATION_TOKEN,
)
AccessOf = Callable[[Request], Access | None]


def handlers(link: ControllerLink, access_of: AccessOf) -> dict[ApiSpec, Handler]:
    """``access_of`` returns what a request's client may do; None: everything."""
    return {spec: _handler(spec, link, access_of) for spec in TOKEN_APIS}


def _handler(spec: ApiSpec, link: ControllerLink, access_of: AccessOf) -> Handler:
    forward = link.forward(spec)

    def handle(request: Request) -> Any:
        access, error = access_of(request), ErrorCode.none
        if not _has_proved_itself(request):
            error = ErrorCode.delegation_token_request_not_allowed
        elif spec is table.CREATE_DELEGATION_TOKEN and not _may_create(access, request):
            error = ErrorCode.delegation_token_authorization_failed
        if error is not ErrorCode.none:
            request.reply(refusal(spec, request.version, request.body, error))
            return None
        if spec is table.DESCRIBE_DELEGATION_TOKEN and access is not None:
            principal, may = request.context.principal, access
            request.amend_reply(lambda reply: _seen(reply, principal, may))
        return forward(request)

    return handle


def _has_proved_itself(request: Request) -> bool:
    connection = request.connection
    by_token = isinstance(connection, SaslConnection) and connection.has_token
    return request.context.principal != ANONYMOUS and not by_token


def _may_create(access: Access | None, request: Request) -> bool:
    name = getattr(request.body, "owner_principal_name", None)
    owner = f"{request.body.owner_principal_type}:{name}" if name else request.context.principal
    if access is None or owner == request.context.principal:
        return True
    return access.may(Operation.CREATE_TOKENS, Resource.USER, owner)


def _seen(reply: Any, principal: str, access: Access) -> Any:
    def is_seen(token: Any) -> bool:
        owner = f"{token.principal_type}:{token.principal_name}"
        of_token = {owner, *(f"{each.principal_type}:{each.principal_name}" for each in token.renewers)}
        if hasattr(token, "token_requester_principal_name"):
            of_token.add(f"{token.token_requester_principal_type}:{token.token_requester_principal_name}")
        return (
            principal in of_token
            or access.may(Operation.DESCRIBE, Resource.DELEGATION_TOKEN, token.token_id, is_asked=False)
            or access.may(Operation.DESCRIBE_TOKENS, Resource.USER, owner, is_asked=False)
        )

    return dataclasses.replace(reply, tokens=tuple(filter(is_seen, reply.tokens)))
