"""Where the controllers are: to move them between brokers, and to have more or fewer.

``AsyncControllerCalls`` and ``ControllerCalls`` are the parts of the admin clients that speak of
that. The cluster goes to a plan by itself, one controller at a time, and serves meanwhile.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from raylog.wire import private

T = TypeVar("T")


class AsyncControllerCalls:
    """What an admin client can do with controllers. Mixed into ``AsyncAdminClient``."""

    async def _ask(self, request: Any) -> Any:
        raise NotImplementedError

    async def plan_controllers(self, brokers: Iterable[int] = (), *, count: int = 0) -> tuple[int, ...]:
        """Have these brokers hold a controller each, 1, 3 or 5 of them, and nobody else; or
        ``count`` brokers, those first that have one. Returns the brokers, in order.

        Done when it is decided; ``Cluster.quorum`` shows how far the controllers are. A plan
        replaces the one before it. Idempotent. Raises KafkaError for a number that cannot be, and
        for brokers that are not registered, have no disk, are away or being drained.
        """
        reply = await self._ask(private.PlanControllersRequest(tuple(brokers), count))
        return tuple(reply.broker_ids)


class ControllerCalls:
    """The same, blocking. Mixed into ``AdminClient``."""

    _client: AsyncControllerCalls

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def plan_controllers(self, brokers: Iterable[int] = (), *, count: int = 0) -> tuple[int, ...]:
        """Have these brokers, or ``count`` of them, hold a controller each, and nobody else.
        Returns the brokers, in order. The controllers move after that.
        """
        return self._run(self._client.plan_controllers(brokers, count=count))
