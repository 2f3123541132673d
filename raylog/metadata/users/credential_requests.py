"""What is asked of the controller about users' SCRAM credentials, and what it answers, as in
``requests``.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ScramDeletion:
    """``mechanism`` is Kafka's code, known or not."""

    user: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class ScramUpsertion:
    """``mechanism`` is Kafka's code, known or not. ``salted_password`` is as good as the password:
    nobody keeps it.
    """

    user: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class AlterUserScramCredentials:
    """→ UserScramCredentialsAltered. What is asked for one user is done whole or not at all."""

    deletions: tuple[ScramDeletion, ...] = ()
    upsertions: tuple[ScramUpsertion, ...] = ()


@dataclass(frozen=True, slots=True)
class UserOutcome:
    user: str
    error: int = 0
    message: str | None = None


@dataclass(frozen=True, slots=True)
class UserScramCredentialsAltered:
    """Each user that was named, once, in the order of the request."""

    users: tuple[UserOutcome, ...]


@dataclass(frozen=True, slots=True)
class DescribeUserScramCredentials:
    """→ UserScramCredentialsDescribed. ``users`` empty: all that have credentials."""

    users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribedUser:
    """``credentials``: Kafka's code of each mechanism, and its iterations."""

    user: str
    error: int = 0
    message: str | None = None
    credentials: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class UserScramCredentialsDescribed:
    users: tuple[DescribedUser, ...]
