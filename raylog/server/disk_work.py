"""What is done in a disk's folder for the provisioner, on the node that sees the folder: plain
functions, run there as Ray tasks.

A cluster is founded in two passes over its disks, so that an interruption leaves nothing half
founded. First every disk, still blank, is promised its cluster id and broker id (in its
reservation), and each first voter's is given the bootstrap snapshot, beside the place where it
counts (``FOUNDING_FOLDER``). Only then disks are formatted, and the voters' metadata moved to its
place. So once one disk is formatted, all others know what they are to become and need no controller
to be formatted; and a founding that formatted none is begun again, with another cluster id.

Every function is idempotent, and raises DiskError for a folder that cannot be used. What it returns
travels to the provisioner, so it lacks what only the node itself needs: the settings of listeners and
of links, which hold passwords and private keys.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from raylog.disks.disk import (
    FOUNDING_FOLDER,
    METADATA_FOLDER,
    Disk,
    Reservation,
    format_disk,
    open_disk,
    read_disk,
    read_reservation,
    reserve_disk,
    with_controllers,
    write_reservation,
)
from raylog.disks.link_file import Links
from raylog.disks.node_links import links_of, note_links
from raylog.errors import DiskError
from raylog.log.disk_files import DiskFiles
from raylog.raft.messages import bootstrap_snapshot
from raylog.raft.metadata_log import SNAPSHOT_SUFFIX, MetadataLog
from raylog.types import Endpoint
from raylog.wire.internal_tls import Secret, SecretInsideTls, check_links


@dataclass(frozen=True, slots=True)
class FolderFound:
    """What is in a folder: a disk, or nothing yet. ``proof``: what is proven on links by a process that has
    none of the node's files; None of a blank folder. ``has_tls``: whether its links have TLS, or shall.
    """

    disk: Disk | None
    reservation: Reservation | None = None  # of a blank folder
    has_metadata: bool = False
    proof: Secret | None = field(default=None, repr=False)
    has_tls: bool = False


def look(path: Path, directory_id: uuid.UUID, host: str | None = None) -> FolderFound:
    """What is in the folder now. DiskError if it is not the disk that the node said it was when it
    started, ConfigError if links would fail at the node's address ``host``.
    """
    found = _look(path, directory_id)
    check_links(links_of(path), host)
    return found


def _look(path: Path, directory_id: uuid.UUID) -> FolderFound:
    disk = read_disk(path)
    if disk is None:
        reserved = read_reservation(path)
        if reserved is None or reserved.directory_id != directory_id:
            raise _other(path)
        return FolderFound(None, replace(reserved, listeners=None), has_tls=bool(links_of(path)))
    if disk.directory_id != directory_id:
        raise _other(path)
    return _formatted(disk)


def offer(path: Path, links: Links | None = None, host: str | None = None) -> tuple[uuid.UUID, Path]:
    """The directory id of the folder's disk, which a blank folder is given, and where the folder
    is. ``links``, if any are told, are noted there: how links inside have TLS on this node, whose
    address is ``host``. ConfigError if they would fail.
    """
    folder = path.resolve()
    disk = read_disk(folder)
    check_links(links or (), host)
    directory_id = (disk or reserve_disk(folder)).directory_id
    note_links(folder, links)
    return directory_id, folder


def promise(path: Path, reserved: Reservation, voters: Sequence[uuid.UUID]) -> Reservation:
    """Note what a blank folder is to become in a cluster that is being founded, whose first voters'
    disks are ``voters``.
    """
    assert reserved.cluster_id is not None and reserved.broker_id is not None, reserved
    if read_disk(path) is not None:
        raise DiskError(f"{path} is formatted already")
    folder = path / FOUNDING_FOLDER
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier founding that formatted no disk
    if reserved.directory_id in voters:
        MetadataLog.format(DiskFiles(), str(folder), bootstrap_snapshot(reserved.cluster_id, voters))
    known = read_reservation(path)
    if known is not None:
        reserved = replace(reserved, listeners=known.listeners, configs=known.configs)
    write_reservation(path, reserved)
    return replace(reserved, listeners=None)


def format_folder(path: Path, reserved: Reservation, *, secret: str, controllers: Sequence[Endpoint]) -> FolderFound:
    """Make a blank folder the disk that ``reserved`` says; nothing if it is that already."""
    assert reserved.cluster_id is not None and reserved.broker_id is not None, reserved
    if read_disk(path) is None:
        folder = path / FOUNDING_FOLDER
        if folder.is_dir() and _cluster_of(folder) != reserved.cluster_id:
            shutil.rmtree(folder)
        format_disk(
            path,
            cluster_id=reserved.cluster_id,
            broker_id=reserved.broker_id,
            rack=reserved.rack,
            controllers=controllers,
            secret=secret,
            directory_id=reserved.directory_id,
        )
    disk = open_disk(path, cluster_id=reserved.cluster_id)
    if disk.directory_id != reserved.directory_id:
        raise _other(path)
    return _formatted(disk)


def tell_controllers(path: Path, cluster_id: str, controllers: Sequence[Endpoint]) -> Disk:
    """Write down where the controllers are."""
    return _without_settings(with_controllers(open_disk(path, cluster_id=cluster_id), controllers))


def _without_settings(disk: Disk) -> Disk:
    """As other nodes may know it."""
    return replace(disk, listeners=None, links=())


def _formatted(disk: Disk) -> FolderFound:
    """A disk as it is, a founding that was interrupted finished."""
    folder, place = disk.path / FOUNDING_FOLDER, disk.path / METADATA_FOLDER
    if folder.is_dir() and not place.exists():
        folder.rename(place)
        DiskFiles().sync_directory(str(disk.path))
    proof = disk.link_secret
    has_tls = isinstance(proof, SecretInsideTls)
    return FolderFound(
        _without_settings(disk),
        has_metadata=any(place.glob(f"*{SNAPSHOT_SUFFIX}")),
        proof=proof.without_files() if isinstance(proof, SecretInsideTls) else proof,
        has_tls=has_tls,
    )


def _cluster_of(folder: Path) -> str:
    log = MetadataLog.open(DiskFiles(), str(folder))
    try:
        return log.snapshot.cluster_id
    finally:
        log.close()


def _other(path: Path) -> DiskError:
    return DiskError(
        f"{path} is not the disk that its node advertised when it started: mount the right one there, or start the node again"
    )
