"""``raylog configs``: what Kafka's ``kafka-configs`` does, with its options and its words, to
topics, brokers, brokers' loggers and groups.

``describe`` prints a title and a line per config; without ``--all`` only what was set there. Of
loggers it prints all, with their levels. Groups have no configs: it says so.
``alter`` makes all changes of one entity, or none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, Folder, Timeout, find_cluster
from raylog.cli.output import AsJson, notice, print_json, print_text
from raylog.cli.remote import ClusterApp
from raylog.configs.broker_configs import BROKER_CONFIGS
from raylog.configs.certificate_configs import certificate_config
from raylog.configs.explanations import explain_brokers, explain_topics, in_words
from raylog.configs.group_configs import NO_GROUP_CONFIGS
from raylog.configs.link_configs import PROTOCOL
from raylog.configs.properties import read_properties
from raylog.configs.server_properties import ServerProperties, merged
from raylog.configs.topic_configs import ConfigValueType
from raylog.disks.link_file import Links, told_links
from raylog.disks.listener_file import settings_of_listeners
from raylog.errors import ConfigError

if TYPE_CHECKING:
    from raylog.client.admin.admin import ConfigEntry
    from raylog.client.sync import AdminClient

app = ClusterApp(help="Show and change the configs of topics and brokers.", no_args_is_help=True)


class EntityType(Enum):
    topics = "topics"
    brokers = "brokers"
    broker_loggers = "broker-loggers"
    groups = "groups"


class ExplainedType(Enum):
    """What has configs that mean the same in every cluster."""

    topics = "topics"
    brokers = "brokers"


OfType = Annotated[EntityType, typer.Option("--entity-type", help="Whose configs.", show_default=False)]
Name = Annotated[
    str | None, typer.Option("--entity-name", help="A topic's or group's name or a broker's id.", show_default=False)
]
Default = Annotated[
    bool, typer.Option("--entity-default", help="The configs of all brokers that do not set their own.")
]
_SOURCES = {
    "TOPIC": "DYNAMIC_TOPIC_CONFIG",
    "DYNAMIC_BROKER": "DYNAMIC_BROKER_CONFIG",
    "DYNAMIC_DEFAULT_BROKER": "DYNAMIC_DEFAULT_BROKER_CONFIG",
    "STATIC_BROKER": "STATIC_BROKER_CONFIG",
    "DEFAULT": "DEFAULT_CONFIG",
    "BROKER_LOGGER": "DYNAMIC_BROKER_LOGGER_CONFIG",
}


@app.command("describe")
def describe(
    entity_type: OfType,
    entity_name: Name = None,
    entity_default: Default = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Include what is not set here: defaults, and what is set for all brokers.")
    ] = False,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Show configs and where their values come from. Without a name, show those of all topics, or
    of all brokers. Of broker-loggers, show the level of each logger of a broker's processes. Groups
    have no configs.
    """
    _check(entity_type, entity_name, entity_default)
    documents = []
    with find_cluster(folder, address, timeout).admin() as admin:
        for name in _named(admin, entity_type, entity_name, entity_default):
            entries = _entries(admin, entity_type, name)
            shown = [entry for entry in entries if everything or _is_set_there(entry, entity_type, name)]
            if as_json:
                documents.append(_plain(entity_type, name, shown))
            else:
                print_text(*lines(entity_type, name, shown, everything=everything))
    if as_json:
        print_json(documents)
    if entity_type is EntityType.groups:
        notice(NO_GROUP_CONFIGS)


