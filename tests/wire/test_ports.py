"""How a port accepts: some at a time, none once it is closed, and on after a peer that has gone meanwhile."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from wire_ends import until

from raylog.types import Endpoint
from raylog.wire.ports import ACCEPTED_AT_ONCE_MAX, Port

pytestmark = pytest.mark.core

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@contextmanager
def waiting(port: Port, count: int) -> Iterator[None]:
    """So many who have connected and are not accepted yet."""
    endpoint = port.bind()
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(socket.create_connection((endpoint.host, endpoint.port)))
        yield


class _Failing:
    """A listening socket whose ``accept`` fails once, with that error."""

    def __init__(self, real: socket.socket, error: OSError) -> None:
        self._real = real
        self._errors = [error]

    def accept(self) -> Any:
        if self._errors:
            raise self._errors.pop()
        return self._real.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def test_many_who_wait_are_accepted_some_at_a_time_and_others_have_their_turn_between(run: Run) -> None:
    async def work() -> None:
        port, accepted, turns = Port("P", Endpoint("127.0.0.1", 0)), [], []
        loop = asyncio.get_running_loop()

        def take(_: Port, sock: socket.socket, address: Any) -> None:
            if len(accepted) % ACCEPTED_AT_ONCE_MAX == 0:
                loop.call_soon(lambda: turns.append(len(accepted)))
            accepted.append(sock)

        with waiting(port, 2 * ACCEPTED_AT_ONCE_MAX + 1):
            port.listen(take)
            await until(lambda: len(accepted) == 2 * ACCEPTED_AT_ONCE_MAX + 1)
            assert turns[:2] == [ACCEPTED_AT_ONCE_MAX, 2 * ACCEPTED_AT_ONCE_MAX]
        port.close()
        for each in accepted:
            each.close()

    run(work())


def test_nobody_is_accepted_once_whoever_was_told_of_the_last_one_has_closed_the_port(run: Run) -> None:
    async def work() -> None:
        port, accepted, raised = Port("P", Endpoint("127.0.0.1", 0)), [], []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))

        def take(_: Port, sock: socket.socket, address: Any) -> None:
            accepted.append(sock)
            port.close()

        with waiting(port, 3):
            port.listen(take)
            await until(lambda: bool(accepted))
            for _ in range(20):  # turns of the loop, in each of which the others could come in
                await asyncio.sleep(0)
        assert len(accepted) == 1 and not raised
        accepted[0].close()

    run(work())


def test_a_peer_that_has_gone_meanwhile_keeps_nobody_out(run: Run) -> None:
    async def work() -> None:
        port, accepted = Port("P", Endpoint("127.0.0.1", 0)), []
        with waiting(port, 2):
            assert port._bound is not None
            gone: Any = _Failing(port._bound, ConnectionAbortedError(errno.ECONNABORTED, "gone"))
            port._bound = gone
            port._accepted = lambda _, sock, address: accepted.append(sock)
            port._accept()
            assert len(accepted) == 2, "in the same turn"
        port.close()
        for each in accepted:
            each.close()

    run(work())


def test_an_error_of_accept_that_says_nothing_of_descriptors_is_not_hidden(run: Run) -> None:
    async def work() -> None:
        port = Port("P", Endpoint("127.0.0.1", 0))
        port.bind()
        assert port._bound is not None
        broken: Any = _Failing(port._bound, OSError(errno.EINVAL, "it does not listen"))
        port._bound = broken
        with pytest.raises(OSError, match="it does not listen"):
            port._accept()
        port.close()

    run(work())
