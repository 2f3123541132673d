"""Resources with configs that are neither topics nor brokers: subscriptions to client metrics.

A resource is there while something is set of it; describing one that is not there shows the
defaults, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from raylog.configs import client_metrics_configs
from raylog.configs.topic_configs import TopicConfig
from raylog.metadata.configuration.config_requests import DescribedConfig, DescribedSynonym
from raylog.metadata.configuration.effective_configs import DEFAULT_SOURCE
from raylog.metadata.image import MetadataImage
from raylog.metadata.records import ConfiguredKind, Record, ResourceConfigChanged

SOURCES: Mapping[ConfiguredKind, int] = {ConfiguredKind.CLIENT_METRICS: 7}  # Kafka's ConfigSource


class ConfiguredResource:
    """One of them, as something whose configs change."""

    def __init__(self, image: MetadataImage, kind: ConfiguredKind, name: str) -> None:
        self._kind = kind
        self._name = name
        self.configs: Mapping[str, str] = image.resource_configs.get((kind, name), {})

    def can_never_have(self, name: str) -> bool:
        return False

    def config_named(self, name: str) -> TopicConfig:
        """Raises InvalidRequest."""
        return client_metrics_configs.config_named(name)

    def validated(self, name: str, text: str | None) -> str:
        """Raises ConfigError and InvalidRequest."""
        return client_metrics_configs.validated(name, text)

    def check_together(self, configs: Mapping[str, str], cores: int) -> None:
        """None of them excludes another."""

    def record(self, name: str, value: str | None) -> Record:
        return ResourceConfigChanged(self._kind, self._name, name, value)

    def entries(self) -> Iterable[DescribedConfig]:
        """All configs, with the values that hold."""
        for name, config in client_metrics_configs.CLIENT_METRICS_CONFIGS.items():
            own = self.configs.get(name)
            synonyms = [] if own is None else [DescribedSynonym(name, own, SOURCES[self._kind])]
            synonyms.append(DescribedSynonym(name, config.default, DEFAULT_SOURCE))
            yield DescribedConfig(name, tuple(synonyms), config.type.value, config.documentation)
