"""The listeners with which an embedded cluster is started: those that are wanted, else those that its
disks have, else Kafka's port on the servers' own address.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from raylog.disks.embedded import existing_disks
from raylog.types import Endpoint
from raylog.wire.listeners import KAFKA_PORT, Listeners, plaintext
from raylog.wire.open_listeners import is_loopback, refuse_open

logger = logging.getLogger("raylog.start")


def checked_openness(
    wanted: Sequence[Listeners | None], home: Path | None, host: str, *, is_insecure: bool, is_trial: bool = False
) -> list[Listeners | None]:
    """What is wanted of each broker. ``home`` None: the disks are not asked. The logger
    "raylog.start" says who may do everything, unless that is a trial.

    Raises ConfigError for a listener that is open to other machines, unless that is meant.
    """
    there = {} if home is None else {disk.broker_id: disk.listeners for disk in existing_disks(home)}
    usual = plaintext(Endpoint(host, KAFKA_PORT))
    started = [each or there.get(broker) or usual for broker, each in enumerate(wanted)]
    for line in refuse_open(started, is_insecure=is_insecure):
        if not is_trial:
            logger.info(line)
    # A Broker whose disk says nothing listens on a loopback address only; who means another one is taken at their word.
    return [usual if each is usual and not is_loopback(host) else wanted[at] for at, each in enumerate(started)]
