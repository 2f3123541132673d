"""Decisions about users, their credentials, quotas and tokens, by the kind of the request."""

from __future__ import annotations

from typing import assert_never

from raylog.metadata.image import MetadataImage
from raylog.metadata.records import Record
from raylog.metadata.users.credential_decisions import decide_credentials
from raylog.metadata.users.credential_requests import AlterUserScramCredentials, UserScramCredentialsAltered
from raylog.metadata.users.quota_decisions import decide_quotas
from raylog.metadata.users.quota_requests import AlterClientQuotas, ClientQuotasAltered
from raylog.metadata.users.token_decisions import decide_tokens
from raylog.metadata.users.token_requests import (
    CreateDelegationToken,
    DelegationTokenAnswer,
    DelegationTokensRemoved,
    ExpireDelegationToken,
    RemoveExpiredTokens,
    RenewDelegationToken,
    TokenChange,
)


def decide_users(
    image: MetadataImage,
    request: AlterUserScramCredentials
    | AlterClientQuotas
    | CreateDelegationToken
    | RenewDelegationToken
    | ExpireDelegationToken
    | RemoveExpiredTokens,
) -> tuple[
    list[Record],
    UserScramCredentialsAltered | ClientQuotasAltered | DelegationTokenAnswer | DelegationTokensRemoved,
]:
    """The records that do what the request asks, as far as it can be done, and the answer."""
    match request:
        case AlterUserScramCredentials():
            return decide_credentials(image, request)
        case AlterClientQuotas():
            return decide_quotas(image, request)
        case TokenChange():
            return decide_tokens(image, request)
        case _:
            assert_never(request)
