"""What recovery did, in words: from what ``raylog status --json`` has under ``logs``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from raylog.errors import RaylogError
from raylog.starting import ClusterStanding, Start

if TYPE_CHECKING:
    from raylog.cluster import Cluster

POLL_S = 0.2


def recovery_words(logs: dict[str, Any]) -> str | None:
    """One sentence on the logs that the cluster's processes have opened; None if all of them are
    new.
    """
    recovered = logs["whole"] + logs["suspect"]
    torn = [each for each in logs["cut"] if each["condition"] == "whole"]
    suspect_cut_bytes = sum(each["cut_bytes"] for each in logs["cut"] if each["condition"] == "suspect")
    found = []
    if torn:
        batch, tail = ("an incomplete batch", "the tail") if len(torn) == 1 else ("incomplete batches", "their tails")
        found.append(f"{len(torn)} cut {batch} of {sum(each['cut_bytes'] for each in torn):,} bytes at {tail}")
    if logs["whole"] > len(torn):
        found.append(f"{logs['whole'] - len(torn):,} whole")
    if logs["suspect"]:
        lost = f" and lost {suspect_cut_bytes:,} bytes at their tails" if suspect_cut_bytes else ""
        found.append(f"{logs['suspect']:,} suspect{lost} (records that were acknowledged may be missing there)")
    sentences = []
    if recovered:
        read = f", {logs['scanned_bytes'] / 1e6:,.1f} MB read" if logs["scanned_bytes"] else ""
        sentences.append(f"recovered {_logs(recovered)}{read}: {'; '.join(found)}")
    if logs["clean"]:
        sentences.append(f"{_logs(logs['clean'])} as a clean stop left {'it' if logs['clean'] == 1 else 'them'}")
    if logs["opening"]:
        sentences.append(f"{_logs(logs['opening'])} not open yet")
    return ", ".join(sentences) or None


def await_recovery(cluster: Cluster, start: Start) -> dict[str, Any]:
    """The cluster's status once every log is open, or what it is when nothing has moved for long."""
    while True:
        try:
            status = cluster.status()
        except RaylogError:
            if start.patience.has_ended:
                raise
        else:
            standing = ClusterStanding.of(status, {broker["id"] for broker in status["brokers"]})
            start.saw(standing.numbers, standing.words)
            if not status["logs"]["opening"] or start.patience.has_ended:
                return status
        time.sleep(POLL_S)


def _logs(count: int) -> str:
    return "1 log" if count == 1 else f"{count:,} logs"
