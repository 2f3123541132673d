"""Decisions about the configs of topics and brokers: changes, replacements, and describing them.
Nothing here changes an image.

The changes of one resource are decided together: all of them, or none. What there is to set is
``topic_configs``' and ``broker_configs``' to say, which value holds ``effective_configs``'; a
broker's resource is named by its id, all brokers' by the empty name, as in Kafka. Subscriptions to
client metrics are ``resource_configs``'. Of groups there is nothing to set (``group_configs``): they
are described by an empty list, what would be set is refused by name, and what is taken away is not
there. Brokers' loggers are asked of the broker itself (``raylog.listener.broker_loggers``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from raylog.configs import broker_configs, group_configs, topic_configs
from raylog.configs.broker_config import BrokerConfig
from raylog.configs.certificate_configs import certificate_config, certificate_configs, check_asked
from raylog.configs.refused_broker_configs import reason_for
from raylog.configs.topic_configs import ConfigValueType, TopicConfig
from raylog.errors import ConfigError, RaylogError, code_of
from raylog.metadata.configuration import creation_defaults, effective_configs
from raylog.metadata.configuration.broker_values import BrokerValues, in_order
from raylog.metadata.configuration.config_requests import (
    AlterConfigs,
    ConfigChange,
    ConfigDescription,
    ConfigOperation,
    ConfigQuery,
    ConfigsAltered,
    ConfigsDescribed,
    DescribeConfigs,
    DescribedConfig,
    DescribedSynonym,
    ResourceChanges,
    ResourceOutcome,
    ResourceType,
    SetStaticConfigs,
)
from raylog.metadata.configuration.resource_configs import ConfiguredResource
from raylog.metadata.image import MetadataImage, Topic
from raylog.metadata.records import (
    BrokerConfigChanged,
    ConfiguredKind,
    Record,
    StaticConfigsChanged,
    TopicConfigChanged,
)
from raylog.refusals import BrokerNotRegistered, InvalidRequest, UnknownTopic
from raylog.types import BROKER_SLOT, node_id


def decide_alter_configs(
    image: MetadataImage, request: AlterConfigs, *, cores: int = 0
) -> tuple[list[Record], ConfigsAltered]:
    """``cores``: of the largest machine that a broker is known to run on; 0: of none."""
    records: list[Record] = []
    results = []
    named = [(resource.type, resource.name) for resource in request.resources]
    for resource in request.resources:
        try:
            if named.count((resource.type, resource.name)) > 1:
                raise InvalidRequest(f"{resource.name!r} is named twice in one request")
            records += _alter(image, resource, cores, request.checked_by)
        except RaylogError as error:
            results.append(ResourceOutcome(resource.type, resource.name, code_of(error), str(error)))
            continue
        results.append(ResourceOutcome(resource.type, resource.name))
    return [] if request.validate_only else records, ConfigsAltered(tuple(results))


def decide_static_configs(
    image: MetadataImage, request: SetStaticConfigs, *, cores: int = 0
) -> tuple[list[Record], ConfigsAltered]:
    """``cores`` as for ``decide_alter_configs``."""
    values = image.broker_values.copy()
    before = values.static.get(request.source, {})
    try:
        said = {name: broker_configs.validated(name, None, text) for name, text in request.configs}
        record = StaticConfigsChanged(request.source, in_order(said if request.replaces else {**before, **said}))
        values.apply(record)
        _check_with_dynamic(values, cores)
    except RaylogError as error:
        return [], ConfigsAltered((ResourceOutcome(ResourceType.BROKER, "", code_of(error), str(error)),))
    outcome = ConfigsAltered((ResourceOutcome(ResourceType.BROKER, ""),))
    return [record] if dict(record.configs) != before else [], outcome


def _check_with_dynamic(values: BrokerValues, cores: int) -> None:
    """Raises ConfigError that says where the values are from that exclude each other."""
    broker_configs.check_together(values.all_static(), cores=cores)
    try:
        broker_configs.check_together(values.in_force.get(None, {}), cores=cores)
    except ConfigError as error:
        dynamic = ", ".join(f"{name}={value}" for name, value in sorted(values.dynamic.get(None, {}).items()))
        raise ConfigError(
            f"{error}. Set for all brokers while the cluster ran, and before what it is started with: {dynamic} "
            "(`raylog configs alter --entity-type brokers --entity-default --delete-config NAME` takes one away)"
        ) from None


def _alter(image: MetadataImage, resource: ResourceChanges, cores: int, checked_by: int | None) -> list[Record]:
    of = _resource(image, resource.type, resource.name, checked_by)
    keys = [change.name for change in resource.changes]
    changes = list(resource.changes)
    if resource.replaces:
        changes += [ConfigChange(name, ConfigOperation.DELETE) for name in sorted(of.configs) if name not in keys]
    records: list[Record] = []
    after = dict(of.configs)
    for change in changes:
        if keys.count(change.name) > 1:
            raise InvalidRequest(f"{change.name} is changed twice in one request")
        if change.value is None and change.operation is not ConfigOperation.DELETE:
            raise InvalidRequest(f"{change.name}: {change.operation.name.lower()} needs a value")
        value = _new_value(of, change)
        if value != of.configs.get(change.name):
            records.append(of.record(change.name, value))
            if value is None:
                del after[change.name]
            else:
                after[change.name] = value
    of.check_together(after, cores)
    return records


def _new_value(of: _Resource, change: ConfigChange) -> str | None:
    if change.operation is ConfigOperation.DELETE and of.can_never_have(change.name):
        return None  # Kafka's tools take away what they might have set: that asks for nothing
    config = of.config_named(change.name)
    match change.operation:
        case ConfigOperation.DELETE:
            return None
        case ConfigOperation.SET:
            return of.validated(change.name, change.value)
        case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
            if config.type is not ConfigValueType.LIST:
                raise ConfigError(f"{change.name} is no list: {change.operation.name.lower()} cannot change it")
            parts = [each.strip() for each in (change.value or "").split(",") if each.strip()]
            before = [each for each in of.configs.get(change.name, config.default).split(",") if each]
            if change.operation is ConfigOperation.APPEND:
                after = before + [part for part in parts if part not in before]
            else:
                after = [part for part in before if part not in parts]
            return of.validated(change.name, ",".join(after))


def describe_configs(
    image: MetadataImage, request: DescribeConfigs, *, static: Mapping[str, str] | None = None
) -> ConfigsDescribed:
    """``static``: what the controller was started with, by the names of brokers' configs."""
    return ConfigsDescribed(tuple(_describe(image, query, static or {}) for query in request.resources))


