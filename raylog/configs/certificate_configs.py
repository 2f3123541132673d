"""The settings of a listener that can be changed while its Broker runs (KIP-226): its certificates.

As in Kafka they are set for one broker and for one listener of it, ``listener.name.<name>.ssl.…``
with the listener's name in lower case, and go before what the start said. Files are read by the
Broker alone, so it checks a change before the controller stores it.
"""

from __future__ import annotations

from collections.abc import Mapping

from raylog.configs.broker_config import BrokerConfig, ReadBy
from raylog.configs.listener_configs import LISTENER_CONFIGS, PREFIX
from raylog.configs.topic_configs import ConfigValueType
from raylog.errors import ConfigError

CERTIFICATE_CONFIGS = (
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.type",
)


def listener_of(name: str) -> str | None:
    """The name in lower case of the listener that the config is of; None: it is none of these."""
    listener, _, rest = name.removeprefix(PREFIX).partition(".")
    return listener if name.startswith(PREFIX) and listener and rest in CERTIFICATE_CONFIGS else None


def certificate_config(name: str) -> BrokerConfig | None:
    """The config of that name, if it is one of these."""
    listener = listener_of(name)
    if listener is None:
        return None
    told = LISTENER_CONFIGS[name.removeprefix(f"{PREFIX}{listener}.")]
    kind = ConfigValueType.PASSWORD if told.is_secret else ConfigValueType.STRING
    return BrokerConfig(name, kind, "", told.meaning, read_by=ReadBy.LISTENER)


def certificate_configs(configs: Mapping[str, str]) -> dict[str, str]:
    """Those of one broker's configs that are of its listeners' certificates."""
    return {name: value for name, value in configs.items() if listener_of(name) is not None}


def check_asked(name: str, broker_id: int | None, checked_by: int | None) -> None:
    """Whether the broker that the config is set for has checked it. Raises ConfigError."""
    if broker_id is None:
        raise ConfigError(f"{name} is one broker's: set it for that one, not for all brokers")
    if checked_by != broker_id:
        raise ConfigError(
            f"{name}: broker {broker_id} reads these files and has to check them: ask it, by a listener of its own"
        )
