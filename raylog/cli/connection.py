"""Which cluster a command means, the handle to it, and the options that all commands with a
producer or a consumer have.

``--folder`` names the folder of an embedded cluster (no Ray is asked), ``--address`` a Ray on which
a cluster runs, ``--bootstrap-server`` its brokers (``raylog.cli.remote``). Without all of them it
is the cluster under ``./raylog-data`` if there is one, else the one on the Ray that runs on this
machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylog.cli.remote import outside
from raylog.placement.ray_connection import CONNECT_TIMEOUT_S as CONNECT_TIMEOUT_S
from raylog.placement.ray_private import messages_to_stderr

if TYPE_CHECKING:
    from raylog.client.sync import Consumer, Producer
    from raylog.cluster import Cluster

DEFAULT_FOLDER = Path("raylog-data")

Folder = Annotated[
    Path | None,
    typer.Option("--folder", help="The folder of an embedded cluster.", envvar="RAYLOG_FOLDER", show_default=False),
]
Address = Annotated[
    str | None,
    typer.Option("--address", help="host:port of a Ray's head, for a cluster on that Ray.", show_default=False),
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", min=0, help="Seconds to wait for an answer from Ray, or from the cluster in a folder."),
]
ConnectTimeout = Annotated[
    float,
    typer.Option(
        "--connect-timeout", min=0, help="Seconds to wait for an answer from Ray, or from the cluster in a folder."
    ),
]
Acks = Annotated[str, typer.Option(help="all, 1 or 0.")]
Compression = Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd.")]
ProducerConfig = Annotated[
    list[str] | None,
    typer.Option("--producer-config", help="A producer option as NAME=VALUE.", show_default=False),
]
ConsumerConfig = Annotated[
    list[str] | None,
    typer.Option("--consumer-config", help="A consumer option as NAME=VALUE.", show_default=False),
]


def find_cluster(
    folder: Path | None, address: str | None, timeout_s: float = CONNECT_TIMEOUT_S, *, must_serve: bool = True
) -> Cluster:
    """The running cluster that the options mean; ClusterError says how to start one.

    Without ``must_serve`` it may have no active controller.
    """
    from raylog.cluster import connect, find

    told = outside()
    if told.bootstrap_servers is not None:
        if folder is not None or address is not None:
            raise typer.BadParameter(
                "a cluster is found by --bootstrap-server, by --folder (or RAYLOG_FOLDER) or by --address: give one of them"
            )
        return connect(
            bootstrap_servers=told.bootstrap_servers, secret=told.secret, timeout_s=timeout_s, options=told.options
        )
    if folder is None and address is None and any(DEFAULT_FOLDER.glob("broker-*/meta.properties")):
        folder = DEFAULT_FOLDER
    if folder is not None and address is not None:
        raise typer.BadParameter(
            "a cluster is found by --folder (or RAYLOG_FOLDER) or by --address: give one of the two"
        )
    seek = connect if must_serve else find
    found = seek(ray_address=address, folder=folder, timeout_s=timeout_s, options=told.options)
    messages_to_stderr()
    return found


def open_producer(folder: Path | None, address: str | None, timeout_s: float, options: Mapping[str, Any]) -> Producer:
    """A producer of the cluster that is meant; ``options`` by Kafka's names."""
    return find_cluster(folder, address, timeout_s).producer(**_as_keywords(options))


def open_consumer(folder: Path | None, address: str | None, timeout_s: float, options: Mapping[str, Any]) -> Consumer:
    """A consumer of the cluster that is meant; ``options`` by Kafka's names."""
    return find_cluster(folder, address, timeout_s).consumer(**_as_keywords(options))


def _as_keywords(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace(".", "_"): value for name, value in options.items()}