def _describe(image: MetadataImage, query: ConfigQuery, static: Mapping[str, str]) -> ConfigDescription:
    entries: Iterable[DescribedConfig]
    try:
        if query.type is ResourceType.BROKER:
            entries = _broker_entries(image, _broker_id(image, query.name, unknown=InvalidRequest), static)
        elif query.type in CONFIGURED:
            _check_name(query.type, query.name)
            entries = ConfiguredResource(image, CONFIGURED[query.type], query.name).entries()
        elif query.type is ResourceType.GROUP:
            _check_name(query.type, query.name)
            entries = ()
        else:
            entries = _topic_entries(image, _topic(image, query.type, query.name))
    except RaylogError as error:
        return ConfigDescription(query.type, query.name, code_of(error), str(error))
    wanted = tuple(entry for entry in entries if not query.keys or entry.name in query.keys)
    return ConfigDescription(query.type, query.name, entries=wanted)


def _topic_entries(image: MetadataImage, topic: Topic) -> Iterable[DescribedConfig]:
    for name, config in topic_configs.TOPIC_CONFIGS.items():
        synonyms = effective_configs.topic_synonyms(image, topic.configs, name)
        yield _entry(config, synonyms, read_only=config.refused is not None)


def _broker_entries(
    image: MetadataImage, broker_id: int | None, static: Mapping[str, str]
) -> Iterable[DescribedConfig]:
    for name, config in broker_configs.BROKER_CONFIGS.items():
        default = creation_defaults.shown_default(image, name, config.default)
        synonyms = effective_configs.broker_synonyms(image, broker_id, name, default=default, static=static)
        yield _entry(config, synonyms, read_only=config.is_static)
    for name in sorted(certificate_configs(image.broker_values.dynamic.get(broker_id, {}))):
        of_certificates = certificate_config(name)
        assert of_certificates is not None, f"{name} is set, and no config of certificates"
        synonyms = effective_configs.broker_synonyms(image, broker_id, name, default="", static={})
        yield _entry(of_certificates, synonyms, read_only=False)
    facts = dict(static)
    if broker_id is not None:
        actor = image.actors.get(node_id(broker_id, BROKER_SLOT))
        if actor is not None and actor.advertised:
            facts["advertised.listeners"] = ",".join(f"{each.name}://{each.endpoint}" for each in actor.advertised)
            protocols = (f"{each.name}:{each.protocol.value}" for each in actor.advertised)
            facts["listener.security.protocol.map"] = ",".join(protocols)
        facts["broker.id"] = str(broker_id)
        facts["broker.rack"] = image.brokers[broker_id].rack or ""
        facts["log.dirs"] = ",".join(disk.path for disk in image.disks_of(broker_id))
    for name, config in broker_configs.FIXED_CONFIGS.items():
        if broker_id is not None or name not in broker_configs.ONE_BROKERS:
            synonyms = effective_configs.broker_synonyms(image, None, name, default=config.default, static=facts)
            yield _entry(config, synonyms, read_only=True)


