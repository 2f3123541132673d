"""The brokers' configs that a cluster is started with, made those of all brokers.

What a start says outright (``raylog up --config``, ``init(configs=…)``) is set, whatever was set
before. What a node says of its disks (``raylog node resources --config``) is set only where nobody
has set that config: a change that was made while the cluster ran outlives the nodes' next start, as
it outlives a ``server.properties`` in Kafka.

Both ask the active controller, and are idempotent. They come before the disks are registered, so
that no client reaches a new cluster without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from raylog.client.links.address import ClusterAddress
from raylog.errors import ClusterError

SET_FOR_ALL = "DYNAMIC_DEFAULT_BROKER"


def set_for_all(
    address: ClusterAddress, configs: Mapping[str, str], defaults: Mapping[str, str], *, timeout_s: float
) -> None:
    """Set ``configs`` for all brokers, and of ``defaults`` what nobody has set. ConfigError for
    what can't be set.
    """
    from raylog.client.sync import AdminClient  # not at the top: who starts the provisioner's actor does without it

    wanted = {**configs}
    with AdminClient(address, default_api_timeout_ms=int(timeout_s * 1000)) as admin:
        if defaults:
            known = admin.describe_configs(broker="all")
            set_already = {name for name, entry in known.items() if entry.source.name == SET_FOR_ALL}
            wanted = {name: value for name, value in defaults.items() if name not in set_already} | wanted
        if wanted:
            admin.alter_configs(broker="all", set=wanted)


def agreed(said: Iterable[tuple[str, Mapping[str, str]]]) -> dict[str, str]:
    """What nodes say together; each is named by its folder. ClusterError that names the two that
    contradict each other.
    """
    found: dict[str, tuple[str, str]] = {}
    for where, configs in sorted(said, key=lambda each: each[0]):
        for name, value in configs.items():
            first, of = found.setdefault(name, (value, where))
            if first != value:
                raise ClusterError(
                    f"{name} is {first} for {of} and {value} for {where}, and it is the cluster's as a whole: give all "
                    "nodes the same by `raylog node resources --config`"
                )
    return {name: value for name, (value, _) in found.items()}
