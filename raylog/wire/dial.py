"""Asks an endpoint whether one certain process still answers there: how the controller tells death
from silence.

| outcome       | what happened                                                                        |
|---------------|--------------------------------------------------------------------------------------|
| `alive`       | the handshake was completed by that node with that incarnation                       |
| `refused`     | the machine answers and nobody listens: the process is dead                          |
| `closed`      | accepted, then closed, or completed by somebody else: that process is dead           |
| `mute`        | accepted, and no handshake within the time: stopped, overloaded, or the machine died |
| `unreachable` | no connection within the time, or no route                                           |

Where links have TLS, a process that is stopped before TLS is agreed on is `unreachable`. Certificates
that one end does not accept say nothing about the other one's life: where this end refuses, that is
`mute`, where the other one does, `unreachable`. Nor is a connection that is closed before TLS is
agreed on the end of a process: it may hold as many strangers of this address as it takes. So it is
dialled again until the time is up; a process that was dying refuses then.

A killed process's listener may accept for an instant, which is why accepting alone proves nothing.
What the outcomes mean for leadership is the controller's to decide.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Literal

from raylog.errors import ConfigError, DisconnectedError, RaylogError, SslAuthenticationError
from raylog.types import Endpoint
from raylog.wire.connection import Connection
from raylog.wire.frames import Entity
from raylog.wire.handshake import ClientHandshake, HandshakeError, Peer
from raylog.wire.internal_tls import Secret, SecretInsideTls

logger = logging.getLogger("raylog.wire")

DIAL_TIMEOUT_MS: Final = 200
RETRY_S: Final = 0.01

DialOutcome = Literal["alive", "refused", "closed", "mute", "unreachable"]


async def dial(
    endpoint: Endpoint,
    *,
    node_id: int,
    incarnation: int,
    secret: Secret,
    cluster_id: str,
    timeout_ms: int = DIAL_TIMEOUT_MS,
    say: Entity | None = None,
) -> DialOutcome:
    """The outcome, after ``timeout_ms`` at the latest. Raises nothing but cancellation.

    ``say`` is a request that a process which shook hands has to answer, whatever the answer, to
    count as alive.
    """
    connection = Connection(endpoint, "raylog dial")
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            while not await _is_connected(connection, secret):
                connection = Connection(endpoint, "raylog dial")
            await connection.shake_hands(ClientHandshake(secret, cluster_id, expect=Peer(node_id, incarnation)))
            if say is not None:
                await _ask(connection, say)
    except TimeoutError:
        return "unreachable" if connection.transport is None else "mute"
    except DisconnectedError as error:
        return outcome_of(error)
    except HandshakeError as error:
        return "mute" if isinstance(error.__cause__, SslAuthenticationError | ConfigError) else "closed"
    except RaylogError:  # garbage, a stranger, or a neighbour: whoever it is, it is not that process
        return "closed"
    finally:
        connection.abort()
    return "alive"


async def _is_connected(connection: Connection, secret: Secret) -> bool:
    """False where it was closed before TLS was agreed on, after ``RETRY_S``."""
    try:
        await connection.connect_inside(secret)
    except DisconnectedError as error:
        if not isinstance(secret, SecretInsideTls) or outcome_of(error) != "closed":
            raise
        connection.abort()
        await asyncio.sleep(RETRY_S)
        return False
    return True


async def _ask(connection: Connection, question: Entity) -> None:
    try:
        await connection.request(question, timeout_ms=None)
    except DisconnectedError:
        raise
    except RaylogError as error:
        logger.warning("%s does not take %s: %s", connection.endpoint, type(question).__name__, error)


def outcome_of(error: DisconnectedError) -> DialOutcome:
    """What a failed attempt to connect and shake hands says of the process that listened there."""
    match error.__cause__:
        case ConnectionRefusedError():
            return "refused"
        case None | ConnectionResetError() | ConnectionAbortedError() | BrokenPipeError():
            return "closed"
        case _:
            return "unreachable"
