"""A cluster as its user sees it: the ``Cluster`` that ``connect`` and ``init``
(``raylog.embedded_cluster``) return.

``arrange`` has the nodes of a Ray run a cluster whose brokers are these nodes, each with its own
folders.

``connect`` finds a running cluster by its folder, through Ray or by the listeners of its brokers,
and starts nothing.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any

from raylog.client.admin.inspection import quorum_status
from raylog.client.bootstrap import endpoints_of, inside_address, outside_address, why_no_listener
from raylog.client.config import CommonConfig
from raylog.client.links.address import ClusterAddress, not_from_outside
from raylog.client.links.connections import current, knows_servers, learn_servers
from raylog.client.security.options import security_of, split
from raylog.client.sync import AdminClient, Consumer, Producer, call
from raylog.configs.broker_configs import for_all_brokers
from raylog.disks.disk import (
    Disk,
)
from raylog.disks.embedded import existing_disks
from raylog.disks.quorum_disks import check_count
from raylog.errors import (
    ClientTimeoutError,
    ClosedError,
    ClusterError,
    ConfigError,
    DisconnectedError,
    ProtocolError,
    RayError,
    RaylogError,
)
from raylog.extras import is_installed, need, need_console
from raylog.launcher import LauncherProcess
from raylog.placement.local_ray import (
    is_endpoint,
    is_of_a_raylet,
    running_ray,
)
from raylog.placement.ray_connection import (
    CONNECT_TIMEOUT_S,
    Deadline,
    announce,
    check_connected_ray,
    connect_ray,
    is_connected,
)
from raylog.starting import Start
from raylog.types import ClusterEvent, Endpoint
from raylog.wire.client_security import ClientSecurity
from raylog.wire.internal_tls import Secret, SecretInsideTls
from raylog.wire.listeners import endpoint_text
from raylog.wire.private import LOG_CLOSING_S, ClusterStatusRequest, DescribeQuorum, Shutdown
from raylog.wire.private_watching import DescribeEvents

DEFAULT_FOLDER = "raylog-data"
DEFAULT_NAME = "raylog"
_SHUTDOWN_S = 60.0
_BUSY_S = 30.0
_REFUSALS_S = 2.0  # for which a cluster is asked whose controllers refuse connections: one may be starting again

logger = logging.getLogger("raylog.connect")

logging.getLogger("ray.widgets").setLevel(logging.ERROR)  # in a notebook it asks for a package that nothing here needs

clusters: dict[Path, Cluster] = {}
clusters_lock = threading.Lock()


class Cluster:
    """A running cluster. The handle is cheap and picklable, and any thread may use it. A pickled
    copy does not know the folder and does not own Ray. All its clients have ``options``, unless
    they are given others.

    As a context manager, the process that started the cluster shuts it down at the end. Other
    processes leave it running.
    """

    def __init__(
        self,
        address: ClusterAddress,
        *,
        folder: Path | None = None,
        owns_ray: bool = False,
        is_started_here: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.address = address
        self.options = dict(options or {})
        self.folder = folder
        self._owns_ray = owns_ray
        self._is_started_here = is_started_here
        self._is_shut_down = False

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Cluster, options=self.options), (current(self.address),)

    def __repr__(self) -> str:
        way = "through the brokers at" if self.address.is_outside else "at"
        return f"<raylog cluster {self.address.cluster_id} {way} {', '.join(map(str, self.address.bootstrap))}>"

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_started_here:
            self.shutdown()

    def producer(self, **config: Any) -> Producer:
        """A producer. Options are Kafka's configuration names with ``_`` for ``.``."""
        return Producer(self._live_address(), **self.options | config)

    def consumer(self, **config: Any) -> Consumer:
        """A consumer. Options are Kafka's configuration names with ``_`` for ``.``."""
        return Consumer(self._live_address(), **self.options | config)

    def admin(self, **config: Any) -> AdminClient:
        """An admin client."""
        return AdminClient(self._live_address(), **self.options | config)

    def status(self, timeout_s: float = 10) -> dict[str, Any]:
        """What the controller knows, as plain values: ``brokers``, ``actors`` (with process ids),
        ``topics``, ``controller``.
        """
        reply = call(self._live_address(), ClusterStatusRequest(), timeout_s=timeout_s)
        status: dict[str, Any] = reply.status
        learn_servers(self.address, dict(map(_server, filter(_listens, status["actors"]))))
        return status

    def bootstrap_servers(self, timeout_s: float = 10) -> str:
        """The addresses of the live brokers, in the form of ``bootstrap.servers`` of Kafka clients."""
        if self.address.is_outside:
            with self.admin(default_api_timeout_ms=timeout_s * 1000) as admin:
                brokers = admin.describe_cluster().brokers
            return ",".join(endpoint_text(Endpoint(each.host, each.port)) for each in brokers)
        return ",".join(each["listener"] for each in self.status(timeout_s)["brokers"] if each["listener"])

    def quorum(self, timeout_s: float = 2) -> dict[str, Any]:
        """The controllers, as plain values. The active controller is asked, or any other that
        answers.

        Each controller has up to ``timeout_s`` seconds to answer. Raises ClusterError if none does.
        Through the brokers' listeners only the active one answers; Kafka's protocol does not say
        who can be reached or is recovering (None).
        """
        if self.address.is_outside:
            with self.admin(default_api_timeout_ms=timeout_s * 1000) as admin:
                return quorum_status(admin.describe_quorum(), self.address.cluster_id)
        told: list[dict[str, Any]] = []
        failures: list[str] = []
        known = current(self._live_address()).bootstrap

        def elsewhere() -> Iterator[Endpoint]:
            if told or knows_servers(self.address):  # they say where the active one is: all may have moved
                with suppress(RaylogError):
                    self.status(timeout_s)
            yield from (each for each in current(self.address).bootstrap if each not in known)

        for endpoint in chain(filter(_accepts, known), elsewhere(), (each for each in known if not told)):
            try:
                reply = call(replace(self.address, bootstrap=(endpoint,)), DescribeQuorum(), timeout_s=timeout_s)
            except RaylogError as error:
                failures.append(f"{endpoint}: {error}")
                continue
            told.append(reply.quorum)
            if reply.quorum["told_by"]["is_active"]:
                return told[-1]
        if not told:
            raise ClusterError(f"no controller answers ({'; '.join(failures)}): start the cluster with `raylog up`")
        return max(told, key=lambda quorum: (quorum["leader_epoch"], quorum["high_watermark"]))

    def events(
        self, after: tuple[int, int] | None = None, *, count: int = 1_000, timeout_s: float = 10
    ) -> tuple[list[ClusterEvent], bool]:
        """What has happened to the cluster: the oldest ``count`` events behind the position
        ``after``, or the newest ones; and whether others that were asked for are no longer known.

        Any controller answers; each knows the last 10,000 since its last snapshot. Raises
        ConfigError for a cluster that is reached through its listeners.
        """
        if self.address.is_outside:
            raise not_from_outside("events")
        index, number = (-1, -1) if after is None else after
        reply = call(self._live_address(), DescribeEvents(index, number, count), timeout_s=timeout_s)
        return [ClusterEvent(*each) for each in reply.events], reply.lacks

    def shutdown(self, timeout_s: float | None = None) -> None:
        """Stop every server cleanly, and Ray too if ``init`` started it. The data stays, and
        ``init`` on the folder starts the cluster again.

        ``timeout_s`` None allows a minute, and 20 ms more for each replica, whose log has to be
        flushed. Idempotent. Afterwards every call on this handle raises ClosedError.
        """
        if self._is_shut_down:
            return
        if self.address.is_outside:
            raise not_from_outside("shutting a cluster down")
        if timeout_s is None:
            timeout_s = _SHUTDOWN_S + LOG_CLOSING_S * self._replicas()
        self._is_shut_down = True
        with clusters_lock:
            if self.folder is not None:
                clusters.pop(self.folder, None)
        try:
            call(self.address, Shutdown(), timeout_s=timeout_s)
        except RaylogError as error:
            if not error.retriable:
                raise
        if self._owns_ray:
            import ray

            ray.shutdown()

    def _replicas(self) -> int:
        """How many there are; 0 where nobody says."""
        try:
            status = self.status()
        except RaylogError:
            return 0
        return sum(len(partition["replicas"]) for topic in status["topics"] for partition in topic["partitions"])

    def _live_address(self) -> ClusterAddress:
        if self._is_shut_down:
            again = f"raylog.init({str(self.folder)!r})" if self.folder is not None else "raylog.init() or `raylog up`"
            raise ClosedError(
                f"cluster {self.address.cluster_id} was shut down: {again} starts it again, with its data"
            )
        return self.address


