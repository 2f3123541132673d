"""Certificates of listeners, reloaded when their files change.

Every ``LOOK_S`` seconds a thread looks at the files of each listener with TLS. When one of them is
another file or has another time or length, the listener reads all of them and goes by them for new
connections; open ones stay. Files that do not fit together, such as a key whose certificate is not
there yet, are reported in the log, and the listener keeps what it has until they change again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from raylog.errors import ConfigError
from raylog.types import Endpoint
from raylog.wire.ports import Port
from raylog.wire.tls import TlsConfig

logger = logging.getLogger("raylog.broker")

LOOK_S: Final = 1.0

Stamp = tuple[tuple[int, int, int] | None, ...]


class CertificateWatch:
    """Looks at the files of all listeners with TLS from ``start`` to ``stop``."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._watched: list[tuple[Port, TlsConfig, Stamp]] = []

    def port(
        self, listener: str, wanted: Endpoint, tls: TlsConfig, *, has_sasl: bool = False, must_match: bool = False
    ) -> Port:
        """A port with TLS. Raises ConfigError if its files can't be used."""
        stamp = stamp_of(tls.files)  # before they are read: a change meanwhile is one
        port = Port(
            listener,
            wanted,
            must_match=must_match,
            ssl=tls.context(),
            principal_of=tls.principal_of,
            has_sasl=has_sasl,
        )
        if tls.files:
            self._watched.append((port, tls, stamp))
        return port

    def start(self) -> None:
        """Begin to look."""
        if self._watched:
            self._task = asyncio.get_running_loop().create_task(self._watch(self._watched))

    async def stop(self) -> None:
        """Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _watch(self, watched: list[tuple[Port, TlsConfig, Stamp]]) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for index, (port, tls, before) in enumerate(watched):
                found = await asyncio.to_thread(stamp_of, tls.files)
                if found != before:
                    watched[index] = (port, tls, found)
                    await _reload(port, tls)


async def _reload(port: Port, tls: TlsConfig) -> None:
    try:
        await port.use(await asyncio.to_thread(tls.context), tls.principal_of)
    except (ConfigError, OSError) as error:
        logger.error("listener %s keeps its certificates: %s", port.listener, error)
        return
    logger.info("listener %s goes by its new certificates", port.listener)


def stamp_of(files: Sequence[Path]) -> Stamp:
    """What tells whether a file is another one than before."""
    found: list[tuple[int, int, int] | None] = []
    for file in files:
        try:
            status = os.stat(file)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(found)
