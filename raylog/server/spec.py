"""What a server process is told when it starts; everything else it reads from its disk."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from raylog.disks.disk import Disk, encode_id, open_disk, read_disk
from raylog.errors import DiskError
from raylog.types import ActorIdentity

OWN_ADDRESS = ""
"""As a spec's host: the address of the Ray node that the server runs on, and so for every server
that it starts.
"""


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """One server actor: its node id, the folder of its disk, the host name or address that it
    listens on.

    ``incarnation`` names this process among all that ever were this actor; later ones are larger. A
    controller takes the one given as a proposal, and a larger one where its disk remembers an
    earlier process of a number as large.
    """

    node_id: int
    directory_id: uuid.UUID
    disk: str
    host: str
    incarnation: int

    def cluster_id(self) -> str:
        """The cluster that the disk belongs to; "?" if that cannot be read."""
        try:
            disk = read_disk(Path(self.disk))
        except DiskError:
            return "?"
        return disk.cluster_id if disk is not None else "?"

    def open_disk(self) -> Disk:
        """The disk, checked to be this one, formatted and writable; DiskError says what is wrong
        with it.
        """
        disk = open_disk(Path(self.disk))
        if disk.directory_id != self.directory_id:
            raise DiskError(
                f"{self.disk} is now disk {encode_id(disk.directory_id)}, expected {encode_id(self.directory_id)}: "
                "mount the right one there"
            )
        return disk

    def identity(self, disk: Disk) -> ActorIdentity:
        return ActorIdentity(disk.cluster_id, self.node_id, disk.directory_id, self.incarnation)


def new_incarnation() -> int:
    """The wall clock in nanoseconds: a number that no earlier process of this machine had, unless
    the clock was set back.
    """
    return time.time_ns()
