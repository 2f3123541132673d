"""What an admin client can do about subscriptions to client metrics (KIP-714)."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from importlib import import_module
from typing import Any, Final, TypeVar

from kio.schema.errors import ErrorCode

from raylog.client.admin.config_entries import ConfigEntry, entry_of
from raylog.client.links import requests
from raylog.errors import error_for

T = TypeVar("T")

CLIENT_METRICS_RESOURCE: Final = 16
_SET, _DELETE = 0, 1


class AsyncClientMetricsCalls:
    """Mixed into ``AsyncAdminClient``."""

    async def _ask(self, request: Any, timeout_ms: float | None = None) -> Any:
        raise NotImplementedError

    async def list_client_metrics(self) -> list[str]:
        """The names of all subscriptions."""
        schema = import_module("kio.schema.list_config_resources.v0.request")
        reply = await self._ask(schema.ListConfigResourcesRequest())
        _raise(reply.error_code, None)
        return sorted(each.resource_name for each in reply.config_resources)

    async def describe_client_metrics(self, name: str) -> dict[str, ConfigEntry]:
        """The configs of a subscription, defaults included. One that is not there has only those."""
        reply = await self._ask(requests.describe_configs(CLIENT_METRICS_RESOURCE, name, None))
        (result,) = reply.results
        _raise(result.error_code, result.error_message)
        return {entry.name: entry_of(entry) for entry in result.configs}

    async def alter_client_metrics(
        self, name: str, *, set: Mapping[str, str] | None = None, delete: Iterable[str] = ()
    ) -> None:
        """Set configs of a subscription, and delete some; all or none. Without any it is gone.
        Clients go by it when they ask for their subscriptions again, or push.
        """
        operations = [(key, _DELETE, None) for key in delete]
        changes = [(key, _SET, value) for key, value in (set or {}).items()]
        request = requests.incremental_alter_configs(
            CLIENT_METRICS_RESOURCE, name, [*operations, *changes], validate_only=False
        )
        for each in (await self._ask(request)).responses:
            _raise(each.error_code, each.error_message)


class ClientMetricsCalls:
    """The same with blocking calls. Mixed into ``AdminClient``."""

    _client: AsyncClientMetricsCalls

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def list_client_metrics(self) -> list[str]:
        """See ``AsyncAdminClient.list_client_metrics``."""
        return self._run(self._client.list_client_metrics())

    def describe_client_metrics(self, name: str) -> dict[str, ConfigEntry]:
        """See ``AsyncAdminClient.describe_client_metrics``."""
        return self._run(self._client.describe_client_metrics(name))

    def alter_client_metrics(
        self, name: str, *, set: Mapping[str, str] | None = None, delete: Iterable[str] = ()
    ) -> None:
        """See ``AsyncAdminClient.alter_client_metrics``."""
        self._run(self._client.alter_client_metrics(name, set=set, delete=delete))


def _raise(code: ErrorCode, message: str | None) -> None:
    if code is not ErrorCode.none:
        raise error_for(int(code.value), message)
