"""``raylog topics``: what Kafka's ``kafka-topics`` and ``kafka-configs`` do to topics, with their
columns.

``describe`` prints a header line and a line per partition with the fields that scripts cut out of
``kafka-topics --describe``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from kio.schema.errors import ErrorCode

from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, Folder, Timeout, find_cluster
from raylog.cli.output import AsJson, comma_joined, notice, print_json, print_text
from raylog.cli.remote import ClusterApp
from raylog.errors import ConfigError, kafka_error

if TYPE_CHECKING:
    from raylog.client.admin.admin import PartitionInfo, TopicDescription

app = ClusterApp(help="Create, list, describe, alter and delete topics.", no_args_is_help=True)

Topic = Annotated[str, typer.Argument(help="The topic's name.", show_default=False)]
Topics = Annotated[list[str], typer.Argument(help="Names of topics.", show_default=False)]
Configs = Annotated[
    list[str] | None,
    typer.Option("--config", help="A topic config as NAME=VALUE; may be given several times.", show_default=False),
]


@app.command("create")
def create(
    topic: Topic,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="By default, what the cluster is configured to use.", show_default=False)
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, help="By default, what the cluster is configured to use.", show_default=False)
    ] = None,
    replica_assignment: Annotated[
        str | None,
        typer.Option(
            help="The brokers of each partition, as in 0:1:2,1:2:0. Replaces --partitions and --replication-factor.",
            show_default=False,
        ),
    ] = None,
    config: Configs = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Do nothing if the topic exists.")] = False,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Create a topic. Producers can write to it when the command returns."""
    if replica_assignment is not None and (partitions is not None or replication_factor is not None):
        raise typer.BadParameter("give --replica-assignment, or --partitions and --replication-factor")
    assignment = parse_assignment(replica_assignment) if replica_assignment is not None else {}
    configs = parse_configs(config)
    from raylog.client.admin.admin import NewTopic

    wanted = NewTopic(
        topic,
        -1 if partitions is None else partitions,
        -1 if replication_factor is None else replication_factor,
        configs,
        assignment,
    )
    with find_cluster(folder, address, timeout).admin() as admin:
        admin.create_topics([wanted], if_not_exists=if_not_exists)
        description = admin.describe_topics([topic])[topic]
    if as_json:
        print_json(as_plain(description))
    else:
        count = len(description.partitions)
        print_text(f"Created topic {topic} with {count} partition{'s' if count != 1 else ''}")