def _listens(actor: dict[str, Any]) -> bool:
    return actor["endpoint"] is not None and actor["state"] == "live"


def _server(actor: dict[str, Any]) -> tuple[int, Endpoint]:
    return actor["node_id"], Endpoint.of(actor["endpoint"])


def use_ray(ray_address: str | None, timeout_s: float) -> None:
    """Connect this process to a Ray that runs, unless it is. Raises RayError for one that cannot be
    used.
    """
    ray_timeout_s = min(CONNECT_TIMEOUT_S, timeout_s)
    if is_connected():
        check_connected_ray(ray_address, ray_timeout_s)
        return
    address = ray_address or running_ray()
    if address is None:
        raise RayError("no Ray runs on this machine: start one with `ray start --head`, or name one elsewhere")
    connect_ray(address, ray_timeout_s)


def arrange(
    disks: int,
    *,
    controllers: int | None = None,
    configs: Mapping[str, Any] | None = None,
    console_port: int | None = None,
    ray_address: str | None = None,
    timeout_s: float = 60,
) -> dict[str, Any]:
    """Have the nodes of a Ray run a cluster on the disks that they advertise, now and when more
    nodes join. Returns at once.

    A new cluster starts when that many blank disks have joined, with that many controllers (1, 3 or
    5; None: three if there are three nodes with disks). A cluster whose disks are there starts again;
    if it is given another number of controllers than it has, it goes there while it serves.
    ``configs`` are static ones of all brokers, as for ``init``. With ``console_port`` the head has a
    console at that port of its loopback interface (docs/console.md). Returns the state as plain
    values; ``missing`` says what the cluster waits for, and is None if every disk serves. Idempotent.
    Raises RayError for a Ray that cannot be used.
    """
    if disks < 1:
        raise ClusterError(f"a cluster has at least one disk, not {disks}")
    check_count(controllers)
    brokers_configs = for_all_brokers(configs) if configs is not None else None
    need("ray", "raylog.arrange()")
    if console_port is not None:
        need_console("a console on the head")
    use_ray(ray_address, timeout_s)
    import ray

    order = {
        "ray_address": str(ray.get_runtime_context().gcs_address),
        "provisioner": {"expected": disks, "controllers": controllers, "configs": brokers_configs},
        "console_port": console_port,
        "timeout_s": timeout_s,
    }
    with LauncherProcess(is_loopback=str(order["ray_address"]).startswith("127.")) as launcher:
        status: dict[str, Any] = launcher.carry_out(order, Start(timeout_s))["provisioner"]
    return status


