"""Certificates of listeners, which may be set while the Broker runs.

What is set (``configs.certificate_configs``) goes before what the Broker's start said. ``check`` says
beforehand whether it fits.
"""

from __future__ import annotations

from collections.abc import Mapping

from raylog.configs.certificate_configs import listener_of
from raylog.errors import ConfigError
from raylog.wire.certificates import CertificateWatch, WatchedPort
from raylog.wire.listeners import Listeners, NamedListener
from raylog.wire.ports import Port
from raylog.wire.tls import TlsConfig


class ListenerCertificates(CertificateWatch):
    """Those of all listeners with TLS of one Broker."""

    def __init__(self, listeners: Listeners) -> None:
        super().__init__()
        self._configs = dict(listeners.configs)
        self._set: Mapping[str, str] = {}  # while the Broker runs

    def port_of(self, listener: NamedListener) -> Port:
        """A port with TLS. Raises ConfigError if its files can't be used."""
        tls = self._tls(listener.name, {})
        return self.port(listener.name, listener.bind, tls, has_sasl=listener.protocol.has_sasl)

    def check(self, configs: Mapping[str, str]) -> None:
        """Whether the listeners can go by these, set while the Broker runs. Reads files. Raises
        ConfigError.
        """
        names = {each.port.listener.lower() for each in self.watched}
        for name in configs:
            if listener_of(name) not in names:
                raise ConfigError(
                    f"{name} is for a listener with TLS that is not there: {', '.join(sorted(names)) or 'there is none'}"
                )
        for each in self.watched:
            wanted = self._tls(each.port.listener, configs)
            wanted.context()
            wanted.check_change(self._tls(each.port.listener, self._set))

    def set(self, configs: Mapping[str, str]) -> None:
        """Go by these, which are set while the Broker runs, from the next look on."""
        self._set = configs

    async def follow(self, configs: Mapping[str, str]) -> None:
        """Go by these from now on."""
        self.set(configs)
        await self.look()

    def tls_of(self, watched: WatchedPort) -> TlsConfig:
        return self._tls(watched.port.listener, self._set)

    def _tls(self, listener: str, configs: Mapping[str, str]) -> TlsConfig:
        return TlsConfig.of({**self._configs, **configs}, listener)
