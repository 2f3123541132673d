"""The features of Kafka that a version switches on, as ApiVersions tells them (KIP-584).

Kafka's tools read ``metadata.version`` there: the release with whose behaviour a cluster agrees.
raylog tells one level of it. Kafka 4 knows none below it, and each one above promises formats of
Kafka's own metadata that raylog keeps in another way. Clients ask for users and delegation tokens
whatever it is. No level can be chosen, so the epoch of what is finalized stays 0.

``transaction.version`` 2 says that the epoch of a transactional producer rises with every end, and
that leaders add partitions to its transaction (KIP-890). A client that does not know it speaks the
protocol before, which is served, too.

``group.version``, ``share.version`` and the others are absent. Clients take that for level 0: no
consumer group protocol of KIP-848, no share groups.
"""

from __future__ import annotations

from typing import NamedTuple

METADATA_VERSION = "metadata.version"
TRANSACTION_VERSION = "transaction.version"
FINALIZED_EPOCH = 0
RELEASES = {7: "3.3-IV3"}
"""What Kafka's tools print for a level of ``metadata.version``."""


class FeatureLevels(NamedTuple):
    """The levels of a feature that a cluster supports, and the one that is in force."""

    name: str
    min_version: int
    max_version: int
    finalized: int


FEATURES = (
    FeatureLevels(METADATA_VERSION, min_version=7, max_version=7, finalized=7),
    FeatureLevels(TRANSACTION_VERSION, min_version=0, max_version=2, finalized=2),
)


def level_text(name: str, level: int) -> str:
    """A level as Kafka's ``kafka-features`` prints it."""
    if name != METADATA_VERSION:
        return str(level)
    return RELEASES.get(level, f"UNKNOWN [{level}]")
