"""The listeners with which an embedded cluster is started: those that are wanted, else those that its
disks have, else Kafka's port on the servers' own address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raylog.disks.disk import Disk
from raylog.disks.embedded import existing_disks
from raylog.types import Endpoint
from raylog.wire.listeners import KAFKA_PORT, Listeners, plaintext
from raylog.wire.open_listeners import as_bound, default_listeners, is_loopback, refuse_open


def openness(disks: Sequence[Disk], brokers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Who may do everything at the listeners that these disks name, with the ports that they got.
    ``brokers`` as the cluster's status has them.
    """
    told = {each["id"]: each["listeners"] for each in brokers}
    listeners = {disk.broker_id: disk.listeners or default_listeners("127.0.0.1") for disk in disks}
    return refuse_open((as_bound(each, told.get(broker, ())) for broker, each in listeners.items()), is_insecure=True)


def checked_openness(
    wanted: Sequence[Listeners | None], home: Path | None, host: str, *, is_insecure: bool
) -> list[Listeners | None]:
    """What is wanted of each broker. ``home`` None: the disks are not asked.

    Raises ConfigError for a listener that is open to other machines, unless that is meant.
    """
    there = {} if home is None else {disk.broker_id: disk.listeners for disk in existing_disks(home)}
    usual = plaintext(Endpoint(host, KAFKA_PORT))
    started = [each or there.get(broker) or usual for broker, each in enumerate(wanted)]
    refuse_open(started, is_insecure=is_insecure)
    # A Broker whose disk says nothing listens on a loopback address only; who means another one is taken at their word.
    return [usual if each is usual and not is_loopback(host) else wanted[at] for at, each in enumerate(started)]