@app.command("list")
def list_(
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """List the names of all topics."""
    with find_cluster(folder, address, timeout).admin() as admin:
        names = admin.list_topics(internal=internal)
    if as_json:
        print_json(names)
    else:
        print_text(*names)


@app.command("describe")
def describe(
    topics: Annotated[
        list[str] | None, typer.Argument(help="Names of topics; without any, all topics.", show_default=False)
    ] = None,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated-partitions", help="Only partitions with replicas out of sync.")
    ] = False,
    unavailable: Annotated[
        bool, typer.Option("--unavailable-partitions", help="Only partitions without a leader.")
    ] = False,
    with_overrides: Annotated[
        bool, typer.Option("--topics-with-overrides", help="Only topics with configs of their own, without partitions.")
    ] = False,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Show topics with leader, replicas and in-sync replicas of each partition."""
    wanted: Callable[[PartitionInfo], bool] = lambda each: True  # noqa: E731
    if under_replicated:
        wanted = lambda each: len(each.isr) < len(each.replicas)  # noqa: E731
    elif unavailable:
        wanted = lambda each: each.leader < 0  # noqa: E731
    documents = []
    with find_cluster(folder, address, timeout).admin() as admin:
        for description in admin.describe_topics(topics or None).values():
            entries = admin.describe_configs(description.name)
            configs = {name: entry.value for name, entry in entries.items() if entry.source.name == "TOPIC"}
            if with_overrides and not configs:
                continue
            if as_json:
                documents.append(as_plain(description, configs))
            elif with_overrides:
                print_text(header_line(description, configs))
            elif under_replicated or unavailable:
                print_text(*(partition_line(description.name, each) for each in description.partitions if wanted(each)))
            else:
                print_text(*describe_lines(description, configs))
    if as_json:
        for document in documents:
            document["partitions"] = [
                plain
                for plain in document["partitions"]
                if not (under_replicated and len(plain["isr"]) >= len(plain["replicas"]))
                and not (unavailable and plain["leader"] >= 0)
            ]
        print_json(documents)


@app.command("alter")
def alter(
    topic: Topic,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="The new total; partitions can only be added.", show_default=False)
    ] = None,
    config: Configs = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", help="A config that returns to its default.", show_default=False),
    ] = None,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Add partitions to a topic, or change its configs."""
    if partitions is None and not config and not delete_config:
        raise typer.BadParameter("nothing to alter: give --partitions, --config or --delete-config")
    configs = parse_configs(config)
    with find_cluster(folder, address, timeout).admin() as admin:
        if configs or delete_config:
            admin.alter_configs(topic, set=configs, delete=delete_config or [])
        if partitions is not None:
            notice("keys hash over the number of partitions: records of a key may go to another partition from now on")
            admin.create_partitions(topic, partitions)
        description = admin.describe_topics([topic])[topic]
    if as_json:
        print_json(as_plain(description))
    else:
        print_text(f"Altered topic {topic}")


@app.command("delete")
def delete(
    topics: Topics,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Do nothing if a topic does not exist.")] = False,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Delete topics with all their records."""
    with find_cluster(folder, address, timeout).admin() as admin:
        admin.delete_topics(topics, if_exists=if_exists)
    if as_json:
        print_json({"deleted": topics})
    else:
        print_text(*(f"Deleted topic {topic}" for topic in topics))


def describe_lines(description: TopicDescription, configs: Mapping[str, str | None]) -> list[str]:
    """A topic as ``kafka-topics --describe`` prints it."""
    lines = [header_line(description, configs)]
    lines.extend(partition_line(description.name, each) for each in description.partitions)
    return lines


def header_line(description: TopicDescription, configs: Mapping[str, str | None]) -> str:
    factor = max((len(each.replicas) for each in description.partitions), default=0)
    listed = ",".join(f"{name}={value}" for name, value in sorted(configs.items()))
    return (
        f"Topic:{description.name}\tPartitionCount:{len(description.partitions)}\t"
        f"ReplicationFactor:{factor}\tConfigs:{listed}"
    )


def partition_line(topic: str, partition: PartitionInfo) -> str:
    leader = "none" if partition.leader < 0 else str(partition.leader)
    return (
        f"\tTopic: {topic}\tPartition: {partition.partition}\tLeader: {leader}\t"
        f"Replicas: {comma_joined(partition.replicas)}\tIsr: {comma_joined(partition.isr)}"
    )


def as_plain(description: TopicDescription, configs: Mapping[str, str | None] | None = None) -> dict[str, Any]:
    """A topic's description for JSON."""
    plain: dict[str, Any] = {
        "name": description.name,
        "topic_id": str(description.topic_id),
        "partitions": [
            {
                "partition": each.partition,
                "leader": each.leader,
                "leader_epoch": each.leader_epoch,
                "replicas": list(each.replicas),
                "isr": list(each.isr),
            }
            for each in description.partitions
        ],
    }
    if configs is not None:
        plain["configs"] = dict(configs)
    return plain


def parse_configs(texts: Iterable[str] | None) -> dict[str, str]:
    """``["retention.ms=1000"]`` as a mapping; ConfigError for one without ``=`` or with a name
    twice.
    """
    configs: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"--config {text!r} is not NAME=VALUE")
        if name in configs:
            raise ConfigError(f"--config {name} is given twice")
        configs[name] = value
    return configs


def parse_assignment(text: str) -> dict[int, list[int]]:
    """``"0:1:2,3:4:5"``: the replicas of partitions 0 and 1, as Kafka's ``--replica-assignment``
    takes them.
    """
    try:
        replicas = [[int(broker) for broker in part.split(":")] for part in text.split(",")]
    except ValueError:
        raise kafka_error(ErrorCode.invalid_replica_assignment)(
            f"--replica-assignment {text!r} is not of the form 0:1:2,1:2:0 (brokers of partition 0, of partition 1)"
        ) from None
    return dict(enumerate(replicas))
