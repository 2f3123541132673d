"""The controller's Kafka APIs for delegation tokens (KIP-48, KIP-373). As in ``admin``, each entry of
``APIS`` is two translations.

Who asks comes with the request's context. A Broker has asked before whether the client may use these
APIs at all (``raylog.listener.tokens``).
"""

from __future__ import annotations

import datetime
import time
import uuid
from dataclasses import replace
from typing import Any

from raylog.kafka import table
from raylog.kafka.spec import ApiSpec
from raylog.metadata.requests import ControllerReply, Request
from raylog.metadata.users import token_requests
from raylog.security.tokens import DelegationToken, principal_name, principal_type
from raylog.server.apis.api import Api, answer
from raylog.server.apis.entities import CODES, NO_DELAY, build, instant, milliseconds

_NEVER = datetime.datetime.fromtimestamp(0, datetime.UTC)  # kio has no word for Kafka's −1


def _asked_by(request: Any, principal: str) -> Request:
    asked: Request = replace(request, asked_by=principal)
    return asked


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _time(wall_ms: int) -> datetime.datetime:
    return instant(wall_ms) or _NEVER


def _principal(entity: Any) -> str:
    return f"{entity.principal_type}:{entity.principal_name}"


# ------------------------------------------------------------------ CreateDelegationToken


def _create_request(body: Any, version: int) -> Request:
    name = getattr(body, "owner_principal_name", None)
    owner = f"{body.owner_principal_type}:{name}" if name else None
    renewers = tuple(_principal(each) for each in body.renewers)
    lifetime_ms = milliseconds(body.max_lifetime)
    return token_requests.CreateDelegationToken(str(uuid.uuid4()), owner, renewers, lifetime_ms, now_ms())


def _created_entity(body: Any, reply: ControllerReply, version: int) -> Any:
    cls, _ = answer(table.CREATE_DELEGATION_TOKEN, version)
    assert isinstance(reply, token_requests.DelegationTokenAnswer), reply
    token = reply.token or DelegationToken("", ":", ":", (), -1, -1, -1)
    times = {
        "issue_timestamp": _time(token.issued_at_ms),
        "expiry_timestamp": _time(token.expires_at_ms),
        "max_timestamp": _time(token.ends_at_ms),
    }
    return build(cls, error_code=CODES[reply.error], hmac=reply.hmac, throttle_time=NO_DELAY, **_told(token), **times)


def _told(token: DelegationToken) -> dict[str, Any]:
    return {
        "principal_type": principal_type(token.owner),
        "principal_name": principal_name(token.owner),
        "token_requester_principal_type": principal_type(token.requester),
        "token_requester_principal_name": principal_name(token.requester),
        "token_id": token.token_id,
    }


# ------------------------------------------------------------------ RenewDelegationToken, ExpireDelegationToken


def _renew_request(body: Any, version: int) -> Request:
    return token_requests.RenewDelegationToken(bytes(body.hmac), milliseconds(body.renew_period), now_ms())


def _expire_request(body: Any, version: int) -> Request:
    return token_requests.ExpireDelegationToken(bytes(body.hmac), milliseconds(body.expiry_time_period), now_ms())


def _until_entity(spec: ApiSpec) -> Any:
    def entity(body: Any, reply: ControllerReply, version: int) -> Any:
        assert isinstance(reply, token_requests.DelegationTokenAnswer), reply
        expires_at = _time(reply.expires_at_ms)
        return answer(spec, version)[0](
            error_code=CODES[reply.error], expiry_timestamp=expires_at, throttle_time=NO_DELAY
        )

    return entity


# ------------------------------------------------------------------ DescribeDelegationToken


def _describe_request(body: Any, version: int) -> Request:
    owners = None if body.owners is None else tuple(_principal(each) for each in body.owners)
    return token_requests.DescribeDelegationTokens(owners)


def _described_entity(body: Any, reply: ControllerReply, version: int) -> Any:
    cls, module = answer(table.DESCRIBE_DELEGATION_TOKEN, version)
    assert isinstance(reply, token_requests.DelegationTokensDescribed), reply
    kind, renewer = module.DescribedDelegationToken, module.DescribedDelegationTokenRenewer
    tokens = []
    for token, hmac in reply.tokens:
        renewers = tuple(
            renewer(principal_type=principal_type(each), principal_name=principal_name(each)) for each in token.renewers
        )
        times = {
            "issue_timestamp": token.issued_at_ms,
            "expiry_timestamp": token.expires_at_ms,
            "max_timestamp": token.ends_at_ms,
        }  # numbers to kio
        tokens.append(build(kind, hmac=hmac, renewers=renewers, **_told(token), **times))
    return cls(error_code=CODES[reply.error], tokens=tuple(tokens), throttle_time=NO_DELAY)


APIS = (
    Api(table.CREATE_DELEGATION_TOKEN, _create_request, _created_entity, _asked_by),
    Api(table.RENEW_DELEGATION_TOKEN, _renew_request, _until_entity(table.RENEW_DELEGATION_TOKEN), _asked_by),
    Api(table.EXPIRE_DELEGATION_TOKEN, _expire_request, _until_entity(table.EXPIRE_DELEGATION_TOKEN), _asked_by),
    Api(table.DESCRIBE_DELEGATION_TOKEN, _describe_request, _described_entity),
)
