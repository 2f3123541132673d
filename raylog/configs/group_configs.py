"""What Apache Kafka can be told of one group, and raylog cannot: by name, with the reason.

They are the configs of groups whose protocol has the coordinator decide (KIP-848, KIP-932,
KIP-1071). raylog's groups have the classic protocol, in which each member says its own timeouts and
one of the members assigns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_CLASSIC: Final = "groups have the classic protocol"
_ASSIGNED: Final = f"{_CLASSIC}: one of the members assigns, and in each rebalance"
_SHARE: Final = "share groups are not there: neither is what they are told"
_STREAMS: Final = f"{_CLASSIC}, those of Kafka Streams as well: their application is told"

REFUSED_GROUP_CONFIGS: Final[Mapping[str, str]] = {
    "consumer.assignment.interval.ms": _ASSIGNED,
    "consumer.assignor.offload.enable": _ASSIGNED,
    "consumer.heartbeat.interval.ms": f"{_CLASSIC}: each member is told how often, by its own heartbeat.interval.ms",
    "consumer.session.timeout.ms": (
        f"{_CLASSIC}: each member says its own session.timeout.ms, "
        "within the brokers' group.min.session.timeout.ms and group.max.session.timeout.ms"
    ),
    "share.assignment.interval.ms": _SHARE,
    "share.assignor.offload.enable": _SHARE,
    "share.auto.offset.reset": _SHARE,
    "share.delivery.count.limit": _SHARE,
    "share.heartbeat.interval.ms": _SHARE,
    "share.isolation.level": _SHARE,
    "share.partition.max.record.locks": _SHARE,
    "share.record.lock.duration.ms": _SHARE,
    "share.renew.acknowledge.enable": _SHARE,
    "share.session.timeout.ms": _SHARE,
    "streams.assignment.interval.ms": _ASSIGNED,
    "streams.assignor.offload.enable": _ASSIGNED,
    "streams.heartbeat.interval.ms": f"{_STREAMS} heartbeat.interval.ms",
    "streams.initial.rebalance.delay.ms": f"{_CLASSIC}: all groups wait for group.initial.rebalance.delay.ms",
    "streams.num.standby.replicas": f"{_STREAMS} num.standby.replicas",
    "streams.session.timeout.ms": f"{_STREAMS} session.timeout.ms",
}
"""Those of Apache Kafka 4.3, each with why it has no meaning here."""

NO_GROUP_CONFIGS: Final = (
    f"groups have no configs: {_CLASSIC}, in which each consumer says its own, "
    "such as session.timeout.ms and heartbeat.interval.ms"
)


def why_not(name: str) -> str:
    """Why nobody can set this of a group."""
    reason = REFUSED_GROUP_CONFIGS.get(name)
    return f"Unknown group config name: {name}" if reason is None else f"{name} cannot be set of a group: {reason}"
