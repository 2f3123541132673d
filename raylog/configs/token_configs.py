"""The configs of delegation tokens, under Kafka's names. A start takes them; nobody can change them
while brokers run, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping

from raylog.configs.broker_config import BrokerConfig, ReadBy
from raylog.configs.topic_configs import LONG_MAX, ConfigValueType

SECRET_KEY = "delegation.token.secret.key"
LIFETIME = "delegation.token.max.lifetime.ms"
EXPIRY = "delegation.token.expiry.time.ms"
CHECK_INTERVAL = "delegation.token.expiry.check.interval.ms"

TOKEN_CONFIGS = (
    BrokerConfig(SECRET_KEY, ConfigValueType.PASSWORD, "",
                 "the secret that delegation tokens are made with; without it there are none",
                 read_by=ReadBy.CONTROLLER, is_cluster_wide=True, is_static=True),
    BrokerConfig(LIFETIME, ConfigValueType.LONG, "604800000",
                 "how long a delegation token lasts at most, with all renewals", 1, 1 << 42,
                 read_by=ReadBy.CONTROLLER, is_cluster_wide=True, is_static=True),
    BrokerConfig(EXPIRY, ConfigValueType.LONG, "86400000",
                 "how long a delegation token lasts before it must be renewed", 1, 1 << 42,
                 read_by=ReadBy.CONTROLLER, is_cluster_wide=True, is_static=True),
    BrokerConfig(CHECK_INTERVAL, ConfigValueType.LONG, "3600000",
                 "how often delegation tokens that have expired are removed", 1, LONG_MAX,
                 read_by=ReadBy.CONTROLLER, is_cluster_wide=True, is_static=True),
)  # fmt: skip


def secret_key(configs: Mapping[int | None, Mapping[str, str]]) -> bytes:
    """The key of delegation tokens; empty if there is none. ``configs`` are brokers' values in
    force.
    """
    return configs.get(None, {}).get(SECRET_KEY, "").encode()
