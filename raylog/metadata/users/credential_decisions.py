"""Decisions about users' SCRAM credentials, and what is told of them (KIP-554).

The errors and their order are those of Kafka's controller. An answer has one outcome for each user
that the request names, and a user with an error keeps all that he had.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from kio.schema.errors import ErrorCode

from raylog.metadata.image import MetadataImage
from raylog.metadata.records import Record, UserScramCredentialRemoved, UserScramCredentialSet
from raylog.metadata.users.credential_requests import (
    AlterUserScramCredentials,
    DescribedUser,
    DescribeUserScramCredentials,
    ScramDeletion,
    ScramUpsertion,
    UserOutcome,
    UserScramCredentialsAltered,
    UserScramCredentialsDescribed,
)
from raylog.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramMechanism, credential_of

USER_CHARACTERS_MAX: Final = 255
SALT_BYTES_MAX: Final = 1_024

_Problem = tuple[ErrorCode, str]
_CODES: Final = {mechanism.value: mechanism for mechanism in ScramMechanism}


def decide_credentials(
    image: MetadataImage, request: AlterUserScramCredentials
) -> tuple[list[Record], UserScramCredentialsAltered]:
    """The records that do what the request asks, as far as it can be done, and each user's outcome."""
    asked: list[ScramDeletion | ScramUpsertion] = [*request.deletions, *request.upsertions]
    named = Counter((each.user, each.mechanism) for each in asked)
    problems: dict[str, _Problem | None] = {}
    for each in asked:
        if problems.get(each.user) is None:
            problems[each.user] = _problem(image, each, times=named[each.user, each.mechanism])
    records: list[Record] = []
    for deletion in request.deletions:
        if problems[deletion.user] is None:
            records.append(UserScramCredentialRemoved(deletion.user, _CODES[deletion.mechanism]))
    for upsertion in request.upsertions:
        if problems[upsertion.user] is None:
            records.append(_set(upsertion))
    outcomes = (
        UserOutcome(user) if problem is None else UserOutcome(user, int(problem[0].value), problem[1])
        for user, problem in problems.items()
    )
    return records, UserScramCredentialsAltered(tuple(outcomes))


def describe_credentials(image: MetadataImage, request: DescribeUserScramCredentials) -> UserScramCredentialsDescribed:
    """The mechanisms and iterations of the users that are asked for, or of all, by name."""
    known: dict[str, list[tuple[int, int]]] = {}
    for user, mechanism in sorted(image.credentials, key=lambda key: (key[0], key[1].value)):
        known.setdefault(user, []).append((mechanism.value, image.credentials[user, mechanism].iterations))
    asked = Counter(list(request.users or known))

    def described(user: str) -> DescribedUser:
        if asked[user] > 1:
            message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
            return DescribedUser(user, int(ErrorCode.duplicate_resource.value), message)
        if user not in known:
            message = f"Attempt to describe a user credential that does not exist: {user}"
            return DescribedUser(user, int(ErrorCode.resource_not_found.value), message)
        return DescribedUser(user, credentials=tuple(known[user]))

    return UserScramCredentialsDescribed(tuple(described(user) for user in asked))


def _set(upsertion: ScramUpsertion) -> UserScramCredentialSet:
    mechanism = _CODES[upsertion.mechanism]
    credential = credential_of(mechanism, upsertion.salted_password, upsertion.salt, upsertion.iterations)
    return UserScramCredentialSet(upsertion.user, mechanism, credential)


def _problem(image: MetadataImage, asked: ScramDeletion | ScramUpsertion, *, times: int) -> _Problem | None:
    if not asked.user:
        return ErrorCode.unacceptable_credential, "Username must not be empty"
    mechanism = _CODES.get(asked.mechanism)
    if mechanism is None:
        return ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism"
    if times > 1:
        return ErrorCode.duplicate_resource, "A user credential cannot be altered twice in the same request"
    if isinstance(asked, ScramUpsertion):
        return _unacceptable(asked, mechanism)
    if (asked.user, mechanism) not in image.credentials:
        return ErrorCode.resource_not_found, "Attempt to delete a user credential that does not exist"
    return None


def _unacceptable(asked: ScramUpsertion, mechanism: ScramMechanism) -> _Problem | None:
    rules = (
        (asked.iterations < ITERATIONS_MIN, "Too few iterations"),
        (asked.iterations > ITERATIONS_MAX, "Too many iterations"),
        (not 0 < len(asked.salt) <= SALT_BYTES_MAX, f"A salt has 1 to {SALT_BYTES_MAX} bytes"),
        (
            len(asked.salted_password) != mechanism.key_bytes,
            f"A salted password has {mechanism.key_bytes} bytes with {mechanism.sasl_name}",
        ),
        (len(asked.user) > USER_CHARACTERS_MAX, f"A username has at most {USER_CHARACTERS_MAX} characters"),
    )
    return next(((ErrorCode.unacceptable_credential, why) for is_broken, why in rules if is_broken), None)
