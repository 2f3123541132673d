"""Which value of a config is in force, and which others stand behind it [A20].

A topic's config: the topic's own, else what is set for all brokers under the broker's name for it,
else what the cluster was started with, else the default. A replica's log asks its own broker before
it asks for all. A broker's config: its own, for all, what the cluster was started with, the
default. Pure reading of an image.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from raylog.configs import topic_configs
from raylog.configs.broker_config import ReadBy
from raylog.configs.broker_configs import BROKER_CONFIGS, QUOTA_WINDOW, QUOTA_WINDOWS, number
from raylog.configs.topic_configs import BROKER_NAMES, TOPIC_CONFIGS, Value
from raylog.metadata.configuration.config_requests import DescribedSynonym
from raylog.metadata.image import MetadataImage, Topic
from raylog.offsets_topic import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from raylog.security import told_quotas
from raylog.security.quota_rates import WINDOW_MS, WINDOWS
from raylog.security.quotas import BYTE_RATES

_COORDINATED = {OFFSETS_TOPIC: ReadBy.GROUPS, TRANSACTIONS_TOPIC: ReadBy.TRANSACTIONS}
_GO_WITH_LOGS = (*_COORDINATED.values(), ReadBy.CLEANER, ReadBy.LOGS)
TOPIC_SOURCE, BROKER_SOURCE, ALL_BROKERS_SOURCE, STATIC_SOURCE, DEFAULT_SOURCE = 1, 2, 3, 4, 5  # Kafka's ConfigSource


def shapes_logs(name: str) -> bool:
    """Whether that config of brokers stands in for one of topics, or goes with the logs to those
    who open, compact or scrub them or coordinate something on them.
    """
    config = BROKER_CONFIGS.get(name)
    if config is None:
        return False
    return config.of_topic is not None or config.read_by in _GO_WITH_LOGS


def has_own(image: MetadataImage, broker_id: int) -> bool:
    """Whether that broker's logs may differ from those of the others."""
    return any(map(shapes_logs, image.broker_configs.get(broker_id, ())))


def of_log(image: MetadataImage, topic: Topic, broker_id: int | None) -> dict[str, str]:
    """Every topic config with the value that holds for a log on that broker; None: on any that has
    none of its own.

    With every log come those configs of logs that were set, with a compacted one those of the
    cleaner, with the log of groups those of groups, with that of transactions those of transactions.
    """
    values = dict(topic.configs)
    cleaner: dict[str, str] = {}
    of_logs: dict[str, str] = {}
    for named in (broker_id, None):
        for broker_name, value in image.broker_configs.get(named, {}).items():
            config = BROKER_CONFIGS.get(broker_name)
            if config is not None and config.of_topic is not None:
                values.setdefault(config.of_topic, value)
            elif config is not None and config.read_by is ReadBy.CLEANER:
                cleaner.setdefault(broker_name, value)
            elif config is not None and config.read_by is ReadBy.LOGS:
                of_logs.setdefault(broker_name, value)
    effective = topic_configs.effective(values) | of_logs
    if "compact" in effective["cleanup.policy"]:
        effective |= cleaner
    read_by = _COORDINATED.get(topic.name)
    if read_by is not None:
        for name, value in image.broker_configs.get(None, {}).items():
            if name in BROKER_CONFIGS and BROKER_CONFIGS[name].read_by is read_by:
                effective[name] = value
    return effective


def of_host(image: MetadataImage, broker_id: int) -> tuple[tuple[str, str], ...]:
    """The configs of processes that hold replicas which are set for a broker, its own before those
    for all, and the quotas that these processes count; by name.
    """
    values: dict[str, str] = {}
    for named in (None, broker_id):
        for name, value in image.broker_configs.get(named, {}).items():
            config = BROKER_CONFIGS.get(name)
            if config is not None and config.read_by is ReadBy.HOSTS:
                values[name] = value
    quotas = told_client_quotas(image, broker_id)
    if quotas is not None:
        values[told_quotas.SETTING] = quotas
    return tuple(sorted(values.items()))