def _entry(config: TopicConfig, synonyms: tuple[DescribedSynonym, ...], *, read_only: bool) -> DescribedConfig:
    meaning = f"{config.documentation} {config.scope}" if isinstance(config, BrokerConfig) else config.documentation
    return DescribedConfig(config.name, synonyms, config.type.value, meaning, read_only)


class _TopicResource:
    """A topic as something whose configs change."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self.configs: Mapping[str, str] = topic.configs
        self.config_named = topic_configs.config_named
        self.validated = topic_configs.validated

    def can_never_have(self, name: str) -> bool:
        return False

    def check_together(self, configs: Mapping[str, str], cores: int) -> None:
        """Topics have no configs that exclude each other."""

    def record(self, name: str, value: str | None) -> Record:
        return TopicConfigChanged(self._topic.topic_id, name, value)


class _BrokerResource:
    """A broker as something whose configs change; ``broker_id`` None: all brokers. ``checked_by``: the
    broker that has checked what changes of its certificates.
    """

    def __init__(self, image: MetadataImage, broker_id: int | None, checked_by: int | None) -> None:
        self._broker_id = broker_id
        self._checked_by = checked_by
        self._static = image.broker_values.all_static()
        self.configs: Mapping[str, str] = image.broker_values.dynamic.get(broker_id, {})

    def can_never_have(self, name: str) -> bool:
        is_known = name in broker_configs.BROKER_CONFIGS or certificate_config(name) is not None
        return not is_known and reason_for(name) is not None

    def config_named(self, name: str) -> TopicConfig:
        of_certificates = certificate_config(name)
        if of_certificates is None:
            return broker_configs.changeable_config(name, self._broker_id)
        check_asked(name, self._broker_id, self._checked_by)
        return of_certificates

    def validated(self, name: str, text: str | None) -> str:
        if certificate_config(name) is not None:
            return (text or "").strip()
        return broker_configs.validated(name, self._broker_id, text)

    def check_together(self, configs: Mapping[str, str], cores: int) -> None:
        """Raises ConfigError."""
        if self._broker_id is None:
            broker_configs.check_together({**self._static, **configs}, cores=cores)

    def record(self, name: str, value: str | None) -> Record:
        return BrokerConfigChanged(self._broker_id, name, value)


class _GroupResource:
    """A group has configs in Kafka, and none here."""

    def __init__(self) -> None:
        self.configs: Mapping[str, str] = {}

    def can_never_have(self, name: str) -> bool:
        return True

    def config_named(self, name: str) -> TopicConfig:
        raise ConfigError(group_configs.why_not(name))

    def validated(self, name: str, text: str | None) -> str:
        raise AssertionError(f"{name} is no config: there is nothing to validate")

    def check_together(self, configs: Mapping[str, str], cores: int) -> None:
        """There are none that could exclude each other."""

    def record(self, name: str, value: str | None) -> Record:
        raise AssertionError(f"{name} is no config: nothing changes")


CONFIGURED: Mapping[ResourceType | int, ConfiguredKind] = {ResourceType.CLIENT_METRICS: ConfiguredKind.CLIENT_METRICS}

_Resource = _TopicResource | _BrokerResource | ConfiguredResource | _GroupResource


def _resource(image: MetadataImage, type: ResourceType | int, name: str, checked_by: int | None) -> _Resource:
    if type is ResourceType.BROKER:
        return _BrokerResource(image, _broker_id(image, name, unknown=BrokerNotRegistered), checked_by)
    if type in CONFIGURED:
        _check_name(type, name)
        return ConfiguredResource(image, CONFIGURED[type], name)
    if type is ResourceType.GROUP:
        _check_name(type, name)
        return _GroupResource()
    return _TopicResource(_topic(image, type, name))


def _check_name(type: ResourceType | int, name: str) -> None:
    """Raises InvalidRequest for what names nothing."""
    if not name:
        raise InvalidRequest(f"resource type {type.value if isinstance(type, ResourceType) else type} needs a name")


def _broker_id(image: MetadataImage, name: str, *, unknown: type[RaylogError]) -> int | None:
    """None: all brokers."""
    if not name:
        return None
    if not name.isdecimal():
        raise InvalidRequest(f"broker {name!r}: brokers are named by their ids, all of them by an empty name")
    if int(name) not in image.brokers:
        raise unknown(f"broker {name} is not registered; an empty name means all brokers")
    return int(name)


def _topic(image: MetadataImage, type: ResourceType | int, name: str) -> Topic:
    if type is ResourceType.BROKER_LOGGER:
        raise InvalidRequest(f"the loggers of a broker are asked of that broker itself, {name!r}")
    if type is not ResourceType.TOPIC:
        raise InvalidRequest(f"resource type {type}: 2 (topic), 4 (broker) and 16 (client metrics) have configs here")
    topic = image.topic_named(name)
    if topic is None:
        raise UnknownTopic(f"there is no topic {name!r}")
    return topic
