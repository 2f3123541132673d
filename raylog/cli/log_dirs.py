"""``raylog log-dirs``: what Kafka's ``kafka-log-dirs --describe`` prints, in its JSON.

Exits with 1 if a broker that was meant does not exist, or does not answer.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, Folder, Timeout, find_cluster
from raylog.cli.output import AsJson, comma_joined, notice, print_json, print_text
from raylog.errors import ConfigError

if TYPE_CHECKING:
    from raylog.client.admin.inspection import LogDir


def log_dirs(
    describe: Annotated[
        bool, typer.Option("--describe", help="What the command does in any case; taken as Kafka's tool demands it.")
    ] = False,
    broker_list: Annotated[
        str | None, typer.Option(help="Ids of brokers, with commas between; by default all.", show_default=False)
    ] = None,
    topic_list: Annotated[
        str | None, typer.Option(help="Names of topics, with commas between; by default all.", show_default=False)
    ] = None,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Print the disks of brokers with the replicas there and their sizes in bytes, as JSON.

    With --json, the JSON alone. Exits with 1 if a broker that holds replicas does not answer.
    """
    topics = None if topic_list is None else set(topic_list.split(","))
    with find_cluster(folder, address, timeout).admin() as admin:
        live = sorted(each.broker for each in admin.describe_cluster().brokers)
        wanted = live if broker_list is None else brokers_of(broker_list)
        if missing := sorted(set(wanted) - set(live)):
            raise ConfigError(
                f"--broker-list: {comma_joined(missing)} is no broker that is there; those that are: {comma_joined(live)}"
            )
        if not as_json:
            print_text("Querying brokers for log directories information")
        found = admin.describe_log_dirs()
        holding = {
            broker
            for topic in admin.describe_topics().values()
            for part in topic.partitions
            for broker in part.replicas
        }
    silent = sorted((holding & set(wanted)) - set(found))
    told = [each for each in wanted if each not in silent]
    if not as_json:
        print_text(f"Received log directory information from brokers {comma_joined(told)}")
    brokers = [
        {"broker": each, "logDirs": [_plain(log_dir, topics) for _, log_dir in sorted(found.get(each, {}).items())]}
        for each in told
    ]
    print_json({"brokers": brokers, "version": 1})
    if silent:
        notice(f"brokers {comma_joined(silent)} hold replicas and do not answer")
        raise typer.Exit(1)


def brokers_of(text: str) -> list[int]:
    """The ids of ``--broker-list``. Raises ConfigError."""
    try:
        return sorted({int(each) for each in text.split(",")})
    except ValueError:
        raise ConfigError(f"--broker-list {text!r}: give ids of brokers with commas between") from None


def _plain(log_dir: LogDir, topics: Collection[str] | None) -> dict[str, Any]:
    return {
        "partitions": [
            {
                "partition": f"{key.topic}-{key.partition}",
                "size": size,
                "offsetLag": log_dir.offset_lags[key],
                "isFuture": key in log_dir.future,
            }
            for key, size in sorted(log_dir.replicas.items())
            if topics is None or key.topic in topics
        ],
        "error": None if log_dir.error is None else str(log_dir.error),
        "logDir": log_dir.path,
    }
