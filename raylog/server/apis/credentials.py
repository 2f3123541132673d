"""The controller's Kafka APIs for users' SCRAM credentials (KIP-554). As in ``admin``, each entry of
``APIS`` is two translations.

Passwords never come here: whoever sets one sends a salt and the salted password.
"""

from __future__ import annotations

from typing import Any

from raylog.kafka import table
from raylog.metadata.requests import ControllerReply, Request
from raylog.metadata.users import credential_requests
from raylog.server.apis.api import Api, answer
from raylog.server.apis.entities import CODES, NO_DELAY


def _alter_request(body: Any, version: int) -> Request:
    return credential_requests.AlterUserScramCredentials(
        tuple(credential_requests.ScramDeletion(each.name, each.mechanism) for each in body.deletions),
        tuple(
            credential_requests.ScramUpsertion(
                each.name, each.mechanism, each.iterations, bytes(each.salt), bytes(each.salted_password)
            )
            for each in body.upsertions
        ),
    )


def _altered_entity(body: Any, reply: ControllerReply, version: int) -> Any:
    cls, module = answer(table.ALTER_USER_SCRAM_CREDENTIALS, version)
    assert isinstance(reply, credential_requests.UserScramCredentialsAltered), reply
    results = tuple(
        module.AlterUserScramCredentialsResult(user=each.user, error_code=CODES[each.error], error_message=each.message)
        for each in reply.users
    )
    return cls(throttle_time=NO_DELAY, results=results)


def _describe_request(body: Any, version: int) -> Request:
    return credential_requests.DescribeUserScramCredentials(tuple(each.name for each in body.users or ()))


def _described_entity(body: Any, reply: ControllerReply, version: int) -> Any:
    cls, module = answer(table.DESCRIBE_USER_SCRAM_CREDENTIALS, version)
    assert isinstance(reply, credential_requests.UserScramCredentialsDescribed), reply
    results = tuple(
        module.DescribeUserScramCredentialsResult(
            user=each.user,
            error_code=CODES[each.error],
            error_message=each.message,
            credential_infos=tuple(
                module.CredentialInfo(mechanism=mechanism, iterations=iterations)
                for mechanism, iterations in each.credentials
            ),
        )
        for each in reply.users
    )
    return cls(throttle_time=NO_DELAY, error_code=CODES[0], error_message=None, results=results)


APIS = (
    Api(table.ALTER_USER_SCRAM_CREDENTIALS, _alter_request, _altered_entity),
    Api(table.DESCRIBE_USER_SCRAM_CREDENTIALS, _describe_request, _described_entity),
)
