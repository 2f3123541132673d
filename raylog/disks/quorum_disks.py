"""Which disks hold the metadata, and how the first voters are formatted. Runs before any controller
does.

A new cluster's metadata begins as one bootstrap snapshot (cluster id, voters), the same on every
first voter's disk. That happens once: only while no disk says where a controller listens, which
each does from the first start on. Afterwards a disk without metadata is *blank*: a controller on it
follows and does not vote, until it is admitted by a record. So a voter's disk that was lost and
replaced cannot vote for a log that it has never seen, and one controller becomes three while it
serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raylog.disks.disk import METADATA_FOLDER as METADATA_FOLDER
from raylog.disks.disk import Disk
from raylog.errors import ClusterError, DiskError
from raylog.log.mounts import files_at
from raylog.raft.messages import BLANK, bootstrap_snapshot
from raylog.raft.metadata_log import LOG_NAME, SNAPSHOT_SUFFIX, MetadataLog
from raylog.types import CONTROLLER_COUNTS

_RETIRED_SUFFIX = ".retired"  # of the folder, while it is deleted


def quorum_disks(disks: Sequence[Disk], controllers: int | None) -> list[Disk]:
    """The disks whose controllers run, formatted on the cluster's first start with that many
    voters: on the first disks, one per broker.

    A cluster that has run before keeps its number of controllers (None: that, or one), or grows
    to more. One that grows, or whose voters' disks were replaced, gets controllers on
    blank disks. Raises ClusterError for an impossible number, DiskError where the metadata is
    missing altogether.
    """
    check_count(controllers)
    holders = [disk for disk in disks if has_metadata(disk)]
    for disk in disks if holders else ():
        refuse_lost_metadata(disk)
    has_run = any(disk.controllers for disk in disks)
    if not has_run:
        return _format(disks, [disk for disk in disks if _is_formatted(disk)], controllers or 1)
    if not holders:
        paths = ", ".join(str(disk.path) for disk in disks)
        raise DiskError(
            f"none of {paths} holds the metadata of cluster {disks[0].cluster_id}, which has run before: bring back the disk "
            f"with the folder {METADATA_FOLDER}"
        )
    count = max(len(holders), max(len(disk.controllers) for disk in disks), controllers or 1)
    blank = [disk for disk in _one_per_broker(disks) if disk.broker_id not in {each.broker_id for each in holders}]
    if len(holders) + len(blank) < (controllers or 1):
        raise _too_few_brokers(controllers, len(holders) + len(blank))
    return holders + blank[: count - len(holders)]


def check_count(controllers: int | None) -> None:
    """ClusterError for a number of controllers that no cluster has."""
    if controllers is not None and controllers not in CONTROLLER_COUNTS:
        raise ClusterError(f"a cluster has 1, 3 or 5 controllers, not {controllers}")


def forget_metadata(path: Path) -> None:
    """Delete the metadata of a controller that has retired, durably: its disk is blank, and may
    hold another one later. Its log is closed, and ``controller_left`` has been called.
    """
    files, folder = files_at(path), str(path / METADATA_FOLDER)
    files.remove_directory(folder + _RETIRED_SUFFIX)  # of an earlier one that was interrupted
    if files.exists(folder):
        files.replace(folder, folder + _RETIRED_SUFFIX)
        files.sync_directory(str(path))
        files.remove_directory(folder + _RETIRED_SUFFIX)


def refuse_lost_metadata(disk: Disk) -> None:
    """DiskError for a disk on which a controller has run and whose metadata is gone: it may be a
    voter, and would vote although it has forgotten for whom it did, and which entries it has
    promised to keep.
    """
    if disk.controller_endpoint is not None and not has_metadata(disk):
        raise DiskError(
            f"{disk.path} held a controller's metadata, and {METADATA_FOLDER} in it is gone: bring it back, or move the whole folder "
            f"{disk.path} away; with three controllers a blank disk takes its place"
        )


def _format(disks: Sequence[Disk], holders: list[Disk], controllers: int) -> list[Disk]:
    chosen = _one_per_broker(disks)[:controllers]
    if holders:  # an earlier attempt was interrupted: its voters stand
        voters = _read_voters(holders[0])
        chosen = [disk for disk in disks if disk.directory_id in voters] or chosen
    if len(chosen) < controllers and not holders:
        raise _too_few_brokers(controllers, len(chosen))
    snapshot = bootstrap_snapshot(chosen[0].cluster_id, [disk.directory_id for disk in chosen])
    for disk in chosen:
        if disk not in holders:
            MetadataLog.format(files_at(disk.path), str(disk.path / METADATA_FOLDER), snapshot)
    return chosen


def _too_few_brokers(controllers: int | None, brokers: int) -> ClusterError:
    return ClusterError(f"{controllers} controllers need as many brokers, there are {brokers}: start more brokers")


def _one_per_broker(disks: Sequence[Disk]) -> list[Disk]:
    first: dict[int, Disk] = {}
    for disk in sorted(disks, key=lambda disk: disk.broker_id):
        first.setdefault(disk.broker_id, disk)
    return list(first.values())


def has_metadata(disk: Disk) -> bool:
    """Whether a controller has run on the disk, or shall be one of the first voters."""
    return _is_formatted(disk) or files_at(disk.path).exists(str(disk.path / METADATA_FOLDER / LOG_NAME))


def _is_formatted(disk: Disk) -> bool:
    files, folder = files_at(disk.path), str(disk.path / METADATA_FOLDER)
    return files.exists(folder) and any(name.endswith(SNAPSHOT_SUFFIX) for name in files.list_directory(folder))


def _read_voters(disk: Disk) -> frozenset[object]:
    log = MetadataLog.open(files_at(disk.path), str(disk.path / METADATA_FOLDER))
    try:
        assert log.snapshot != BLANK, disk.path
        return frozenset(log.snapshot.voters)
    finally:
        log.close()
