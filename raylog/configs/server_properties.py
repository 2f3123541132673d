"""What a start is told by Kafka's names: files such as ``server.properties``, and single values.

A single value goes before one of a file. Two files that have the same name are refused, whatever
they say. Then each name goes one of five ways:

- a config that can be set for all brokers is a static one of theirs; of three units of a time the
  smallest counts, as in Kafka (``log.retention.ms`` before ``.minutes`` before ``.hours``);
- ``listeners`` and ``advertised.listeners``, less the controllers' ones, and the settings of
  listeners (``listener_configs``) go to the broker's listeners;
- ``security.inter.broker.protocol`` and the settings of TLS go to the links between the cluster's own
  processes (``link_configs``);
- what raylog does in another way is told in a notice (``WITHOUT_EFFECT``), as is a value that says
  what raylog does anyway (``AS_IT_IS``);
- anything else raises ConfigError with the reason, since to ignore it would break a promise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raylog.configs.broker_configs import BROKER_CONFIGS, for_all_brokers
from raylog.configs.link_configs import IDENTIFICATION, take_link_configs
from raylog.configs.listener_configs import check_plain_users, is_listener_config, names_plain_users
from raylog.configs.properties import dotted, read_properties, resolved
from raylog.configs.refused_broker_configs import reason_for
from raylog.configs.topic_configs import INT_MAX, ConfigValueType, TopicConfig
from raylog.errors import ConfigError

LISTENERS = "listeners"
ADVERTISED = "advertised.listeners"
RACK = "broker.rack"
CONTROLLERS_LISTENERS = "controller.listener.names"

_MINUTE_MS = 60_000
_HOUR_MS = 3_600_000


def _unit(name: str, milliseconds: int, lowest: int) -> tuple[TopicConfig, int]:
    return TopicConfig(name, ConfigValueType.INT, "", "", lowest, INT_MAX), milliseconds


UNITS: Mapping[str, Sequence[tuple[TopicConfig, int]]] = {
    "log.retention.ms": (_unit("log.retention.minutes", _MINUTE_MS, -1), _unit("log.retention.hours", _HOUR_MS, -1)),
    "log.roll.ms": (_unit("log.roll.hours", _HOUR_MS, 1),),
    "log.roll.jitter.ms": (_unit("log.roll.jitter.hours", _HOUR_MS, 0),),
}
"""Configs that Kafka has in larger units too, those that count more first, in milliseconds."""

_NUMBERED = "a broker has the number that its first disk was formatted with"
_FOLDERS = "the disks are in the folders that the start names"
_PROCESSES = "each broker runs in processes of its own kind, and so do the controllers"
_INSIDE = "servers talk to each other over connections of their own"
_CONTROLLERS_AT = "the disks say where the controllers are"
_BUFFERS = "the operating system sizes the buffers of sockets"
_NO_SHARE_GROUPS = "share groups are not there yet, and have no state to keep"
_AS_A_TOPIC = "__consumer_offsets is created like a topic that leaves its replicas to the cluster"
_TRANSACTIONS_AS_A_TOPIC = "__transaction_state is created like a topic that leaves its replicas to the cluster"

WITHOUT_EFFECT: Mapping[str, str] = {
    "background.threads": "",
    "broker.id": _NUMBERED,
    "broker.id.generation.enable": _NUMBERED,
    "controller.listener.names": _INSIDE,
    "controller.quorum.bootstrap.servers": _CONTROLLERS_AT,
    "controller.quorum.voters": _CONTROLLERS_AT,
    "inter.broker.listener.name": _INSIDE,
    "inter.broker.protocol.version": "",
    "log.cleaner.threads": "",
    "log.dir": _FOLDERS,
    "log.dirs": _FOLDERS,
    "metadata.log.dir": _FOLDERS,
    "node.id": _NUMBERED,
    "num.io.threads": "",
    "num.network.threads": "",
    "num.recovery.threads.per.data.dir": "",
    "num.replica.alter.log.dirs.threads": "",
    "num.replica.fetchers": "",
    "offsets.topic.replication.factor": _AS_A_TOPIC,
    "process.roles": _PROCESSES,
    "share.coordinator.state.topic.*": _NO_SHARE_GROUPS,
    "socket.receive.buffer.bytes": _BUFFERS,
    "socket.send.buffer.bytes": _BUFFERS,
    IDENTIFICATION: "links inside have no TLS without security.inter.broker.protocol=SSL",
    "transaction.state.log.min.isr": _TRANSACTIONS_AS_A_TOPIC,
    "transaction.state.log.replication.factor": _TRANSACTIONS_AS_A_TOPIC,
    "zookeeper.*": "",
}
"""What may be ignored, with the reason; "": the one for which it cannot be set."""

AS_IT_IS: Mapping[str, str] = {
    "controlled.shutdown.enable": "true",
    "log.cleaner.enable": "true",
    "offsets.topic.num.partitions": "50",
    "remote.log.storage.system.enable": "false",
    "transaction.state.log.num.partitions": "50",
}
"""Values that raylog holds to without being told; another value of these is refused."""


@dataclass(frozen=True, slots=True)
class ServerProperties:
    """``configs`` are all brokers' static ones. ``listeners`` and ``advertised_listeners`` have one
    text each, as in Kafka, or none; ``listener_configs`` are the settings of these listeners, some
    of them secret; ``link_configs`` are those of the links inside, empty for plain ones, None where
    nobody said. ``notices`` say, a line each, what has no effect.
    ``is_given`` is False where nobody said anything, so that what an earlier start said holds.
    """

    configs: Mapping[str, str]
    listeners: tuple[str, ...] = ()
    advertised_listeners: tuple[str, ...] = ()
    listener_configs: Mapping[str, str] = field(default_factory=dict, repr=False)
    notices: tuple[str, ...] = ()
    link_configs: Mapping[str, str] | None = field(default=None, repr=False)
    is_given: bool = field(default=False, compare=False)

    @property
    def has_listeners(self) -> bool:
        """Whether anything of listeners was said."""
        return bool(self.listeners or self.advertised_listeners or self.listener_configs)

    @property
    def static_configs(self) -> Mapping[str, str] | None:
        """None: those of an earlier start."""
        return self.configs if self.is_given else None


def server_properties(configs: Mapping[str, Any] | str | Path | None) -> ServerProperties:
    """What ``configs`` of a start says: values by name, or the path of a file. Raises ConfigError.

    The names of values may have ``_`` for ``.``.
    """
    if isinstance(configs, str | Path):
        return merged([Path(configs)], {})
    if configs is None:
        return ServerProperties({})
    told = merged((), {dotted(name): _text(value) for name, value in configs.items()})
    return replace(told, is_given=True)


def merged(files: Sequence[Path], values: Mapping[str, str]) -> ServerProperties:
    """What files and single values say together. Raises ConfigError."""
    said: dict[str, str] = {}
    places: dict[str, Path] = {}
    for file in files:
        for name, value in read_properties(file).items():
            if name in places:
                raise ConfigError(f"{name} is in {places[name]} and in {file}: keep one of them")
            places[name], said[name] = file, value
    try:
        every = {**said, **values}
        told = _sorted(
            {name: resolved(name, value, keeps_files=names_plain_users(name)) for name, value in every.items()}
        )
        return replace(told, is_given=bool(files or values))
    except ConfigError as error:
        named = re.match(r"'?([\w.-]+)", str(error))
        if named is None or named.group(1) in values or named.group(1) not in places:
            raise
        raise ConfigError(f"{places[named.group(1)]}: {error}") from None


def _sorted(said: Mapping[str, str]) -> ServerProperties:
    """Send each name its way. Raises ConfigError, which begins with the name."""
    left = _in_milliseconds(said)
    listeners, advertised = (_for_clients(name, said) for name in (LISTENERS, ADVERTISED))
    names = {each.rpartition("://")[0].strip().upper() for each in ",".join(listeners).split(",")}
    of_links = take_link_configs(left, has_such_listener="INTERNAL" in names)
    notices = []
    of_listeners: dict[str, str] = {}
    for name in sorted(left):
        if name in (LISTENERS, ADVERTISED):
            del left[name]
        elif is_listener_config(name):
            of_listeners[name] = left.pop(name)
        elif (of_all := _of_all_listeners(name)) is not None:
            raise ConfigError(
                f"{name} is refused: {of_all} holds for all listeners alike, so set it without listener.name"
            )
        elif name == RACK:
            raise ConfigError(f"{name} is refused: racks are said by --rack or racks=[…], one for each broker")
        elif name in AS_IT_IS:
            if left[name].strip().casefold() != AS_IT_IS[name].casefold():
                raise ConfigError(
                    f"{name}={left[name]} is refused, it is {AS_IT_IS[name] or 'empty'} here: {reason_for(name)}"
                )
            del left[name]
        elif (reason := without_effect(name)) is not None:
            del left[name]
            notices.append(f"{name} has no effect: {reason}")
    check_plain_users(of_listeners)
    return ServerProperties(for_all_brokers(left), listeners, advertised, of_listeners, tuple(notices), of_links)


def _of_all_listeners(name: str) -> str | None:
    """The config that a setting of one listener would narrow, where raylog has it for all alone."""
    found = re.fullmatch(r"listener\.name\.[^.]+\.(.+)", name)
    return found[1] if found is not None and found[1] in BROKER_CONFIGS else None


def without_effect(name: str) -> str | None:
    """Why a start may ignore that config; None if it may not."""
    for known, reason in WITHOUT_EFFECT.items():
        if name == known or (known[-1] == "*" and name.startswith(known[:-1])):
            return reason or reason_for(name)
    return None


def _in_milliseconds(said: Mapping[str, str]) -> dict[str, str]:
    left = dict(said)
    for name, units in UNITS.items():
        for config, milliseconds in units:
            text = left.pop(config.name, None)
            if text is not None:
                number = config.parse(text)
                assert isinstance(number, int), f"{config.name} is no number"
                if number == 0 and config.minimum == -1:
                    raise ConfigError(f"{config.name}=0: must be at least 1, or -1 for no limit")
                left.setdefault(name, str(max(-1, number * milliseconds)))
    return left


def _for_clients(name: str, said: Mapping[str, str]) -> tuple[str, ...]:
    """The listeners of Kafka clients in ``listeners`` or ``advertised.listeners``, as one text."""
    if not said.get(name, "").strip():
        return ()
    of_controllers = {each.strip().upper() for each in said.get(CONTROLLERS_LISTENERS, "").split(",")}
    found = []
    for each in said[name].split(","):
        listener, separator, _ = each.strip().rpartition("://")
        if not separator or listener.strip().upper() not in of_controllers:
            found.append(each.strip())
    return (",".join(found),) if found else ()


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
