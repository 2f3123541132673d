"""The options by which Kafka's two performance tools take properties of their client, and the cluster
that these properties name.

A later one wins: ``--producer.config`` or ``--consumer.config`` (a file), ``--command-config`` (a
file), ``--producer-props``, ``--command-property``. The last two take several NAME=VALUE at once,
as Kafka's do: those behind the first one arrive as arguments of the command. ``bootstrap.servers``
and ``cluster.secret`` may be among the properties; ``--bootstrap-server`` wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raylog.cli.connection import find_cluster
from raylog.cli.remote import BOOTSTRAP_SERVERS, CLUSTER_SECRET, outside, reached_through
from raylog.cli.topics import parse_configs
from raylog.client.security.options import split
from raylog.configs.properties import read_properties
from raylog.errors import ConfigError

if TYPE_CHECKING:
    from raylog.cluster import Cluster

OF_THE_TOOL = ("key.serializer", "value.serializer", "key.deserializer", "value.deserializer")
"""What the tools set themselves: keys and values are bytes."""

CommandProperty = Annotated[
    list[str] | None,
    typer.Option("--command-property", metavar="NAME=VALUE…", help="Options of the client.", show_default=False),
]
ProducerProps = Annotated[
    list[str] | None,
    typer.Option("--producer-props", metavar="NAME=VALUE…", help="The older name of --command-property."),
]
ProducerFile = Annotated[
    Path | None,
    typer.Option("--producer.config", metavar="FILE", help="The older name of --command-config.", show_default=False),
]
ConsumerFile = Annotated[
    Path | None,
    typer.Option("--consumer.config", metavar="FILE", help="The older name of --command-config.", show_default=False),
]
MoreProperties = Annotated[list[str] | None, typer.Argument(hidden=True)]
PrintMetrics = Annotated[bool, typer.Option("--print-metrics", hidden=True)]


def properties_of(
    file: Path | None, older: Sequence[str] | None, given: Sequence[str] | None, more: Sequence[str] | None
) -> dict[str, str]:
    """The properties of the client. BadParameter for an argument that belongs to no option."""
    stray = [each for each in more or () if "=" not in each or not (older or given)]
    if stray:
        raise typer.BadParameter(f"{stray[0]!r} belongs to no option: topic and counts have options, as in --topic")
    newer = [*(given or ()), *(more or ())]
    properties = {} if file is None else read_properties(file)
    properties |= outside().client_options
    properties |= parse_configs(list(older or ())) | parse_configs(newer)
    return {name: value for name, value in properties.items() if name not in OF_THE_TOOL}


def cluster_of(
    properties: Mapping[str, str], folder: Path | None, address: str | None, timeout_s: float
) -> tuple[Cluster, dict[str, str]]:
    """The cluster that the command means, and the properties that are left for its client."""
    options = dict(properties)
    servers, secret = options.pop(BOOTSTRAP_SERVERS, None), options.pop(CLUSTER_SECRET, None)
    options, of_security = split(options)
    with reached_through(servers, secret, of_security):
        return find_cluster(folder, address, timeout_s), options


def refuse_metrics(wanted: bool) -> None:
    """ConfigError for ``--print-metrics``."""
    if wanted:
        raise ConfigError("--print-metrics is refused: raylog's clients have no metrics to print yet")
