"""What tasks of Ray Data found to be lost, told to the program that planned them: a warning there
for each, as soon as it is met.

With ``fail_on_data_loss=False`` a task goes on after a loss, and nobody reads its own log (a Ray
that raylog has started or connected to does not pass it on). So the program listens, with the first
read that may lose something, on a port of its node's address, and a task tells it before it goes
on: one line of JSON with the program's token, and one that says it was heard.

It is a port and not an actor: a thread of the program that waits for an actor still holds
references when ``ray.shutdown()`` is called, and Ray ends the whole process when one is given back
after that.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
import secrets
import socket
from dataclasses import dataclass
from typing import Any

import ray.util

from raylog.client.background import background

logger = logging.getLogger("raylog.data")

PATIENCE_S = 10.0
_LINE_BYTES_MAX = 64 << 10
_HEARD = b"heard\n"


@dataclass(frozen=True, slots=True)
class LossListener:
    """Where a program listens, for its tasks to tell it."""

    host: str
    port: int
    token: str

    def tell(self, loss: str) -> None:
        """Report a loss to the program. If that fails, the task's own log says so, and the task
        goes on.
        """
        line = json.dumps({"token": self.token, "loss": loss}).encode() + b"\n"
        try:
            with socket.create_connection((self.host, self.port), PATIENCE_S) as connection:
                connection.sendall(line)
                if connection.recv(len(_HEARD), socket.MSG_WAITALL) != _HEARD:
                    raise ConnectionError("it did not acknowledge the report")
        except OSError as error:
            logger.warning(
                "%s:%d, which planned this read, did not take the report of a loss: %s", self.host, self.port, error
            )


_listening: tuple[int, asyncio.Server, LossListener] | None = None  # in the process of this number


def listener() -> LossListener:
    """This program's, listening."""
    global _listening
    if _listening is None or _listening[0] != os.getpid():
        untyped: Any = ray.util
        _listening = os.getpid(), *background().run(_listen(untyped.get_node_ip_address()))
    return _listening[2]


async def _listen(host: str) -> tuple[asyncio.Server, LossListener]:
    token = secrets.token_hex(16)

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            said = json.loads(await asyncio.wait_for(reader.readline(), PATIENCE_S))
            if hmac.compare_digest(said["token"].encode(), token.encode()):
                logger.warning("%s", said["loss"])
                writer.write(_HEARD)
                await writer.drain()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, TimeoutError) as error:
            logger.debug("what came where losses are told is none: %r", error)
        finally:
            writer.close()

    server = await asyncio.start_server(hear, host, 0, limit=_LINE_BYTES_MAX)
    return server, LossListener(host, server.sockets[0].getsockname()[1], token)
