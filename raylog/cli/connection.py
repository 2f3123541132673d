"""Which cluster a command means, and the handle to it.

``--folder`` names the folder of an embedded cluster (no Ray is asked), ``--address`` a Ray on which a cluster runs. Without
both it is the cluster under ``./raylog-data`` if there is one, else the one on the Ray that runs on this machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from raylog.cluster import Cluster

DEFAULT_FOLDER = Path("raylog-data")

Folder = Annotated[
    Path | None,
    typer.Option("--folder", help="The folder of an embedded cluster.", envvar="RAYLOG_FOLDER", show_default=False),
]
Address = Annotated[
    str | None,
    typer.Option("--address", help="Ray's address, for a cluster on a Ray elsewhere.", show_default=False),
]


def find_cluster(folder: Path | None, address: str | None) -> Cluster:
    """The running cluster that the options mean; ClusterError says how to start one."""
    from raylog.cluster import connect

    if folder is None and address is None and any(DEFAULT_FOLDER.glob("broker-*/meta.properties")):
        folder = DEFAULT_FOLDER
    if folder is not None:
        return connect(folder=folder)
    return connect(ray_address=address)
