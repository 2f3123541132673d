"""What a server writes to the log about requests, by the configs of its broker."""

from __future__ import annotations

from raylog.configs.broker_configs import BrokerConfigs, number
from raylog.configs.server_configs import SLOW_REQUESTS
from raylog.wire.slow_requests import OFF, SlowRequests, slow_requests


def slow_requests_of(configs: BrokerConfigs, broker_id: int) -> SlowRequests | None:
    """None if slow requests are not logged."""
    return slow_requests(number(configs, broker_id, SLOW_REQUESTS, default=OFF))
