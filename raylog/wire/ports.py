"""Which port a server gets, the one that it wants or the next free one where that is taken, and how
it is given back.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket

from raylog.errors import ClusterError

logger = logging.getLogger("raylog.wire")

PORTS_TRIED_MAX = 100


def listening_socket(host: str, port: int, *, port_must_match: bool) -> socket.socket:
    """A socket that listens there; non-blocking. Port 0 is any free one.

    If the port is taken, one of the next ``PORTS_TRIED_MAX`` is taken instead, with a notice,
    unless ``port_must_match``. Raises ClusterError when none can be had.
    """
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    last_port = port if port_must_match or not port else min(65_535, port + PORTS_TRIED_MAX)
    for tried in range(port, last_port + 1):
        listening = socket.socket(family, kind)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.setblocking(False)
            listening.bind((str(address[0]), tried))
            listening.listen(1024)
        except OSError as error:
            listening.close()
            if error.errno != errno.EADDRINUSE:
                raise ClusterError(f"cannot listen on {host}:{tried}: {error.strerror}") from error
            continue
        if tried != port and port:
            logger.warning("port %d is taken; listening on %d instead", port, tried)
        return listening
    which = f"port {port} is" if last_port == port else f"ports {port} to {last_port} are"
    raise ClusterError(f"cannot listen on {host}: {which} taken; name another port")


async def end_listening(listener: asyncio.Server) -> None:
    """Close a listener when what it has accepted has become connections.

    The servers of asyncio's own loop forget a socket that they have accepted and not yet made a
    transport of when they close: its peer would wait for ever. uvloop's do not.
    """
    loop = asyncio.get_running_loop()
    if isinstance(loop, asyncio.SelectorEventLoop):
        for listening in listener.sockets:
            loop.remove_reader(listening.fileno())
        for _ in range(3):  # accepted; its transport made; its protocol told
            await asyncio.sleep(0)
    listener.close()
