"""Requests to the coordinator of a group, wherever it is.

The controller says which process leads the group's partition of ``__consumer_offsets`` (and has that topic created when it is first
asked). A connection that breaks, no answer in time, NOT_COORDINATOR and COORDINATOR_NOT_AVAILABLE forget what was known, so that the next
request looks again.

``ask`` makes one attempt and gives its error code back, for those who have a machine of their own; ``request`` goes on until the
deadline. Lives in one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.client import group_requests
from raylog.client.link import ClusterLink
from raylog.errors import ClientTimeoutError, RaylogError, error_for
from raylog.types import Endpoint

_FIRST_RETRY_S = 0.02
_FIND_MS = 5_000
_ELSEWHERE = frozenset(
    {ErrorCode.not_coordinator, ErrorCode.coordinator_not_available, ErrorCode.network_exception, ErrorCode.request_timed_out}
)  # fmt: skip
AGAIN = _ELSEWHERE | {ErrorCode.coordinator_load_in_progress, ErrorCode.unstable_offset_commit}


def whole_error(reply: Any) -> int:
    """The error of a reply that has one for the whole of it."""
    return int(reply.error_code)


class CoordinatorLink:
    def __init__(self, link: ClusterLink, group_id: str) -> None:
        self._link = link
        self.group_id = group_id
        self._endpoint: Endpoint | None = None

    async def ask(
        self, request: Any, *, timeout_ms: float, error_of: Callable[[Any], int] = whole_error
    ) -> tuple[int, Any]:
        """One attempt: the error code and the reply. Where no answer came NETWORK_EXCEPTION or COORDINATOR_NOT_AVAILABLE, and None."""
        endpoint = None
        try:
            endpoint = await self._find()
            connection = await self._link.connections.get(endpoint)
            reply = await connection.request(request, timeout_ms=timeout_ms)
        except RaylogError as error:
            if isinstance(error, ClientTimeoutError) and endpoint is not None:
                connection_held = self._link.connections.peek(endpoint)
                if connection_held is not None:
                    connection_held.abort(error)
            self._endpoint = None
            is_told = endpoint is None and error.code is not ErrorCode.unknown_server_error  # by the controller
            return int(error.code if is_told else ErrorCode.network_exception), None
        code = error_of(reply)
        if code in _ELSEWHERE:
            self._endpoint = None
        return code, reply

    async def request(
        self, request: Any, *, timeout_ms: float, what: str, error_of: Callable[[Any], int] = whole_error
    ) -> Any:
        """The coordinator's reply, asked for until the deadline. Raises what it says of errors that waiting does not mend."""
        loop = asyncio.get_running_loop()
        config = self._link.config
        deadline = loop.time() + timeout_ms / 1000
        failures = 0
        while True:
            left_ms = max(1.0, (deadline - loop.time()) * 1000)
            code, reply = await self.ask(request, timeout_ms=min(config.request_timeout_ms, left_ms), error_of=error_of)
            if not code:
                return reply
            error = error_for(code, f"{what} of group {self.group_id!r}: {ErrorCode(code).name.upper()}")
            if code not in AGAIN:
                raise error
            failures += 1
            backoff = config.retry_backoff_ms * 2 ** min(max(failures - 2, 0), 16)
            pause_s = _FIRST_RETRY_S if failures == 1 else min(backoff, config.retry_backoff_max_ms) / 1000
            if loop.time() + pause_s >= deadline:
                raise ClientTimeoutError(f"no answer within {timeout_ms:g} ms: {error}") from error
            await asyncio.sleep(pause_s)

    async def _find(self) -> Endpoint:
        if self._endpoint is None:
            reply = await self._link.controller.request(
                group_requests.find_coordinators([self.group_id]),
                timeout_ms=min(_FIND_MS, self._link.config.request_timeout_ms),
            )
            found = reply.coordinators[0]
            if found.error_code is not ErrorCode.none:
                raise error_for(found.error_code, found.error_message)
            self._endpoint = Endpoint(found.host, int(found.port))
        return self._endpoint
