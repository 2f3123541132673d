"""Resolves a user's ``cluster`` argument to an address."""

from __future__ import annotations

from typing import Any

from raylog.client.links.address import ClusterAddress
from raylog.errors import ConfigError
from raylog.ranges.given_values import seconds


def address_of(cluster: Any, timeout_s: float = 30) -> ClusterAddress:
    """Return the address of a cluster, given a ``Cluster``, another object with an address, or an
    address.

    None calls ``raylog.connect()``, with ``timeout_s`` seconds. ConfigError for anything else, and
    for an invalid time.
    """
    seconds("timeout_s", timeout_s)
    if cluster is None:
        from raylog import connect

        cluster = connect(timeout_s=timeout_s)
    address = getattr(cluster, "address", cluster)
    if not isinstance(address, ClusterAddress):
        raise ConfigError(f"cluster={cluster!r} is not a cluster: give what raylog.init() or raylog.connect() returned")
    return address
