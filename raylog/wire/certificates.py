"""Certificates of ports with TLS, reloaded when their files change.

A thread looks at the files of each port again and again. When one of them is another file
or has another time or length, the port reads all of them and goes by them for new connections; open
ones stay. Files that do not fit together, such as a key whose certificate is not there yet, are
reported in the log, and the port keeps what it has until they change again.
"""

from __future__ import annotations

import asyncio
import logging

from raylog.errors import ConfigError
from raylog.types import Endpoint
from raylog.wire.file_watch import FileWatch, Stamp, stamp_of
from raylog.wire.ports import Port
from raylog.wire.tls import TlsConfig

logger = logging.getLogger("raylog.broker")


class CertificateWatch(FileWatch):
    """Looks at the files of all its ports."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: list[WatchedPort] = []
        self._looking = asyncio.Lock()

    @property
    def has_files(self) -> bool:
        return bool(self.watched)

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
        self.watched.append(WatchedPort(port, tls, stamp))
        return port

    async def look(self) -> None:
        async with self._looking:
            for each in self.watched:
                try:
                    await each.look(self.tls_of(each))
                except (ConfigError, OSError) as error:
                    each.report(str(error))

    def tls_of(self, watched: WatchedPort) -> TlsConfig:
        """By what the port is to go now. Raises ConfigError."""
        return watched.tls


class WatchedPort:
    """One port with TLS, and what it goes by."""

    def __init__(self, port: Port, tls: TlsConfig, stamp: Stamp) -> None:
        self.port = port
        self.tls = tls
        self._stamp = stamp
        self._reported = ""

    async def look(self, tls: TlsConfig) -> None:
        """Go by that, if it or one of its files is another than before. Raises ConfigError, OSError."""
        stamp = await asyncio.to_thread(stamp_of, tls.files)
        if (tls, stamp) == (self.tls, self._stamp):
            return
        self.tls, self._stamp, self._reported = tls, stamp, ""
        self.port.use(await asyncio.to_thread(tls.context), tls.principal_of)
        logger.info("listener %s goes by its new certificates", self.port.listener)

    def report(self, why: str) -> None:
        """Once, until something changes."""
        if why != self._reported:
            self._reported = why
            logger.error("listener %s keeps its certificates: %s", self.port.listener, why)
