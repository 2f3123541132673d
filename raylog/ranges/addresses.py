"""The address that a user's ``cluster`` argument stands for."""

from __future__ import annotations

from typing import Any

from raylog.client.links.address import ClusterAddress
from raylog.errors import ConfigError
from raylog.ranges.given_values import seconds


def address_of(cluster: Any, timeout_s: float = 30) -> ClusterAddress:
    """The address of a cluster: of a ``Cluster``, of anything else that has one, of an address itself.

    None is ``raylog.connect()``, within ``timeout_s`` seconds. ConfigError for what is neither, or no time.
    """
    seconds("timeout_s", timeout_s)
    if cluster is None:
        from raylog import connect

        cluster = connect(timeout_s=timeout_s)
    address = getattr(cluster, "address", cluster)
    if not isinstance(address, ClusterAddress):
        raise ConfigError(f"cluster={cluster!r} is no cluster: give what raylog.init() or raylog.connect() returned")
    return address
