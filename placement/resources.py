"""What a Ray node says of its disks when it starts, as Ray resources. Asks no Ray and imports none:
see ``groups``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote, unquote

from raylog.disks.disk import Configs, open_disk, read_disk, reserve_disk, with_configs, with_listeners
from raylog.disks.link_file import Links
from raylog.disks.node_links import note_links
from raylog.errors import DiskError
from raylog.wire.listeners import Listeners

NAMESPACE = "raylog"
"""Of all actors of raylog's."""
DISK_CAPACITY = 1000
RESOURCE_PREFIX = "raylog:disk:"
FOLDER_PREFIX = "raylog:folder:"


def disk_resource(directory_id: uuid.UUID) -> str:
    """The name of a disk's Ray resource."""
    return RESOURCE_PREFIX + str(directory_id)


def node_resources(paths: Iterable[Path]) -> dict[str, int]:
    """What ``ray start --resources`` takes on the node that holds these formatted folders. Asks no
    Ray.

    Raises DiskError for a folder that is not a disk, and for one directory id in two folders (a
    copied disk).
    """
    resources: dict[str, int] = {}
    for path in paths:
        name = disk_resource(open_disk(path).directory_id)
        if name in resources:
            raise DiskError(f"{path} has the directory id of another folder in the list: one is a copy, remove it")
        resources[name] = DISK_CAPACITY
    return resources


def advertisement(
    paths: Iterable[Path],
    *,
    rack: str | None = None,
    listeners: Listeners | None = None,
    configs: Configs = (),
    links: Links | None = None,
) -> dict[str, int]:
    """What ``ray start --resources`` takes on a node whose disks the cluster on this Ray may use.
    Asks no Ray.

    A blank folder is given its directory id, and ``rack``, which it keeps; ``listeners``,
    ``configs`` and ``links`` (TLS inside) are noted in any. Raises DiskError for a folder that is
    missing, or neither blank nor a disk, for one directory id in two folders (a copied disk), and for
    other links than those by which its processes run.
    """
    resources: dict[str, int] = {}
    for path in paths:
        folder = path.resolve()
        disk = read_disk(folder)
        if disk is None:
            directory_id = reserve_disk(folder, rack=rack, listeners=listeners, configs=configs).directory_id
        else:
            directory_id = disk.directory_id
            if listeners is not None:
                with_listeners(disk, listeners)
            if configs:
                with_configs(disk, configs)
        note_links(folder, links)
        if disk_resource(directory_id) in resources:
            raise DiskError(f"{path} has the directory id of another folder in the list: one is a copy, remove it")
        resources[disk_resource(directory_id)] = DISK_CAPACITY
        resources[folder_resource(directory_id, folder)] = 1
    return resources


def folder_resource(directory_id: uuid.UUID, path: Path) -> str:
    """The name of the resource that says where a disk's folder is."""
    text = quote(str(path)).replace("_group_", "%5Fgroup%5F")  # which would be a placement group's to Ray
    return f"{FOLDER_PREFIX}{directory_id}:{text}"


def read_folder(resource: str) -> tuple[uuid.UUID, Path]:
    directory_id, _, path = resource.removeprefix(FOLDER_PREFIX).partition(":")
    return uuid.UUID(directory_id), Path(unquote(path))