def told_client_quotas(image: MetadataImage, broker_id: int) -> str | None:
    """Those that processes count themselves, as a text; None if there are none."""
    if not image.quotas.has(*BYTE_RATES):
        return None
    return told_quotas.as_text(image.quotas, *quota_windows(image, broker_id))


def quota_windows(image: MetadataImage, broker_id: int) -> tuple[int, int]:
    """Over how many windows that broker measures rates, and of how many milliseconds."""
    windows = number(image.broker_configs, broker_id, QUOTA_WINDOWS, default=WINDOWS)
    seconds = number(image.broker_configs, broker_id, QUOTA_WINDOW, default=WINDOW_MS // 1_000)
    return windows, seconds * 1_000


def of_topic(image: MetadataImage, topic: Topic, name: str) -> str:
    """The value that the controller goes by."""
    value = topic.configs.get(name)
    if value is None and (for_all := image.broker_configs.get(None)) is not None:
        value = for_all.get(BROKER_NAMES.get(name, ""))
    return TOPIC_CONFIGS[name].default if value is None else value


@lru_cache(maxsize=1_024)
def _parsed(name: str, text: str) -> Value:
    """Remembered: where a host dies, the same few values are asked for with each of hundreds of
    partitions.
    """
    return TOPIC_CONFIGS[name].parse(text)


def integer(image: MetadataImage, topic: Topic, name: str) -> int:
    value = _parsed(name, of_topic(image, topic, name))
    assert isinstance(value, int), f"{name} is no number"
    return value


def boolean(image: MetadataImage, topic: Topic, name: str) -> bool:
    value = _parsed(name, of_topic(image, topic, name))
    assert isinstance(value, bool), f"{name} is no boolean"
    return value


def topic_synonyms(image: MetadataImage, configs: Mapping[str, str], name: str) -> tuple[DescribedSynonym, ...]:
    """All values that a topic with these configs of its own has for that config, the one in force
    first.
    """
    found = []
    own = configs.get(name)
    if own is not None:
        found.append(DescribedSynonym(name, own, TOPIC_SOURCE))
    broker_name = BROKER_NAMES.get(name)
    if broker_name is not None:
        for_all = image.broker_values.dynamic.get(None, {}).get(broker_name)
        if for_all is not None:
            found.append(DescribedSynonym(broker_name, for_all, ALL_BROKERS_SOURCE))
        static = image.broker_values.all_static().get(broker_name)
        if static is not None:
            found.append(DescribedSynonym(broker_name, static, STATIC_SOURCE))
    found.append(DescribedSynonym(broker_name or name, TOPIC_CONFIGS[name].default, DEFAULT_SOURCE))
    return tuple(found)


def broker_synonyms(
    image: MetadataImage, broker_id: int | None, name: str, *, default: str, static: Mapping[str, str]
) -> tuple[DescribedSynonym, ...]:
    """All values that a broker (None: all brokers) has for that config, the one in force first.

    ``static``: what stands behind the image's static values, and is shown where it is no default.
    """
    found = []
    values = image.broker_values
    for named, source in ((broker_id, BROKER_SOURCE), (None, ALL_BROKERS_SOURCE)):
        value = values.dynamic.get(named, {}).get(name)
        if value is not None and (named is not None or source == ALL_BROKERS_SOURCE):
            found.append(DescribedSynonym(name, value, source))
    started_with = values.all_static().get(name)
    if started_with is not None:
        found.append(DescribedSynonym(name, started_with, STATIC_SOURCE))
    elif static.get(name, default) != default:
        found.append(DescribedSynonym(name, static[name], STATIC_SOURCE))
    found.append(DescribedSynonym(name, default, DEFAULT_SOURCE))
    return tuple(found)
