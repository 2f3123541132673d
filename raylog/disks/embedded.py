"""The disks of an embedded cluster: the folders ``broker-0``, ``broker-0-disk-1``, … under one."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from pathlib import Path

from raylog.disks.disk import Disk, disk_path, encode_id, format_disk, new_id, open_disk, read_disk
from raylog.disks.filesystems import doubts
from raylog.errors import ClusterError, DiskError

logger = logging.getLogger(__name__)


def existing_disks(home: Path) -> list[Disk]:
    """Those under ``home``. DiskError where they are of several clusters."""
    paths = sorted(home.glob("broker-*"), key=lambda path: (len(path.name), path.name)) if home.is_dir() else []
    disks = [disk for disk in map(read_disk, paths) if disk is not None]
    foreign = {disk.cluster_id for disk in disks}
    if len(foreign) > 1:
        raise DiskError(
            f"{home} holds disks of {len(foreign)} clusters ({', '.join(sorted(foreign))}): keep one cluster's"
        )
    return disks


def has_run(folder: str | Path) -> bool:
    """Whether a cluster has been started on the disks under ``folder``."""
    return any(disk.controllers for disk in existing_disks(Path(folder).expanduser().resolve()))


def prepare_disks(home: Path, brokers: int, racks: Sequence[str] | None, disks_each: int = 1) -> list[Disk]:
    """The disks under ``home``: those that are there, and new ones up to the numbers of brokers,
    and of disks of each, asked for.
    """
    if brokers < 1:
        raise ClusterError(f"a cluster has at least one broker, not {brokers}")
    if racks is not None and len(racks) != brokers:
        raise ClusterError(f"{len(racks)} racks for {brokers} brokers: give one each")
    disks = existing_disks(home)
    cluster_id = disks[0].cluster_id if disks else encode_id(new_id())
    secret = disks[0].secret if disks else secrets.token_urlsafe(32)
    taken = {disk.path for disk in disks}
    for broker_id in range(brokers):
        rack = next((disk.rack for disk in disks if disk.broker_id == broker_id), racks[broker_id] if racks else None)
        missing = disks_each - sum(disk.broker_id == broker_id for disk in disks)
        free = [path for number in range(disks_each) if (path := disk_path(home, broker_id, number)) not in taken]
        for path in free[: max(0, missing)]:
            disks.append(
                format_disk(path, cluster_id=cluster_id, broker_id=broker_id, rack=rack, controllers=[], secret=secret)
            )
    for line in doubts([home]):
        logger.warning(line)
    in_order = sorted(disks, key=lambda disk: (disk.broker_id, len(disk.path.name), disk.path.name))
    return [open_disk(disk.path, cluster_id=cluster_id) for disk in in_order]