@app.command("alter")
def alter(
    entity_type: OfType,
    entity_name: Name = None,
    entity_default: Default = False,
    add_config: Annotated[
        list[str] | None,
        typer.Option(
            "--add-config", help="NAME=VALUE,NAME=VALUE,…; a value with commas as NAME=[A,B].", show_default=False
        ),
    ] = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", help="NAME,NAME,…: these return to their defaults.", show_default=False),
    ] = None,
    add_config_file: Annotated[
        Path | None,
        typer.Option(
            "--add-config-file",
            help="A properties file with what is to be set: secrets stay off the command line.",
            show_default=False,
        ),
    ] = None,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Set and delete configs of a topic, of a broker, or of all brokers. Secrets are never shown.

    A broker's loggers take the levels TRACE, DEBUG, INFO, WARN, ERROR, FATAL and OFF, all its processes at
    once, and forget them when it restarts: `--entity-type broker-loggers --entity-name 0 --add-config
    raylog.replica=DEBUG`.
    """
    _check(entity_type, entity_name, entity_default)
    if entity_name is None and not entity_default:
        raise typer.BadParameter("say of whom: --entity-name, or --entity-default for all brokers")
    changes = _added(add_config, add_config_file)
    deleted = [name.strip() for text in delete_config or () for name in text.split(",") if name.strip()]
    if not changes and not deleted:
        raise typer.BadParameter("nothing to alter: give --add-config, --add-config-file or --delete-config")
    with find_cluster(folder, address, timeout).admin() as admin:
        if entity_type is EntityType.topics:
            admin.alter_configs(entity_name, set=changes, delete=deleted)
        elif entity_type is EntityType.broker_loggers:
            admin.alter_loggers(int(entity_name or ""), set=changes, delete=deleted)
        elif entity_type is EntityType.groups:
            admin.alter_configs(group=entity_name, set=changes, delete=deleted)
        else:
            admin.alter_configs(broker=_broker(entity_name), set=changes, delete=deleted)
    if as_json:
        shown = {name: None if _is_secret(name) else value for name, value in changes.items()}
        print_json(
            {"entity_type": entity_type.value, "entity_name": entity_name or "", "set": shown, "deleted": deleted}
        )
    elif entity_name is None:
        print_text("Completed updating default config for brokers in the cluster.")
    else:
        print_text(f"Completed updating config for {entity_type.value[:-1]} {entity_name}.")


@app.command("explain")
def explain(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME…", help="Of configs; none: all of them.")] = None,
    entity_type: Annotated[ExplainedType, typer.Option("--entity-type", help="Whose configs.")] = ExplainedType.brokers,
    as_json: AsJson = False,
) -> None:
    """Say what configs mean, what they may be, whom they are set for and who reads them. Needs no
    cluster.
    """
    table = explain_topics if entity_type is ExplainedType.topics else explain_brokers
    found = table(names or ())
    if as_json:
        print_json(found)
    else:
        print_text(*(line for each in found for line in in_words(each)))


def lines(entity_type: EntityType, name: str, entries: Iterable[ConfigEntry], *, everything: bool) -> list[str]:
    """An entity's configs as ``kafka-configs --describe`` prints them."""
    kind = entity_type.value[:-1]
    which = "All" if everything else "Dynamic"
    title = f"{which} configs for {kind} {name} are:" if name else "Default configs for brokers in the cluster are:"
    return [title, *(_line(entry) for entry in entries)]


def _line(entry: ConfigEntry) -> str:
    synonyms = ", ".join(
        f"{_SOURCES.get(each.source.name, 'UNKNOWN')}:{each.name}={each.value}" for each in entry.synonyms
    )
    return f"  {entry.name}={entry.value} sensitive={str(entry.sensitive).lower()} synonyms={{{synonyms}}}"


def _added(texts: Iterable[str] | None, file: Path | None) -> dict[str, str]:
    """What options and a file have set. Raises ConfigError."""
    changes, of_file = parse_changes(texts), {} if file is None else read_properties(file)
    for name in changes.keys() & of_file.keys():
        raise ConfigError(f"--add-config {name} is in {file}, too: keep one of them")
    return changes | of_file


def _is_secret(name: str) -> bool:
    config = certificate_config(name) or BROKER_CONFIGS.get(name)
    return config is not None and config.type is ConfigValueType.PASSWORD


def parse_changes(texts: Iterable[str] | None, option: str = "--add-config") -> dict[str, str]:
    """``["a=1,b=[2,3]"]`` as a mapping: commas inside brackets belong to the value. ConfigError for
    what is not NAME=VALUE; it names no more than what stands where a name should.
    """
    changes: dict[str, str] = {}
    for text in texts or ():
        before = ""
        for part in re.split(r",(?=[^\]]*(?:\[|$))", text):
            name, equals, value = part.strip().partition("=")
            if not equals or not re.fullmatch(r"[\w.-]+", name):
                what = f"{part!r}" if not before else f"what follows {before}=… after its comma"
                raise ConfigError(
                    f"{option} {what} is not NAME=VALUE; put a value with commas into brackets: NAME=[A,B]"
                )
            if name in changes:
                raise ConfigError(f"{option} {name} is given twice")
            before = name
            changes[name] = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    return changes


