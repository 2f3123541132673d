"""The life of a cluster as its user sees it: ``init``, ``connect`` and the ``Cluster`` that both return.

``init`` makes an embedded cluster under a folder: one disk per broker (``<folder>/broker-<id>``), formatted on first
use. It uses the Ray that runs, or starts a small one on the loopback interface, then has a process of its own
(``raylog.actors.launch``) create the controller; the controller creates everything else. The folder is the truth:
``init`` on it after a stop, a crash or on a new Ray brings the data back. Calling it again in the same process returns
the same cluster, and in another process attaches to it.

``arrange`` has the nodes of a Ray run a cluster whose brokers are these nodes, each with its own folders.

``connect`` finds a running cluster through Ray and returns the same kind of handle; nothing is started.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from raylog.actors.quorum_disks import CONTROLLER_COUNTS, quorum_disks
from raylog.client.address import ClusterAddress
from raylog.client.connections import current, learn_servers
from raylog.client.sync import AdminClient, Consumer, Producer, call
from raylog.errors import ClosedError, ClusterError, DiskError, RayError, RaylogError
from raylog.placement.disks import (
    Disk,
    differs,
    disk_path,
    encode_id,
    format_disk,
    new_id,
    open_disk,
    read_disk,
    set_listeners,
    with_controllers,
)
from raylog.placement.listeners import listeners_of_brokers
from raylog.placement.local_ray import (
    is_child_of_raylet,
    is_endpoint,
    is_loopback,
    may_listen,
    refuses_token,
    running_ray,
)
from raylog.placement.ray_environment import (
    RAY_CLUSTERS,
    RAY_STARTUPS,
    added_environment,
    java_of_the_extra,
    loopback_only,
)
from raylog.types import Endpoint
from raylog.wire.private import ClusterStatus, DescribeQuorum, RegisterDisks, Shutdown

DEFAULT_FOLDER = "raylog-data"
DEFAULT_NAME = "raylog"
OBJECT_STORE_BYTES = 80 * 1024 * 1024  # raylog keeps nothing there; Ray refuses less than 75 MB

logger = logging.getLogger("raylog")

logging.getLogger("ray.widgets").setLevel(logging.ERROR)  # in a notebook it asks for a package that nothing here needs

_clusters: dict[Path, Cluster] = {}
_lock = threading.Lock()


class Cluster:
    """A running cluster. Cheap, picklable (the folder and Ray's ownership stay behind), usable from any thread.

    As a context manager it is shut down at the end by the process that started it; others leave it running.
    """

    def __init__(
        self,
        address: ClusterAddress,
        *,
        folder: Path | None = None,
        owns_ray: bool = False,
        is_started_here: bool = False,
    ) -> None:
        self.address = address
        self.folder = folder
        self._owns_ray = owns_ray
        self._is_started_here = is_started_here
        self._is_shut_down = False

    def __reduce__(self) -> tuple[Any, ...]:
        return (Cluster, (current(self.address),))

    def __repr__(self) -> str:
        return f"<raylog cluster {self.address.cluster_id} at {', '.join(map(str, self.address.bootstrap))}>"

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_started_here:
            self.shutdown()

    def producer(self, **config: Any) -> Producer:
        """A producer; Kafka's configuration names with ``_`` for ``.``."""
        return Producer(self._live_address(), **config)

    def consumer(self, **config: Any) -> Consumer:
        """A consumer; Kafka's configuration names with ``_`` for ``.``."""
        return Consumer(self._live_address(), **config)

    def admin(self, **config: Any) -> AdminClient:
        """An admin client."""
        return AdminClient(self._live_address(), **config)

    def status(self, timeout_s: float = 10) -> dict[str, Any]:
        """What the controller knows: ``brokers``, ``actors`` (with process ids), ``topics``, ``controller``. Plain values."""
        reply = call(self._live_address(), ClusterStatus(), timeout_s=timeout_s)
        status: dict[str, Any] = reply.status
        learn_servers(self.address, dict(map(_server, filter(_listens, status["actors"]))))
        return status

    def bootstrap_servers(self, timeout_s: float = 10) -> str:
        """Where Kafka clients reach the live brokers, as their ``bootstrap.servers`` wants it."""
        return ",".join(each["listener"] for each in self.status(timeout_s)["brokers"] if each["listener"])

    def quorum(self, timeout_s: float = 2) -> dict[str, Any]:
        """The controllers as the active one sees them, or, without an active one, as any that answers does. Plain values.

        Each controller is asked for ``timeout_s`` seconds at most. ClusterError if none answers.
        """
        told: list[dict[str, Any]] = []
        for endpoint in self._live_address().bootstrap:
            try:
                reply = call(replace(self.address, bootstrap=(endpoint,)), DescribeQuorum(), timeout_s=timeout_s)
            except RaylogError as error:
                logger.debug("no controller at %s: %s", endpoint, error)
                continue
            told.append(reply.quorum)
            if reply.quorum["told_by"]["is_active"]:
                return told[-1]
        if not told:
            raise ClusterError(
                f"no controller answers at {', '.join(map(str, self.address.bootstrap))}: start the cluster with `raylog up`"
            )
        return max(told, key=lambda quorum: (quorum["leader_epoch"], quorum["high_watermark"]))

    def shutdown(self, timeout_s: float = 60) -> None:
        """End every server cleanly and, if ``init`` started Ray, Ray too. Data stays; ``init`` on the folder brings it back.

        Idempotent. Afterwards this handle refuses everything with ClosedError.
        """
        if self._is_shut_down:
            return
        self._is_shut_down = True
        with _lock:
            if self.folder is not None:
                _clusters.pop(self.folder, None)
        try:
            call(self.address, Shutdown(), timeout_s=timeout_s)
        except RaylogError as error:
            if not error.retriable:
                raise
        if self._owns_ray:
            import ray

            ray.shutdown()

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
    host, _, port = actor["endpoint"].rpartition(":")
    return actor["node_id"], Endpoint(host, int(port))


def init(
    folder: str | Path = DEFAULT_FOLDER,
    *,
    brokers: int = 3,
    disks_per_broker: int = 1,
    controllers: int | None = None,
    racks: Sequence[str] | None = None,
    listeners: Sequence[str] | None = None,
    advertised_listeners: Sequence[str] | None = None,
    name: str = DEFAULT_NAME,
    host: str = "127.0.0.1",
    ray_address: str | None = None,
    log_to_driver: bool = False,
    timeout_s: float = 60,
) -> Cluster:
    """An embedded cluster of logical brokers on this machine, its data under ``folder``; started if it does not run.

    Called again it returns the same cluster; in another process it returns a handle to the cluster that runs on the folder.
    A broker with several disks has the folders ``broker-0``, ``broker-0-disk-1``, …, any of which may be a link to another file system.
    ``controllers`` is 1 or 3: three survive the death of one (each on another broker's disk). None is what the cluster has, 1 for a new
    one; a cluster of one controller that is given 3 grows, running or not, and never back. ``racks`` gives each broker a rack.
    ``listeners`` is where Kafka clients reach the brokers: one ``host:port`` each, or one from which on each looks for a free port; None is
    what the disks say, port 9092 of ``host`` for new ones. ``advertised_listeners`` is what the clients are told.
    ``ray_address``: None takes a Ray that runs on this machine or starts one (loopback only, no dashboard, a small object store),
    "local" always starts one, anything else is Ray's address. A Ray started here prints nothing of
    its workers unless ``log_to_driver``. Raises DiskError for a folder that can't be used, RayError for a Ray that
    can't, ClusterError when it does not serve within ``timeout_s`` seconds.
    """
    home = Path(folder).expanduser().resolve()
    wanted = listeners_of_brokers(brokers, listeners, advertised_listeners)
    with _lock:
        running = _running(home, name, brokers * disks_per_broker)
        if running is not None and any(differs(disk, wanted) for disk in _existing(home)):
            raise ClusterError("the cluster runs with other listeners: shut it down before they are changed")
        existing = _clusters.get(home)
        if running is not None and len(running.address.bootstrap) >= (controllers or 1):
            return existing if existing is not None and existing.address == running.address else running
        found = set_listeners(prepare_disks(home, brokers, racks, disks_per_broker), wanted)
        homes = quorum_disks(found, controllers)
        owns_ray, gcs_address = _ensure_ray(found, ray_address, log_to_driver)
        endpoints = _launch(gcs_address, found, homes, host, timeout_s)
        found = [with_controllers(disk, endpoints) for disk in found]
        if running is not None:
            owns_ray, is_started_here = (existing._owns_ray, existing._is_started_here) if existing else (False, False)
        else:
            is_started_here = True
        cluster = Cluster(_address(name, found[0]), folder=home, owns_ray=owns_ray, is_started_here=is_started_here)
        call(cluster.address, RegisterDisks(tuple(_registration(disk, host) for disk in found)), timeout_s=timeout_s)
        _await_brokers(cluster, {disk.broker_id for disk in found}, timeout_s)
        _await_voters(cluster, len(homes), timeout_s)
        _clusters[home] = cluster
        return cluster


def arrange(
    disks: int, *, controllers: int | None = None, ray_address: str | None = None, timeout_s: float = 60
) -> dict[str, Any]:
    """Have the nodes of a Ray run a cluster on the disks that they advertise, now and when more nodes join; returns at once.

    A new cluster is made when that many blank disks have joined, with that many controllers (1 or 3; None: three if there are three
    nodes with disks). A cluster whose disks are there comes back. Returns how things stand: ``missing`` says what is waited for, None if
    every disk serves; the rest are plain values. Idempotent. RayError for a Ray that can't be used.
    """
    if disks < 1:
        raise ClusterError(f"a cluster has at least one disk, not {disks}")
    if controllers not in (None, *CONTROLLER_COUNTS):
        raise ClusterError(f"a cluster has one controller or three, not {controllers}")
    import ray

    if not ray.is_initialized():
        address = ray_address or running_ray()
        if address is None:
            raise RayError("no Ray runs on this machine: start one with `ray start --head`, or name one elsewhere")
        _connect_ray(address, log_to_driver=False)
    order = {
        "ray_address": str(ray.get_runtime_context().gcs_address),
        "steward": {"expected": disks, "controllers": controllers},
    }
    status: dict[str, Any] = _run_launcher(order, timeout_s)["steward"]
    return status


def arrangement(timeout_s: float = 10) -> dict[str, Any] | None:
    """How things stand with what ``arrange`` began on the Ray that this process is connected to; None if nothing was."""
    import ray

    from raylog.actors.ray_launcher import STEWARD_NAME
    from raylog.placement.groups import NAMESPACE

    try:
        steward: Any = ray.get_actor(STEWARD_NAME, namespace=NAMESPACE)
        status: dict[str, Any] = ray.get(steward.status.remote(), timeout=timeout_s)
    except (ValueError, ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
        return None
    return status


def connect(name: str = DEFAULT_NAME, *, folder: str | Path | None = None, ray_address: str | None = None) -> Cluster:
    """A handle to a cluster that runs: the one whose disks are under ``folder``, or the only one on the Ray that this process is
    connected to (or connects to by ``ray_address``). ClusterError if there is none."""
    cluster = find(name, folder=folder, ray_address=ray_address)
    if cluster.folder is not None and not _answers(cluster):
        raise ClusterError(
            f"the cluster under {cluster.folder} does not run: start it with raylog.init() or `raylog up`"
        )
    return cluster


def find(name: str = DEFAULT_NAME, *, folder: str | Path | None = None, ray_address: str | None = None) -> Cluster:
    """Like ``connect``, without asking the cluster: it may have no active controller, or not run at all."""
    if folder is not None:
        home = Path(folder).expanduser().resolve()
        disks = _existing(home)
        if not disks:
            raise ClusterError(f"no cluster under {home}: start one with raylog.init({str(folder)!r}) or `raylog up`")
        return Cluster(_address(name, disks[0]), folder=home)
    import ray

    from raylog.placement.groups import NAMESPACE

    if not ray.is_initialized():
        _connect_ray(ray_address or "auto", log_to_driver=False)
    names = [each["name"] for each in ray.util.list_named_actors(all_namespaces=True) if each["namespace"] == NAMESPACE]
    controllers = sorted(each for each in names if each.startswith("raylog:controller:"))
    clusters = sorted({each.split(":")[2] for each in controllers})
    if not clusters and (begun := arrangement()) is not None:
        raise ClusterError(f"the cluster on this Ray does not serve yet: {begun['missing'] or 'it starts'}")
    if len(clusters) != 1:
        found = "no cluster runs" if not clusters else f"{len(clusters)} clusters run"
        raise ClusterError(
            f"{found} on this Ray: say which by raylog.connect(folder=…), or start one with raylog.init()"
        )
    actors: list[Any] = [ray.get_actor(each, namespace=NAMESPACE) for each in controllers]
    told, _ = ray.wait([actor.credentials.remote() for actor in actors], num_returns=1)  # one of them may be away
    cluster_id, endpoints, secret = ray.get(told[0])
    return Cluster(ClusterAddress(name, NAMESPACE, cluster_id, tuple(endpoints), secret))


def _running(home: Path, name: str, count: int) -> Cluster | None:
    """The cluster that this process or another one has started on the folder, if it lives and has that many disks.

    What a killed program leaves behind may answer for a moment longer than its Ray lives; it is waited for, not used.
    """
    disks = _existing(home)
    if len(disks) < count or not all(disk.controllers for disk in disks):
        return None
    cluster = Cluster(_address(name, disks[0]), folder=home)
    try:
        status = cluster.status(timeout_s=2)
    except RaylogError:
        return None
    all_live = {broker["id"] for broker in status["brokers"] if broker["live"]} >= {disk.broker_id for disk in disks}
    return cluster if all_live and is_child_of_raylet(status["controller"]["pid"]) else None


# ------------------------------------------------------------------ disks


def _existing(home: Path) -> list[Disk]:
    paths = sorted(home.glob("broker-*"), key=lambda path: (len(path.name), path.name)) if home.is_dir() else []
    disks = [disk for disk in map(read_disk, paths) if disk is not None]
    foreign = {disk.cluster_id for disk in disks}
    if len(foreign) > 1:
        raise DiskError(
            f"{home} holds disks of {len(foreign)} clusters ({', '.join(sorted(foreign))}): keep one cluster's"
        )
    return disks


def has_run(folder: str | Path) -> bool:
    """Whether a cluster has been started on the disks under ``folder``."""
    return any(disk.controllers for disk in _existing(Path(folder).expanduser().resolve()))


def prepare_disks(home: Path, brokers: int, racks: Sequence[str] | None, disks_each: int = 1) -> list[Disk]:
    """The disks under ``home``: those that are there, and new ones up to the numbers of brokers, and of disks of each, asked for."""
    if brokers < 1:
        raise ClusterError(f"a cluster has at least one broker, not {brokers}")
    if racks is not None and len(racks) != brokers:
        raise ClusterError(f"{len(racks)} racks for {brokers} brokers: give one each")
    disks = _existing(home)
    cluster_id = disks[0].cluster_id if disks else encode_id(new_id())
    secret = disks[0].secret if disks else secrets.token_urlsafe(32)
    taken = {disk.path for disk in disks}
    for broker_id in range(brokers):
        rack = next((disk.rack for disk in disks if disk.broker_id == broker_id), racks[broker_id] if racks else None)
        missing = disks_each - sum(disk.broker_id == broker_id for disk in disks)
        free = [path for number in range(disks_each) if (path := disk_path(home, broker_id, number)) not in taken]
        for path in free[: max(0, missing)]:
            disks.append(
                format_disk(path, cluster_id=cluster_id, broker_id=broker_id, rack=rack, controllers=[], secret=secret)
            )
    in_order = sorted(disks, key=lambda disk: (disk.broker_id, len(disk.path.name), disk.path.name))
    return [open_disk(disk.path, cluster_id=cluster_id) for disk in in_order]


def _address(name: str, disk: Disk) -> ClusterAddress:
    from raylog.placement.groups import NAMESPACE

    if not disk.controllers:
        raise ClusterError(f"{disk.path} does not say where its controller is: start the cluster with raylog.init()")
    return ClusterAddress(name, NAMESPACE, disk.cluster_id, disk.controllers, disk.secret.encode())


def _registration(disk: Disk, host: str) -> dict[str, Any]:
    return {
        "directory_id": disk.directory_id.bytes,
        "broker_id": disk.broker_id,
        "path": str(disk.path),
        "host": host,
        "rack": disk.rack,
    }


# ------------------------------------------------------------------ Ray


def _ensure_ray(disks: Sequence[Disk], ray_address: str | None, log_to_driver: bool) -> tuple[bool, str]:
    """Connect to Ray or start one; returns whether it was started here, and its address."""
    logging.getLogger("ray.widgets").setLevel(
        logging.ERROR
    )  # in a notebook it asks for a package that nothing here needs
    import ray

    owns = False
    if not ray.is_initialized():
        address = ray_address or running_ray()  # not "auto": that also finds Rays that live in other programs
        if address is not None and address != "local":
            _connect_ray(address, log_to_driver=log_to_driver)
        else:
            _start_ray(disks, log_to_driver)
            owns = True
    return owns, str(ray.get_runtime_context().gcs_address)


def _connect_ray(address: str, *, log_to_driver: bool) -> None:
    import ray

    if not may_listen(address):
        raise RayError(f"no Ray at {address}: start it with `ray start --head`, or leave ray_address out")
    local = running_ray()
    endpoint = (local or address) if address == "auto" else address
    if address == local:
        address = "auto"  # only then Ray offers the token that is here
    if _is_refused(endpoint, is_auto=address == "auto"):
        raise _other_token(endpoint)
    try:
        with loopback_only() if is_loopback(local if address == "auto" and local else address) else nullcontext():
            ray.init(address=address, log_to_driver=log_to_driver, logging_level=logging.ERROR)
    except (ray.exceptions.AuthenticationError, ConnectionError) as error:
        if "multiple active Ray" in str(error):
            raise RayError(f"several Rays run here, say which with ray_address=…: {error}") from error
        if isinstance(error, ray.exceptions.AuthenticationError) or "AuthenticationError" in str(error.__cause__):
            raise _other_token(endpoint) from error
        raise RayError(
            f"no Ray at {address} answers: start it with `ray start --head`, or leave ray_address out"
        ) from error
    except RuntimeError as error:
        if "ersion mismatch" in str(error):
            raise RayError(
                f"the Ray at {address} is another version: run both with ray=={ray.__version__} ({error})"
            ) from error
        raise


def _is_refused(address: str, *, is_auto: bool) -> bool:
    """Whether the Ray at a ``host:port`` asks for another token than its client would offer here."""
    import ray

    raylet: Any = ray._raylet
    mode = os.environ.get("RAY_AUTH_MODE")
    has_tls = os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")
    if not is_endpoint(address) or has_tls or raylet.is_k8s_token_auth_enabled():
        return False
    loader = raylet.AuthenticationTokenLoader.instance()
    offers = (is_auto if mode is None else mode.lower() == "token") and loader.has_token(ignore_auth_mode=True)
    return refuses_token(address, loader.get_raw_token(ignore_auth_mode=True) if offers else None)


def _other_token(address: str) -> RayError:
    return RayError(
        f"the Ray at {address} asks for another token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to its own, or copy its "
        "~/.ray/auth_token here"
    )


def _start_ray(disks: Sequence[Disk], log_to_driver: bool) -> None:
    import ray

    from raylog.placement.groups import node_resources

    quiet = {
        **RAY_STARTUPS,
        "RAY_USAGE_STATS_ENABLED": "0",  # Ray's notice about its reports would not be seen
    }
    with loopback_only(), added_environment(quiet), java_of_the_extra():
        ray.init(
            address="local",
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            resources={**node_resources(disk.path for disk in disks)},
            log_to_driver=log_to_driver,
            logging_level=logging.ERROR,
        )


def _launch(
    gcs_address: str, disks: Sequence[Disk], homes: Sequence[Disk], host: str, timeout_s: float
) -> list[Endpoint]:
    order = {
        "ray_address": gcs_address,
        "disks": [str(disk.path) for disk in disks],
        "controller_disks": [str(disk.path) for disk in homes],
        "host": host,
    }
    answer = _run_launcher(order, timeout_s)
    return [Endpoint(host, port) for host, port in answer["controllers"]]


def _run_launcher(order: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """What a process that inherits nothing of this one has to say of its order (``raylog.actors.launch``)."""
    gcs_address = order["ray_address"]
    environment = {**os.environ, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "PYTHONWARNINGS": "ignore"}
    if gcs_address.startswith("127."):
        environment[RAY_CLUSTERS] = "0"
    environment.pop("RAY_RUNTIME_ENV_HOOK", None)
    environment.pop("RAY_JOB_CONFIG_JSON_ENV_VAR", None)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "raylog.actors.launch"],
            input=json.dumps(order),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(
            f"the controller did not start within {timeout_s:.0f} s: see Ray's logs, or `raylog doctor`"
        ) from None
    lines = done.stdout.strip().splitlines()
    answer: dict[str, Any] = (
        json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {"error": done.stderr.strip()[-2000:]}
    )
    if "error" in answer:
        raise ClusterError(f"the controller did not start: {answer['error']}")
    return answer


# ------------------------------------------------------------------ waiting


def _answers(cluster: Cluster) -> bool:
    try:
        cluster.status(timeout_s=2)
    except RaylogError:
        return False
    return True


def _await_brokers(cluster: Cluster, wanted: set[int], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    missing = wanted
    while time.monotonic() < deadline:
        live = {broker["id"] for broker in cluster.status()["brokers"] if broker["live"]}
        missing = wanted - live
        if not missing:
            return
        time.sleep(0.1)  # asking is work for the very processes that are waited for
    raise ClusterError(
        f"after {timeout_s:.0f} s broker {', '.join(map(str, sorted(missing)))} does not serve yet: "
        "see Ray's logs of the BrokerActor, or `raylog doctor`"
    )


def _await_voters(cluster: Cluster, count: int, timeout_s: float) -> None:
    """Wait until all controllers that were started vote: one on a blank disk has to catch up first."""
    deadline = time.monotonic() + timeout_s
    quorum: dict[str, Any] = {"voters": []}
    while time.monotonic() < deadline:
        quorum = cluster.quorum(timeout_s=timeout_s)
        if len(quorum["voters"]) >= count and all(voter["reachable"] for voter in quorum["voters"]):
            return
        time.sleep(0.1)
    there = sorted(voter["broker"] for voter in quorum["voters"] if voter["reachable"])
    raise ClusterError(
        f"after {timeout_s:.0f} s {len(there)} of {count} controllers vote, those of the brokers {there}: see `raylog quorum status`"
    )