def arrangement(timeout_s: float = 10) -> dict[str, Any] | None:
    """The state of what ``arrange`` began on the Ray that this process is connected to; None if
    nothing was begun.
    """
    import ray

    from raylog.actors.ray_launcher import PROVISIONER_NAME
    from raylog.placement.resources import NAMESPACE

    try:
        provisioner: Any = ray.get_actor(PROVISIONER_NAME, namespace=NAMESPACE)
        status: dict[str, Any] = ray.get(provisioner.status.remote(), timeout=timeout_s)
    except (ValueError, ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
        return None
    return status


def connect(
    address: str | None = None,
    *,
    ray_address: str | None = None,
    folder: str | Path | None = None,
    bootstrap_servers: str | Sequence[str] | None = None,
    secret: str | None = None,
    name: str = DEFAULT_NAME,
    timeout_s: float = CONNECT_TIMEOUT_S,
    options: Mapping[str, Any] | None = None,
    **more_options: Any,
) -> Cluster:
    """Find a running cluster: the one whose disks are under ``folder``, the one whose brokers
    listen at ``bootstrap_servers``, or the only one on the Ray at ``ray_address``.

    ``bootstrap_servers`` is Kafka's ``"host:9092,…"``. It needs no Ray and no folder, so it works
    from any machine. Everything then passes the brokers' listeners: what Kafka's protocol has no
    request for raises ConfigError. With the cluster's ``secret`` (the file cluster.secret of a
    disk), clients go to the cluster's processes directly, if all of them can be reached.

    The Ray is the one that this process is connected to. If there is none, this process connects to
    the one at ``ray_address`` (``host:port`` of its head). None takes the one that RAY_ADDRESS
    names or that runs on this machine. ``name`` is used in messages.

    ``address`` is either of the two. Several addresses with commas are brokers, and so is any
    ``host:port`` where Ray is not installed. One ``host:port`` is asked: a broker if it answers
    Kafka's ApiVersions within three seconds, else the head of a Ray. Everything else is Ray's.

    ``options`` are for all clients that the handle makes, by Kafka's names, as
    ``{"client.id": "report"}``, or as keywords: ``client_id="report"``. ConfigError for one that
    not every kind of client has. ``security.protocol``, ``ssl.*`` and ``sasl.*`` among them say how
    to get in at the brokers' listeners; the handle keeps what their files hold, and shows none of it.

    Raises RayError for a Ray that cannot be used or does not answer within ``timeout_s`` seconds,
    ClusterError or ClientTimeoutError if no cluster runs there or none answers in that time, and
    SslAuthenticationError or SaslAuthenticationFailedError if it lets this client not in. The logger
    "raylog.connect" reports at level INFO what is tried and which way is taken.
    """
    if sum(each is not None for each in (address, ray_address, folder, bootstrap_servers)) > 1:
        raise ConfigError("a cluster is found by its brokers, by its folder or by its Ray: give one of the three")
    client_options, security = _connecting(options, more_options)
    no_listener: RaylogError | None = None
    if address is not None:
        no_listener = _why_no_broker(address) if security is None else None
        bootstrap_servers, ray_address = (address, None) if no_listener is None else (None, address)
    if bootstrap_servers is not None:
        return _through_brokers(bootstrap_servers, secret, name, timeout_s, client_options, security)
    if security is not None or secret is not None:
        given = "a secret" if secret is not None else "security.protocol"
        raise ConfigError(f"{given} goes with bootstrap_servers: a folder and a Ray say the secret themselves")
    try:
        cluster = find(ray_address, folder=folder, name=name, timeout_s=timeout_s, options=client_options)
    except RayError as error:
        if isinstance(no_listener, ConfigError | None):
            raise
        raise RayError(f"{error}; nor is a broker there: {no_listener}") from error
    if cluster.folder is not None:
        _check_answers(cluster, Deadline.after(timeout_s))
    return cluster


def _why_no_broker(address: str) -> RaylogError | None:
    """None for an address of brokers, else why it is Ray's: a ConfigError if its form says so."""
    if "," in address:
        return None
    if address.startswith("ray://") or not is_endpoint(address):
        return ConfigError(f"{address!r} is no host:port")
    if not is_installed("ray"):
        return None
    (endpoint,) = endpoints_of(address)
    reason = why_no_listener(endpoint)
    if reason is not None:
        logger.info("No broker listens at %s (%s): it is taken for the head of a Ray", address, reason)
    return reason


def _through_brokers(
    bootstrap_servers: str | Sequence[str],
    secret: str | None,
    name: str,
    timeout_s: float,
    options: dict[str, Any],
    security: ClientSecurity | None,
) -> Cluster:
    listeners = ",".join(map(endpoint_text, endpoints_of(bootstrap_servers)))
    announce(f"the brokers at {listeners}", timeout_s)
    address = outside_address(bootstrap_servers, name, timeout_s=timeout_s, security=security)
    if secret is None:
        logger.info("Going through the listeners of the brokers: no secret of the cluster is given")
    else:
        address = inside_address(address, secret, timeout_s=timeout_s)
    return Cluster(address, options=options)


def find(
    ray_address: str | None = None,
    *,
    folder: str | Path | None = None,
    name: str = DEFAULT_NAME,
    timeout_s: float = CONNECT_TIMEOUT_S,
    options: Mapping[str, Any] | None = None,
) -> Cluster:
    """Do what ``connect`` does, but do not ask the cluster: it may have no active controller, or
    not run at all.
    """
    if folder is not None:
        if ray_address is not None:
            raise ConfigError("a cluster is found by its folder or by its Ray's address: give one of the two")
        home = Path(folder).expanduser().resolve()
        disks = existing_disks(home)
        if not disks:
            raise ClusterError(f"no cluster under {home}: start one with raylog.init({str(folder)!r}) or `raylog up`")
        return Cluster(address_of_disk(name, disks[0]), folder=home, options=_common(options))
    need("ray", "finding a cluster without its folder")
    if is_connected():
        deadline = check_connected_ray(ray_address, timeout_s)
    else:
        deadline = connect_ray(ray_address or "auto", timeout_s)
    import ray

    from raylog.placement.resources import NAMESPACE

    where = f"the Ray at {ray.get_runtime_context().gcs_address}"
    names = [each["name"] for each in ray.util.list_named_actors(all_namespaces=True) if each["namespace"] == NAMESPACE]
    controllers = sorted(each for each in names if each.startswith("raylog:controller:"))
    clusters = sorted({each.split(":")[2] for each in controllers})
    if not clusters and (begun := arrangement(deadline.left_s())) is not None:
        raise ClusterError(f"the cluster on {where} does not serve yet: {begun['missing'] or 'it starts'}")
    if len(clusters) != 1:
        found = "no cluster runs" if not clusters else f"{len(clusters)} clusters run"
        raise ClusterError(
            f"{found} on {where}: say which by raylog.connect(folder=…), or start one with raylog.init()"
        )
    cluster_id, endpoints, secret = _credentials(where, controllers, deadline)
    return Cluster(ClusterAddress(name, NAMESPACE, cluster_id, tuple(endpoints), secret), options=_common(options))


def _connecting(*sources: Mapping[str, Any] | None) -> tuple[dict[str, Any], ClientSecurity | None]:
    """Options of every kind of client, and how clients prove who they are. Raises ConfigError."""
    others: list[dict[str, Any]] = []
    of_security: dict[str, str] = {}
    for source in sources:
        rest, found = split(source)
        if twice := sorted(of_security.keys() & found):
            raise ConfigError(f"{twice[0]} is given in options and as a keyword: give it once")
        others.append(rest)
        of_security |= found
    return _common(*others), security_of(of_security)


def _common(*sources: Mapping[str, Any] | None) -> dict[str, Any]:
    """Options of every kind of client, by the names of keywords. Raises ConfigError."""
    options: dict[str, Any] = {}
    for source in sources:
        CommonConfig.parse(source)
        given = {name.replace(".", "_"): value for name, value in (source or {}).items()}
        if twice := sorted(options.keys() & given):
            raise ConfigError(f"{twice[0]} is given in options and as a keyword: give it once")
        options |= given
    return options


def _credentials(where: str, controllers: Sequence[str], deadline: Deadline) -> tuple[str, list[Endpoint], Secret]:
    """What the first controller to answer says of its cluster; the others may be away, or ending."""
    import ray

    from raylog.placement.resources import NAMESPACE

    asked: dict[Any, str] = {}
    failures: list[str] = []
    for each in controllers:
        try:
            actor: Any = ray.get_actor(each, namespace=NAMESPACE)
            asked[actor.credentials.remote()] = each
        except (ValueError, ray.exceptions.RayError):
            failures.append(f"{each} has just ended")
    while asked and not deadline.has_passed:
        ready, _ = ray.wait(list(asked), num_returns=1, timeout=deadline.left_s())
        for answer in ready:
            actor_name = asked.pop(answer)
            try:
                told: tuple[str, list[Endpoint], Secret] = ray.get(answer)
                return told
            except ray.exceptions.RayActorError:
                failures.append(f"{actor_name} has just ended")
            except (RaylogError, ray.exceptions.RayError) as error:
                failures.append(f"{actor_name} cannot start: {str(error).strip().splitlines()[-1]}")
    failures += [f"{each} did not answer within {deadline.timeout_s:g} s" for each in asked.values()]
    raise ClusterError(
        f"the cluster on {where} does not answer ({'; '.join(failures)}): it may be shutting down, or its node be away; "
        "see `ray list actors`, or start it again with `raylog up`"
    )


def running_cluster(home: Path, name: str, count: int) -> Cluster | None:
    """The cluster that this process or another one has started on the folder, if it is alive and
    has that many disks.

    The processes of a killed program may answer for a moment longer than its Ray lives. They are
    waited for, not used. Controllers that accept connections and say nothing are busy, and are
    asked for ``_BUSY_S``. If no controller accepts a connection, no cluster runs.
    """
    disks = existing_disks(home)
    if len(disks) < count or not all(disk.controllers for disk in disks):
        return None
    cluster = Cluster(address_of_disk(name, disks[0]), folder=home)
    busy = Deadline.after(_BUSY_S)
    while True:
        try:
            status = cluster.status(timeout_s=2)
            break
        except ClientTimeoutError:
            if busy.has_passed or not any(map(_accepts, cluster.address.bootstrap)):
                return None
        except RaylogError:  # somebody else's words: the port is another program's now
            return None
    all_live = {broker["id"] for broker in status["brokers"] if broker["live"]} >= {disk.broker_id for disk in disks}
    return cluster if all_live and is_of_a_raylet(status["controller"]["pid"]) else None


def _accepts(endpoint: Endpoint) -> bool:
    """Whether a process listens there. A busy one does, too."""
    try:
        with socket.create_connection((endpoint.host, endpoint.port), timeout=1):
            return True
    except OSError:
        return False


# ------------------------------------------------------------------ disks


def address_of_disk(name: str, disk: Disk) -> ClusterAddress:
    from raylog.placement.resources import NAMESPACE

    if not disk.controllers:
        raise ClusterError(f"{disk.path} does not say where its controller is: start the cluster with raylog.init()")
    secret = disk.link_secret
    if isinstance(secret, SecretInsideTls):
        secret = secret.without_files()  # a handle may travel, and is the same wherever it is
    return ClusterAddress(name, NAMESPACE, disk.cluster_id, disk.controllers, secret)


# ------------------------------------------------------------------ waiting


def _check_answers(cluster: Cluster, deadline: Deadline) -> None:
    """ClusterError if the cluster of a folder does not answer: soon where no controller is reached,
    at the deadline where none serves.
    """
    try:
        try:
            cluster.status(timeout_s=min(_REFUSALS_S, deadline.left_s()))
        except RaylogError as error:
            if isinstance(error.__cause__, DisconnectedError | ProtocolError) or deadline.has_passed:
                raise
            where = ", ".join(map(str, cluster.address.bootstrap))
            announce(f"the cluster under {cluster.folder} at {where}", deadline.timeout_s)
            cluster.status(timeout_s=deadline.left_s())
    except RaylogError as error:
        raise ClusterError(
            f"the cluster under {cluster.folder} does not answer ({error}): start it with raylog.init() or `raylog up`, or see "
            f"`raylog quorum status --folder {cluster.folder}` where its processes run"
        ) from error
