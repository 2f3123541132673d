"""Decisions about the configs of topics and brokers: incremental changes, and describing them. Nothing here changes an image.

The changes of one resource are decided together: all of them, or none. What there is to set is ``topic_configs``' and
``broker_configs``' to say; a broker's resource is named by its id, all brokers' by the empty name, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping

from kio.schema.errors import ErrorCode

from raylog.errors import ConfigError, RaylogError, code_of, kafka_error
from raylog.metadata import broker_configs, topic_configs
from raylog.metadata.image import MetadataImage, Topic
from raylog.metadata.records import BrokerConfigChanged, Record, TopicConfigChanged
from raylog.metadata.requests import (
    ConfigChange,
    ConfigDescription,
    ConfigEntry,
    ConfigOperation,
    ConfigQuery,
    ConfigsAltered,
    ConfigsDescribed,
    DescribeConfigs,
    IncrementalAlterConfigs,
    ResourceChanges,
    ResourceOutcome,
    ResourceType,
)
from raylog.metadata.topic_configs import ConfigType, TopicConfig

InvalidRequest = kafka_error(ErrorCode.invalid_request)
UnknownTopic = kafka_error(ErrorCode.unknown_topic_or_partition)

TOPIC_SOURCE, BROKER_SOURCE, ALL_BROKERS_SOURCE, DEFAULT_SOURCE = 1, 2, 3, 5  # Kafka's ConfigSource


def decide_alter_configs(image: MetadataImage, request: IncrementalAlterConfigs) -> tuple[list[Record], ConfigsAltered]:
    records: list[Record] = []
    results = []
    named = [(resource.type, resource.name) for resource in request.resources]
    for resource in request.resources:
        try:
            if named.count((resource.type, resource.name)) > 1:
                raise InvalidRequest(f"{resource.name!r} is named twice in one request")
            records += _alter(image, resource)
        except RaylogError as error:
            results.append(ResourceOutcome(resource.type, resource.name, code_of(error), str(error)))
            continue
        results.append(ResourceOutcome(resource.type, resource.name))
    return [] if request.validate_only else records, ConfigsAltered(tuple(results))


def _alter(image: MetadataImage, resource: ResourceChanges) -> list[Record]:
    of = _resource(image, resource.type, resource.name)
    keys = [change.name for change in resource.changes]
    records: list[Record] = []
    for change in resource.changes:
        if keys.count(change.name) > 1:
            raise InvalidRequest(f"{change.name} is changed twice in one request")
        value = _new_value(of, change)
        if value != of.configs.get(change.name):
            records.append(of.record(change.name, value))
    return records


def _new_value(of: _Resource, change: ConfigChange) -> str | None:
    config = of.config_named(change.name)
    match change.operation:
        case ConfigOperation.DELETE:
            return None
        case ConfigOperation.SET:
            return of.validated(change.name, change.value)
        case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
            if config.type is not ConfigType.LIST:
                raise ConfigError(f"{change.name} is no list: {change.operation.name.lower()} cannot change it")
            parts = [each.strip() for each in (change.value or "").split(",") if each.strip()]
            before = [each for each in of.configs.get(change.name, config.default).split(",") if each]
            if change.operation is ConfigOperation.APPEND:
                after = before + [part for part in parts if part not in before]
            else:
                after = [part for part in before if part not in parts]
            return of.validated(change.name, ",".join(after))


def describe_configs(image: MetadataImage, request: DescribeConfigs) -> ConfigsDescribed:
    return ConfigsDescribed(tuple(_describe(image, query) for query in request.resources))


def _describe(image: MetadataImage, query: ConfigQuery) -> ConfigDescription:
    try:
        of = _resource(image, query.type, query.name)
    except RaylogError as error:
        return ConfigDescription(query.type, query.name, code_of(error), str(error))
    entries = []
    for name, config in of.known.items():
        if query.keys is None or name in query.keys:
            value, source = of.value(name)
            meaning = config.meaning if config.refused is None else f"{config.meaning} (fixed: {config.refused})"
            entries.append(ConfigEntry(name, value, config.default, source, config.type.value, meaning))
    return ConfigDescription(query.type, query.name, entries=tuple(entries))


class _TopicResource:
    """A topic as something that has configs."""

    known: Mapping[str, TopicConfig] = topic_configs.TOPIC_CONFIGS

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self.configs: Mapping[str, str] = topic.configs
        self.config_named = topic_configs.config_named
        self.validated = topic_configs.validated

    def value(self, name: str) -> tuple[str, int]:
        """The value in force, and Kafka's number of where it comes from."""
        value = self.configs.get(name)
        return (self.known[name].default, DEFAULT_SOURCE) if value is None else (value, TOPIC_SOURCE)

    def record(self, name: str, value: str | None) -> Record:
        return TopicConfigChanged(self._topic.topic_id, name, value)


class _BrokerResource:
    """A broker as something that has configs; ``broker_id`` None: all brokers."""

    known: Mapping[str, TopicConfig] = broker_configs.BROKER_CONFIGS

    def __init__(self, image: MetadataImage, broker_id: int | None) -> None:
        self._broker_id = broker_id
        self._all = image.broker_configs
        self.configs: Mapping[str, str] = image.broker_configs.get(broker_id, {})

    def config_named(self, name: str) -> TopicConfig:
        return broker_configs.config_named(name, self._broker_id)

    def validated(self, name: str, text: str | None) -> str:
        return broker_configs.validated(name, self._broker_id, text)

    def value(self, name: str) -> tuple[str, int]:
        found = broker_configs.found(self._all, self._broker_id, name)
        if found is None:
            return self.known[name].default, DEFAULT_SOURCE
        value, named = found
        return value, ALL_BROKERS_SOURCE if named is None else BROKER_SOURCE

    def record(self, name: str, value: str | None) -> Record:
        return BrokerConfigChanged(self._broker_id, name, value)


_Resource = _TopicResource | _BrokerResource


def _resource(image: MetadataImage, type: ResourceType, name: str) -> _Resource:
    if type is ResourceType.BROKER:
        if not name:
            return _BrokerResource(image, None)
        if not name.isdecimal() or int(name) not in image.brokers:
            raise InvalidRequest(f"broker {name!r} is not registered; an empty name means all brokers")
        return _BrokerResource(image, int(name))
    topic = image.topic_named(name)
    if topic is None:
        raise UnknownTopic(f"there is no topic {name!r}")
    return _TopicResource(topic)
