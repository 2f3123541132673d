"""What an admin client can do about client quotas (KIP-546)."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from raylog.errors import error_for
from raylog.security.quotas import QuotaComponent

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QuotaDescription:
    """``entity``: the names by type, such as ``{"user": "alice"}``; the name None is the default.
    ``values`` by key, such as ``{"producer_byte_rate": 1048576.0}``.
    """

    entity: Mapping[str, str | None]
    values: Mapping[str, float]


class AsyncQuotaCalls:
    """Mixed into ``AsyncAdminClient``."""

    async def _ask(self, request: Any, timeout_ms: float | None = None) -> Any:
        raise NotImplementedError

    async def describe_quotas(
        self, components: Iterable[QuotaComponent] = (), *, strict: bool = False
    ) -> list[QuotaDescription]:
        """The entities that have each of these parts, all if there are none. ``strict``: and have no
        other parts.
        """
        schema = import_module("kio.schema.describe_client_quotas.v1.request")
        asked = tuple(
            schema.ComponentData(entity_type=each.entity_type, match_type=each.match_type, match=each.match)
            for each in components
        )
        reply = await self._ask(schema.DescribeClientQuotasRequest(components=asked, strict=strict))
        _raise(reply.error_code, reply.error_message)
        return [
            QuotaDescription(
                {part.entity_type: part.entity_name for part in entry.entity},
                {each.key: float(each.value) for each in entry.values},
            )
            for entry in reply.entries or ()
        ]

    async def alter_quotas(
        self, entity: Mapping[str, str | None], changes: Mapping[str, float | None], *, validate_only: bool = False
    ) -> None:
        """Set the quotas of one entity, and remove those whose value is None; all or none of them.
        They are in force within a second.
        """
        schema = import_module("kio.schema.alter_client_quotas.v1.request")
        parts = tuple(schema.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items())
        ops = tuple(
            schema.OpData(key=key, value=0.0 if value is None else float(value), remove=value is None)
            for key, value in changes.items()
        )
        request = schema.AlterClientQuotasRequest(
            entries=(schema.EntryData(entity=parts, ops=ops),), validate_only=validate_only
        )
        for entry in (await self._ask(request)).entries:
            _raise(entry.error_code, entry.error_message)


class QuotaCalls:
    """The same with blocking calls. Mixed into ``AdminClient``."""

    _client: AsyncQuotaCalls

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def describe_quotas(
        self, components: Iterable[QuotaComponent] = (), *, strict: bool = False
    ) -> list[QuotaDescription]:
        """See ``AsyncAdminClient.describe_quotas``."""
        return self._run(self._client.describe_quotas(components, strict=strict))

    def alter_quotas(
        self, entity: Mapping[str, str | None], changes: Mapping[str, float | None], *, validate_only: bool = False
    ) -> None:
        """See ``AsyncAdminClient.alter_quotas``."""
        self._run(self._client.alter_quotas(entity, changes, validate_only=validate_only))


def _raise(code: ErrorCode, message: str | None) -> None:
    if code is not ErrorCode.none:
        raise error_for(int(code.value), message)
