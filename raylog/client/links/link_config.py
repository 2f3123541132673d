"""The options that a link to a cluster goes by. Clients' configs have them; a process that must do
without pydantic, as servers do, gives a value of its own.

Times are in milliseconds, sizes in bytes. The names are Kafka's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class LinkConfig(Protocol):
    @property
    def client_id(self) -> str: ...
    @property
    def request_timeout_ms(self) -> float: ...
    @property
    def retry_backoff_ms(self) -> float: ...
    @property
    def retry_backoff_max_ms(self) -> float: ...
    @property
    def reconnect_backoff_ms(self) -> float: ...
    @property
    def reconnect_backoff_max_ms(self) -> float: ...
    @property
    def connections_max_idle_ms(self) -> float: ...
    @property
    def metadata_max_age_ms(self) -> float: ...
    @property
    def socket_connection_setup_timeout_ms(self) -> float: ...
    @property
    def socket_connection_setup_timeout_max_ms(self) -> float: ...
    @property
    def send_buffer_bytes(self) -> int: ...
    @property
    def receive_buffer_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ServerLinkConfig:
    """Of a server's link to other servers."""

    client_id: str
    request_timeout_ms: float = 10_000
    retry_backoff_ms: float = 20
    retry_backoff_max_ms: float = 1_000
    reconnect_backoff_ms: float = 20
    reconnect_backoff_max_ms: float = 1_000
    connections_max_idle_ms: float = 540_000
    metadata_max_age_ms: float = 300_000
    socket_connection_setup_timeout_ms: float = 1_000
    socket_connection_setup_timeout_max_ms: float = 10_000
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
