"""Places Spark executors on Ray nodes: one for every live broker, on the node of its servers.

``bundles`` computes the bundles of one placement group, or what is missing for them, from the state
of Ray and the cluster. Each asks for a share of its node's own resource ``node:<ip>``, which no
other node has; RayDP uses the bundles in order. Executors share a node's CPUs as Spark's threads
do: if they want more CPUs than the node has, each reserves its share, so a laptop with two cores
can run three brokers with an executor each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raylog.errors import ClusterError, ConfigError

NODE_SHARE = 0.001
MEMORY_BYTES_MIN = 512 << 20
_SUFFIXES = {"k": 10, "m": 20, "g": 30, "t": 40}
_CPU_STEP = 0.1


@dataclass(frozen=True, slots=True)
class Room:
    """What a Ray node currently has for executors."""

    cpus: float
    memory_bytes: float


def memory_bytes(name: str, text: str | int) -> int:
    """Return the bytes of a JVM's memory written as in Spark: ``1g``, ``512m``. ConfigError if
    invalid or below Spark's minimum.
    """
    plain = str(text).strip().lower().removesuffix("b")
    shift = _SUFFIXES.get(plain[-1:])
    digits = plain if shift is None else plain[:-1]
    if not digits.isdecimal():
        raise ConfigError(f"{name}={text!r}: write it as 1g or 512m")
    size = int(digits) << (shift or 0)
    if size < MEMORY_BYTES_MIN:
        raise ConfigError(f"{name}={text!r}: Spark does not start with less than 512m")
    return size


def bundles(
    hosts: Mapping[int, str], rooms: Mapping[str, Room], *, cores: int, memory: int
) -> tuple[list[dict[str, float]], float]:
    """The bundles for brokers on these hosts, in their order, and the Ray CPUs that each executor
    reserves.

    ``rooms``: by the address of the Ray node. ClusterError names what is missing and where,
    ConfigError an invalid value.
    """
    if not hosts:
        raise ClusterError("no broker is alive: check with `raylog status` that the cluster is up")
    strangers = sorted({host for host in hosts.values() if host not in rooms})
    if strangers:
        raise ClusterError(
            f"the brokers at {', '.join(strangers)} are not on nodes of this Ray: connect to the Ray that runs the cluster"
        )
    counts = Counter(hosts.values())
    for host, count in sorted(counts.items()):
        room = rooms[host]
        if room.memory_bytes < count * memory:
            raise ClusterError(
                f"{count} executor{'s' * (count > 1)} of {memory >> 20} MB do not fit on {host}, where Ray has "
                f"{int(room.memory_bytes) >> 20} MB to give: ask for a smaller executor_memory, or free some"
            )
        if room.cpus < _CPU_STEP * count:
            raise ClusterError(f"Ray has {room.cpus:g} CPUs to give on {host}, none for {count} executors: free some")
    share = min(rooms[host].cpus / count for host, count in counts.items())
    cpus = cores if share >= cores else int(share / _CPU_STEP) * _CPU_STEP
    return [{"CPU": cpus, "memory": memory, f"node:{host}": NODE_SHARE} for _, host in sorted(hosts.items())], cpus


def broker_hosts(actors: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Return the host of each broker that has a live server, from a cluster's status."""
    found: dict[int, str] = {}
    for actor in actors:
        if actor["state"] == "live" and actor["endpoint"] is not None:
            found.setdefault(int(actor["node_id"]) >> 16, str(actor["endpoint"]).rpartition(":")[0])
    return found
