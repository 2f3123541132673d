"""What an admin client can do about users: their SCRAM credentials (KIP-554).

A password stays where it is given. What travels is a random salt and the password salted with it,
as Kafka's own tools do it.
"""

from __future__ import annotations

import secrets
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from raylog.errors import ConfigError, error_for
from raylog.security.scram import ITERATIONS_MIN, SALT_BITS, ScramMechanism, salt_of, salted_password

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UserDescription:
    """``iterations`` by mechanism, such as ``{"SCRAM-SHA-256": 4096}``."""

    user: str
    iterations: Mapping[str, int]


def mechanism_named(name: str) -> ScramMechanism:
    """Raises ConfigError."""
    for mechanism in ScramMechanism:
        if mechanism.sasl_name == name.upper():
            return mechanism
    known = ", ".join(mechanism.sasl_name for mechanism in ScramMechanism)
    raise ConfigError(f"there is no SCRAM mechanism {name!r}: choose from {known}")


class AsyncUserCalls:
    """Mixed into ``AsyncAdminClient``."""

    async def _ask(self, request: Any, timeout_ms: float | None = None) -> Any:
        raise NotImplementedError

    async def describe_users(self, users: Iterable[str] = ()) -> list[UserDescription]:
        """The users that have credentials, by name; all unless some are named. Raises for a name
        that is unknown or is given twice.
        """
        schema = import_module("kio.schema.describe_user_scram_credentials.v0.request")
        named = tuple(schema.UserName(name=user) for user in users)
        reply = await self._ask(schema.DescribeUserScramCredentialsRequest(users=named or None))
        _raise_first([(reply.error_code, reply.error_message)])
        _raise_first([(each.error_code, each.error_message) for each in reply.results])
        return [
            UserDescription(
                each.user,
                {ScramMechanism(info.mechanism).sasl_name: int(info.iterations) for info in each.credential_infos},
            )
            for each in reply.results
        ]

    async def set_user(
        self,
        user: str,
        password: str,
        *,
        mechanisms: Iterable[str] = ("SCRAM-SHA-256", "SCRAM-SHA-512"),
        iterations: int = ITERATIONS_MIN,
    ) -> None:
        """Let a user authenticate with this password. What he had for these mechanisms is void."""
        if not password:
            raise ConfigError(f"user {user!r} needs a password that is not empty")
        schema = import_module("kio.schema.alter_user_scram_credentials.v0.request")
        upsertions = []
        for mechanism in map(mechanism_named, mechanisms):
            salt = salt_of(secrets.token_bytes(SALT_BITS // 8 + 1))
            salted = salted_password(mechanism, password, salt, max(1, iterations))
            upsertions.append(
                schema.ScramCredentialUpsertion(
                    name=user, mechanism=mechanism.value, iterations=iterations, salt=salt, salted_password=salted
                )
            )
        await self._alter(schema.AlterUserScramCredentialsRequest(deletions=(), upsertions=tuple(upsertions)))

    async def delete_user(self, user: str, *, mechanisms: Iterable[str] = ()) -> None:
        """Remove a user's credentials: all, or those for these mechanisms. His connections end.

        Raises the KafkaError RESOURCE_NOT_FOUND where there are none.
        """
        named = list(mechanisms) or list((await self.describe_users([user]))[0].iterations)
        schema = import_module("kio.schema.alter_user_scram_credentials.v0.request")
        deletions = tuple(
            schema.ScramCredentialDeletion(name=user, mechanism=mechanism_named(name).value) for name in named
        )
        await self._alter(schema.AlterUserScramCredentialsRequest(deletions=deletions, upsertions=()))

    async def _alter(self, request: Any) -> None:
        reply = await self._ask(request)
        _raise_first([(each.error_code, f"user {each.user!r}: {each.error_message}") for each in reply.results])


class UserCalls:
    """The same with blocking calls. Mixed into ``AdminClient``."""

    _client: AsyncUserCalls

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def describe_users(self, users: Iterable[str] = ()) -> list[UserDescription]:
        """See ``AsyncAdminClient.describe_users``."""
        return self._run(self._client.describe_users(users))

    def set_user(
        self,
        user: str,
        password: str,
        *,
        mechanisms: Iterable[str] = ("SCRAM-SHA-256", "SCRAM-SHA-512"),
        iterations: int = ITERATIONS_MIN,
    ) -> None:
        """See ``AsyncAdminClient.set_user``."""
        self._run(self._client.set_user(user, password, mechanisms=mechanisms, iterations=iterations))

    def delete_user(self, user: str, *, mechanisms: Iterable[str] = ()) -> None:
        """See ``AsyncAdminClient.delete_user``."""
        self._run(self._client.delete_user(user, mechanisms=mechanisms))


def _raise_first(results: Iterable[tuple[ErrorCode, str | None]]) -> None:
    for code, message in results:
        if code is not ErrorCode.none:
            raise error_for(int(code.value), message)