def started_with(texts: Iterable[str] | None) -> ServerProperties:
    """What ``--config`` of a start says, each time NAME=VALUE or a properties file. Prints what has
    no effect. Raises ConfigError.
    """
    given = list(texts or ())
    files = [Path(text) for text in given if "=" not in text]
    for file in files:
        if not file.exists():
            raise ConfigError(f"--config {file} is neither NAME=VALUE nor a file")
    found = merged(files, parse_changes([text for text in given if "=" in text], "--config"))
    for line in found.notices:
        notice(line)
    return found


def refuse_links(configs: ServerProperties) -> None:
    """Raise ConfigError if it is said here whether links have TLS, which each node of a Ray says of its
    own disks and files.
    """
    if configs.link_configs is not None:
        raise ConfigError(
            f"{PROTOCOL} is what each node says, by files of its own: give it to `raylog node resources --config` or "
            "`raylog node lend --config`"
        )


def links_told(texts: list[str] | None) -> Links | None:
    """What ``--config`` says of TLS inside, and nothing else; None: nothing. Raises ConfigError."""
    told = started_with(texts)
    others = [*told.configs, *settings_of_listeners((), told), *("listeners" for _ in told.listeners)]
    if others:
        raise ConfigError(f"{min(others)} cannot be given to a node that lends: give {PROTOCOL} and ssl.* only")
    return told_links(told)


def _check(entity_type: EntityType, entity_name: str | None, entity_default: bool) -> None:
    if entity_name is not None and entity_default:
        raise typer.BadParameter("--entity-name and --entity-default exclude each other")
    if entity_default and entity_type is EntityType.broker_loggers:
        raise typer.BadParameter("each broker has its own loggers: give --entity-name")
    if entity_default and entity_type is EntityType.topics:
        raise typer.BadParameter(
            "topics have no default of their own: set the broker's config of --entity-type brokers"
        )
    if entity_default and entity_type is EntityType.groups:
        raise typer.BadParameter(NO_GROUP_CONFIGS)
    is_of_broker = entity_type in (EntityType.brokers, EntityType.broker_loggers)
    if is_of_broker and entity_name is not None and not entity_name.isdecimal():
        raise typer.BadParameter(f"a broker is named by its id, not {entity_name!r}")


def _named(admin: AdminClient, entity_type: EntityType, entity_name: str | None, entity_default: bool) -> list[str]:
    if entity_default:
        return [""]
    if entity_name is not None:
        return [entity_name]
    if entity_type is EntityType.topics:
        return admin.list_topics(internal=True)
    if entity_type is EntityType.groups:
        return []  # none has any
    brokers = [str(broker.broker) for broker in admin.describe_cluster().brokers]
    return brokers if entity_type is EntityType.broker_loggers else [*brokers, ""]


def _entries(admin: AdminClient, entity_type: EntityType, name: str) -> list[ConfigEntry]:
    if entity_type is EntityType.topics:
        return list(admin.describe_configs(name).values())
    if entity_type is EntityType.broker_loggers:
        return list(admin.describe_loggers(int(name)).values())
    if entity_type is EntityType.groups:
        return list(admin.describe_configs(group=name).values())
    return list(admin.describe_configs(broker=_broker(name or None)).values())


def _broker(name: str | None) -> Any:
    return "all" if name is None else int(name)


def _is_set_there(entry: ConfigEntry, entity_type: EntityType, name: str) -> bool:
    if entity_type is EntityType.topics:
        return entry.source.name == "TOPIC"
    if entity_type in (EntityType.broker_loggers, EntityType.groups):
        return True
    return entry.source.name == ("DYNAMIC_BROKER" if name else "DYNAMIC_DEFAULT_BROKER")


def _plain(entity_type: EntityType, name: str, entries: Iterable[ConfigEntry]) -> Mapping[str, Any]:
    return {
        "entity_type": entity_type.value,
        "entity_name": name,
        "configs": [
            {
                "name": entry.name,
                "value": entry.value,
                "source": _SOURCES.get(entry.source.name, "UNKNOWN"),
                "read_only": entry.read_only,
                "documentation": entry.documentation,
                "synonyms": [
                    {"name": each.name, "value": each.value, "source": _SOURCES.get(each.source.name, "UNKNOWN")}
                    for each in entry.synonyms
                ],
            }
            for entry in entries
        ],
    }
