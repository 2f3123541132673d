"""What the replicas' logs were like when the processes that live now opened them, summed up for
people. Pure.

A log is found *clean*, *whole*, *suspect* or *missing* (``session.Condition``). A new replica finds
its log missing, so missing ones are only counted. What recovery cut off a log's tail was never
acknowledged by that replica if the log is whole; of a suspect one nobody can say it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raylog.metadata.image import MetadataImage
from raylog.metadata.sessions import Sessions
from raylog.types import Condition, TopicIdPartition, broker_of


@dataclass(frozen=True, slots=True)
class CutLog:
    """A log that lost bytes at its tail, or that is suspect without having lost any that are known
    of.
    """

    topic: str
    partition: int
    broker_id: int
    condition: Condition
    cut_bytes: int


@dataclass(frozen=True, slots=True)
class OpenedLogs:
    """How many logs are open, by what was found; ``opening``: assigned, and neither open nor failed
    yet.
    """

    clean: int = 0
    whole: int = 0
    suspect: int = 0
    missing: int = 0
    opening: int = 0
    scanned_bytes: int = 0
    cut: tuple[CutLog, ...] = ()


def opened_logs(image: MetadataImage, sessions: Sessions) -> OpenedLogs:
    """Of all live processes; a process that is away has opened nothing."""
    counts = dict.fromkeys(Condition, 0)
    opening = scanned_bytes = 0
    cut = []
    for node_id, ids in sorted(image.assigned.items()):
        session = sessions.of_node(node_id)
        for id in sorted(ids):
            status = session.opened.get(id) if session is not None else None
            if status is None:
                opening += session is None or id not in session.failed
                continue
            counts[status.condition] += 1
            scanned_bytes += status.scanned_bytes
            if status.cut_bytes or status.condition is Condition.SUSPECT:
                topic = image.topics[id.topic_id].name
                cut.append(CutLog(topic, id.partition, broker_of(node_id), status.condition, status.cut_bytes))
    return OpenedLogs(
        clean=counts[Condition.CLEAN],
        whole=counts[Condition.WHOLE],
        suspect=counts[Condition.SUSPECT],
        missing=counts[Condition.MISSING],
        opening=opening,
        scanned_bytes=scanned_bytes,
        cut=tuple(cut),
    )


NamedLogs = tuple[tuple[str, int, str], ...]
"""Topic, partition, and what is to be said of the log of that replica."""


def failures_of(image: MetadataImage, sessions: Sessions, node_id: int) -> NamedLogs:
    """The reason of each log that the live process of that node could not open, or whose disk
    failed.
    """
    session = sessions.of_node(node_id)
    return _named(image, session.failed if session is not None else {})


def damaged_on(image: MetadataImage, sessions: Sessions, node_id: int) -> NamedLogs:
    """The damage of each log in which the live process of that node has found some."""
    session = sessions.of_node(node_id)
    return _named(image, {id: words for id, (_, words) in session.damaged.items()} if session is not None else {})


def mended_on(image: MetadataImage, sessions: Sessions, node_id: int) -> NamedLogs:
    """The last damage of each log that the live process of that node has cut off."""
    session = sessions.of_node(node_id)
    return _named(image, session.mended if session is not None else {})


def _named(image: MetadataImage, by_id: Mapping[TopicIdPartition, str]) -> NamedLogs:
    return tuple(
        (image.topics[id.topic_id].name, id.partition, words)
        for id, words in sorted(by_id.items())
        if id.topic_id in image.topics
    )
