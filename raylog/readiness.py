"""Waits until a cluster that was started serves, for as long as something moves
(``raylog.starting``).
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any, Protocol

from raylog.client.links.address import ClusterAddress
from raylog.errors import ClusterError, RaylogError
from raylog.starting import ClusterStanding, Start

_STATUS_S = 10.0

logger = logging.getLogger("raylog")


class StartingCluster(Protocol):
    """What is asked of the cluster (``raylog.cluster.Cluster``)."""

    address: ClusterAddress

    def status(self, timeout_s: float = ...) -> dict[str, Any]: ...

    def quorum(self, timeout_s: float = ...) -> dict[str, Any]: ...


def await_brokers(cluster: StartingCluster, wanted: set[int], start: Start) -> None:
    """Wait until they all serve, for as long as something moves."""
    standing, missing = None, wanted
    while True:
        try:
            status = cluster.status(min(_STATUS_S, max(1.0, start.patience.left_s)))
        except RaylogError as error:
            logger.debug("the controllers do not answer: %s", error)
        else:
            missing = wanted - {broker["id"] for broker in status["brokers"] if broker["live"]}
            standing = ClusterStanding.of(status, wanted)
            start.saw(standing.numbers, standing.words)
        if not missing:
            return
        if start.patience.has_ended:
            break
        time.sleep(0.1)  # asking is work for the very processes that are waited for
    raise ClusterError(
        f"nothing has moved for {start.patience.still_s:g} s: broker {', '.join(map(str, sorted(missing)))} does not serve yet "
        f"({standing.words if standing is not None else 'no controller answers'}); see Ray's logs of the BrokerActor, or "
        "`raylog doctor`. It goes on starting, and the same call again waits for it"
    )


def await_voters(cluster: StartingCluster, count: int, start: Start) -> None:
    """Wait until all controllers that were started vote: one on a blank disk has to catch up first.
    If there is a plan, until those that it names vote and nobody else.
    """
    quorum: dict[str, Any] = {"voters": [], "observers": []}
    while True:
        with contextlib.suppress(RaylogError):
            quorum = cluster.quorum(timeout_s=_STATUS_S)
        there = sorted(voter["broker"] for voter in quorum["voters"] if voter["reachable"])
        planned = quorum.get("planned") or ()
        is_there = there == list(planned) if planned else len(quorum["voters"]) >= count
        if is_there and len(there) == len(quorum["voters"]):
            return
        count = len(planned) or count
        copied = sum(max(0, each["log_end_offset"]) for each in [*quorum["voters"], *quorum["observers"]])
        start.saw((len(there), copied), f"{len(there)} of {count} controllers vote")
        if start.patience.has_ended:
            break
        time.sleep(0.1)
    raise ClusterError(
        f"nothing has moved for {start.patience.still_s:g} s: {len(there)} of {count} controllers vote, those of the brokers "
        f"{there}: see `raylog quorum status`"
    )
