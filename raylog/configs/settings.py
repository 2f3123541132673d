"""Settings of a part of a server, as a frozen dataclass whose fields are configs of brokers.

``setting`` gives a field its default and its name from outside, both from the table of
``broker_configs``. ``with_configs`` makes the settings that hold where some configs were set;
``as_configs`` goes the other way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, replace
from typing import Any, TypeVar

from raylog.configs.broker_configs import BROKER_CONFIGS

_CONFIG = "config"
S = TypeVar("S")


def setting(name: str) -> Any:
    """A field that is the broker config of that name."""
    config = BROKER_CONFIGS[name]
    return field(default=config.parse(config.default), metadata={_CONFIG: name})


def config_of(settings: Any) -> dict[str, str]:
    """The name from outside of each field that has one."""
    return {each.name: each.metadata[_CONFIG] for each in fields(settings) if _CONFIG in each.metadata}


def with_configs(settings: S, configs: Mapping[str, str]) -> S:
    """These settings, but for what ``configs`` sets; values have been validated, perhaps by an older
    raylog.
    """
    changes = {
        name: BROKER_CONFIGS[config].stored(configs[config])
        for name, config in config_of(settings).items()
        if config in configs
    }
    return replace(settings, **changes) if changes else settings  # type: ignore[type-var]


def as_configs(settings: Any) -> dict[str, str]:
    """The settings by their names from outside, as Kafka writes the values."""
    texts = {config: str(getattr(settings, name)) for name, config in config_of(settings).items()}
    return {name: text.lower() if text in ("True", "False") else text for name, text in texts.items()}
