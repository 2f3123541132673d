"""Where a cluster is and how to prove that one belongs to it: the small value that every handle is
built from.

A ``ClusterAddress`` pickles, so it travels inside producers and consumers into Ray tasks, actors
and Spark executors. It names the cluster for people (``name``, ``namespace``), for machines
(``cluster_id``) and says where the controllers listened when it was made (``bootstrap``). Endpoints
may go stale: a handle tries each of them, learns newer ones from the answers and, where no
controller answers, asks the servers that it has heard of. The secret proves membership in the
handshake (it is never sent) and never shows in ``repr``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raylog.errors import ConfigError
from raylog.types import Endpoint


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """A cluster as a client needs it. ``bootstrap`` lists controllers, the likeliest first."""

    name: str
    namespace: str
    cluster_id: str
    bootstrap: tuple[Endpoint, ...]
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not self.bootstrap:
            raise ConfigError(f"the address of cluster {self.name!r} names no endpoint: get one from raylog.connect()")
