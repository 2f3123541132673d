"""Decisions about topic configs: incremental changes, and describing them. Nothing here changes an image.

The changes of one resource are decided together: all of them, or none. Broker configs are refused by name: a broker has its
configuration from its start and nothing of it changes while it runs.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from raylog.errors import ConfigError, RaylogError, code_of, kafka_error
from raylog.metadata import topic_configs
from raylog.metadata.image import MetadataImage, Topic
from raylog.metadata.records import Record, TopicConfigChanged
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
from raylog.metadata.topic_configs import ConfigType

InvalidRequest = kafka_error(ErrorCode.invalid_request)
UnknownTopic = kafka_error(ErrorCode.unknown_topic_or_partition)


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
    topic = _topic(image, resource.type, resource.name)
    keys = [change.name for change in resource.changes]
    records: list[Record] = []
    for change in resource.changes:
        if keys.count(change.name) > 1:
            raise InvalidRequest(f"{change.name} is changed twice in one request")
        value = _new_value(topic, change)
        if value != topic.configs.get(change.name):
            records.append(TopicConfigChanged(topic.topic_id, change.name, value))
    return records


def _new_value(topic: Topic, change: ConfigChange) -> str | None:
    config = topic_configs.config_named(change.name)
    match change.operation:
        case ConfigOperation.DELETE:
            return None
        case ConfigOperation.SET:
            return topic_configs.validated(change.name, change.value)
        case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
            if config.type is not ConfigType.LIST:
                raise ConfigError(f"{change.name} is no list: {change.operation.name.lower()} cannot change it")
            parts = [each.strip() for each in (change.value or "").split(",") if each.strip()]
            before = [each for each in topic.configs.get(change.name, config.default).split(",") if each]
            if change.operation is ConfigOperation.APPEND:
                after = before + [part for part in parts if part not in before]
            else:
                after = [part for part in before if part not in parts]
            return topic_configs.validated(change.name, ",".join(after))


def describe_configs(image: MetadataImage, request: DescribeConfigs) -> ConfigsDescribed:
    return ConfigsDescribed(tuple(_describe(image, query) for query in request.resources))


def _describe(image: MetadataImage, query: ConfigQuery) -> ConfigDescription:
    try:
        topic = _topic(image, query.type, query.name)
    except RaylogError as error:
        return ConfigDescription(query.type, query.name, code_of(error), str(error))
    entries = tuple(
        ConfigEntry(
            name=name,
            value=topic.configs.get(name, config.default),
            default=config.default,
            is_default=name not in topic.configs,
            type=config.type.value,
            meaning=config.meaning if config.refused is None else f"{config.meaning} (fixed: {config.refused})",
        )
        for name, config in topic_configs.TOPIC_CONFIGS.items()
        if query.keys is None or name in query.keys
    )
    return ConfigDescription(query.type, query.name, entries=entries)


def _topic(image: MetadataImage, type: ResourceType, name: str) -> Topic:
    if type is not ResourceType.TOPIC:
        raise InvalidRequest(
            f"the configs of a {type.name.lower()} cannot be read or changed while it runs; topics' can"
        )
    topic = image.topic_named(name)
    if topic is None:
        raise UnknownTopic(f"there is no topic {name!r}")
    return topic
