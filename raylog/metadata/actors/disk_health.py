"""Which disks have failed, as the Broker that owns them said last.

A Broker tries its disks out now and then and says what it found in its hello and whenever that
changes. While a disk has failed its replicas count as dead, whatever their processes say: their
leaders move, they leave the ISRs, nothing new is put there. The broker's other disks serve on. None
of this is in the metadata log: a new controller hears it with the hellos. What a Broker said stays
when its process ends, until the next one says otherwise.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from raylog.control.session import FailedDisk
from raylog.metadata.events import Notice, NoticeLevel
from raylog.metadata.image import MetadataImage
from raylog.types import TopicIdPartition


class DiskHealth:
    __slots__ = ("_failed",)

    def __init__(self) -> None:
        self._failed: dict[uuid.UUID, str] = {}

    def told(self, image: MetadataImage, broker_id: int, failed: Iterable[FailedDisk]) -> list[uuid.UUID]:
        """Take in what a broker says of all its disks; the disks of which that is news."""
        own = {disk.directory_id for disk in image.disks_of(broker_id)}
        now = {each.directory_id: each.reason for each in failed if each.directory_id in own}
        changed = sorted(own & (now.keys() ^ (self._failed.keys() & own)))
        for directory_id in own:
            self._failed.pop(directory_id, None)
        self._failed |= now
        return changed

    def has_failed(self, directory_id: uuid.UUID) -> bool:
        return directory_id in self._failed

    def notices(self, image: MetadataImage, changed: Iterable[uuid.UUID]) -> list[Notice]:
        """In words, what has become of these disks."""
        return [
            Notice(f"the disk {image.disks[each].path} has failed: {reason}", NoticeLevel.ERROR)
            if reason
            else Notice(f"the disk {image.disks[each].path} works again")
            for each in changed
            for reason in [self._failed.get(each)]
        ]

    def reasons(self) -> dict[uuid.UUID, str]:
        """Why, by directory id, of those that have failed."""
        return dict(self._failed)


def replicas_on(image: MetadataImage, directory_ids: Iterable[uuid.UUID]) -> list[TopicIdPartition]:
    """The partitions that have a replica, or a future one, on one of these disks."""
    wanted = set(directory_ids)
    return [
        TopicIdPartition(topic_id, partition)
        for topic_id, topic in sorted(image.topics.items())
        for partition, state in sorted(topic.partitions.items())
        if any(slot.directory_id in wanted for slot in state.slots)
    ]
