"""What a server writes to the log about requests, by the configs of its broker: the slow ones
(``raylog.wire.slow_requests``), and which request a line belongs to (``raylog.kafka.traces``).
"""

from __future__ import annotations

import random
from collections.abc import Callable

from raylog.configs.broker_configs import BrokerConfigs, number
from raylog.configs.server_configs import SLOW_REQUESTS, TRACED_REQUESTS
from raylog.kafka.traces import TraceIds
from raylog.wire.server import Server
from raylog.wire.slow_requests import OFF, slow_requests

_chance = random.SystemRandom()


class RequestLogs:
    """Those of one process. ``draw`` returns so many random bits."""

    def __init__(self, draw: Callable[[int], int] = _chance.getrandbits) -> None:
        self._traces = TraceIds(draw)

    def follow(self, server: Server, configs: BrokerConfigs, broker_id: int) -> None:
        """Have the server go by these configs."""
        self.set(
            server,
            slow_ms=number(configs, broker_id, SLOW_REQUESTS, default=OFF),
            are_traced=bool(number(configs, broker_id, TRACED_REQUESTS, default=0)),
        )

    def set(self, server: Server, *, slow_ms: int, are_traced: bool) -> None:
        server.slow = slow_requests(slow_ms)
        self._traces.follow(server, are_traced)
