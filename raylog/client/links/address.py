"""Where a cluster is and how to prove that one belongs to it: the small value that every handle is
built from.

A ``ClusterAddress`` pickles, so it travels inside producers and consumers into Ray tasks, actors
and Spark executors. It names the cluster for people (``name``, ``namespace``), for machines
(``cluster_id``) and says where the controllers listened when it was made (``bootstrap``). Endpoints
may go stale: a handle tries each of them, learns newer ones from the answers and, where no
controller answers, asks the servers that it has heard of. The secret proves membership in the
handshake (it is never sent) and never shows in ``repr``. Where links inside have TLS, what that needs
goes with the secret (``wire.internal_tls``).

Who does not know the secret is outside, as every Kafka client is: its address has None in that
place, and ``bootstrap`` lists listeners of brokers. Its clients do what Kafka's protocol allows, and
all their requests pass the Brokers. ``security`` is then how they prove who they are; it shows in no
``repr`` either.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from raylog.errors import ConfigError
from raylog.types import Endpoint
from raylog.version import VERSION
from raylog.wire.client_security import ClientSecurity
from raylog.wire.internal_tls import Secret


def not_from_outside(what: str) -> ConfigError:
    """The error of who asks from outside for what only the cluster's own processes take."""
    return ConfigError(
        f"{what} is not possible through the listeners of brokers, which take only Kafka's requests: where all "
        "processes of the cluster can be reached, give its secret too, as cluster.secret in the file of --command-config "
        "or secret= of raylog.connect() (it is in the file cluster.secret of each disk); or connect on a node of the "
        "cluster, by its folder or through its Ray"
    )


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """A cluster as a client needs it. ``bootstrap`` lists controllers, the likeliest first; without
    ``secret``, listeners of brokers.
    """

    name: str
    namespace: str
    cluster_id: str
    bootstrap: tuple[Endpoint, ...]
    secret: Secret | None = field(repr=False)
    security: ClientSecurity | None = field(default=None, repr=False)
    """What the listeners ask for; None: they are PLAINTEXT. Only without ``secret``."""

    def __post_init__(self) -> None:
        if not self.bootstrap:
            raise ConfigError(f"the address of cluster {self.name!r} names no endpoint: get one from raylog.connect()")
        assert self.secret is None or self.security is None, (
            "processes of the cluster take the secret, and nothing else"
        )

    def __reduce__(self) -> Any:
        endpoints = tuple((each.host, each.port) for each in self.bootstrap)
        return unpickled, (VERSION, self.name, self.namespace, self.cluster_id, endpoints, self.secret, self.security)

    @property
    def is_outside(self) -> bool:
        """Whether it leads to the brokers' listeners, as that of any Kafka client."""
        return self.secret is None


def unpickled(version: str, *values: Any) -> ClusterAddress:
    """An address out of a pickle that raylog ``version`` made. ConfigError for another version than
    this one: what else a handle holds may have changed.
    """
    if version != VERSION:
        raise ConfigError(
            f"this handle was pickled by raylog {version}, and this process has {VERSION}: install the same version, "
            "or connect here with raylog.connect()"
        )
    name, namespace, cluster_id, endpoints, secret, security = values
    return ClusterAddress(name, namespace, cluster_id, tuple(Endpoint(*each) for each in endpoints), secret, security)
