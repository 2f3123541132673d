"""The static configs of brokers: what a cluster is started with.

A start says them (``raylog up --config``, ``init(configs=…)``), and before that the nodes' disks do
(``raylog node resources --config``). They are the cluster's as a whole. As in Kafka, what was set
while the cluster ran counts before them. Where a start says nothing, what the last one said stays.

The active controller is asked, which does nothing if nothing changes. That comes before the disks
are registered, so that no client reaches a new cluster without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kio.schema.errors import ErrorCode

from raylog.client.links.address import ClusterAddress
from raylog.errors import ClusterError, ConfigError, KafkaError
from raylog.metadata.records import StaticSource
from raylog.wire.private import SetStaticConfigsRequest


def set_static(
    address: ClusterAddress,
    configs: Mapping[str, str],
    *,
    source: StaticSource = StaticSource.START,
    replaces: bool = True,
    timeout_s: float,
) -> None:
    """Have ``configs`` be what that source says; ``replaces``: all that it says. ConfigError for
    what can't be set.
    """
    from raylog.client.sync import call  # not at the top: who starts the provisioner's actor does without it

    try:
        call(address, SetStaticConfigsRequest(source.value, dict(configs), replaces), timeout_s=timeout_s)
    except KafkaError as error:
        if error.code is ErrorCode.invalid_config:
            raise ConfigError(str(error)) from None
        raise


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
