"""An embedded cluster: several brokers on this machine, with their data under one folder.

``init`` makes one disk per broker (``<folder>/broker-<id>``), formatted on first use. It uses the
Ray that runs, or starts a small one on the loopback interface, then has a process of its own
(``raylog.actors.launch``) create the controller; the controller creates everything else. The folder
is the truth: ``init`` on it after a stop, a crash or on a new Ray brings the data back. Calling it
again in the same process returns the same cluster, and in another process attaches to it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

from raylog.client.sync import call
from raylog.cluster import (
    DEFAULT_FOLDER,
    DEFAULT_NAME,
    Cluster,
    address_of_disk,
    clusters,
    clusters_lock,
    running_cluster,
)
from raylog.configs.server_properties import ServerProperties, server_properties
from raylog.disks.disk import Disk, differs, set_listeners, with_controllers, with_same_links
from raylog.disks.embedded import existing_disks, prepare_disks
from raylog.disks.link_file import Links, told_links, wanted_links
from raylog.disks.listener_file import settings_of_listeners, wanted_listeners
from raylog.disks.quorum_disks import check_count, quorum_disks
from raylog.disks.start_lock import only_start
from raylog.disks.started_listeners import checked_openness, openness
from raylog.embedded_controllers import have_controllers, note_controllers, start_controllers
from raylog.errors import ClusterError, ConfigError
from raylog.extras import need
from raylog.launcher import LauncherProcess
from raylog.placement.lending import Folders
from raylog.readiness import await_brokers, await_voters
from raylog.secure_up import finish, make_secure
from raylog.server.start_configs import set_static
from raylog.starting import Start
from raylog.wire.internal_tls import check_links
from raylog.wire.listeners import Listeners
from raylog.wire.private import RegisterDisks

OTHER_LISTENERS = (
    "the cluster runs with other listeners: shut it down before they are changed, or change them broker by broker, with "
    "`raylog node resources`"
)


def init(
    folder: str | Path = DEFAULT_FOLDER,
    *,
    disks: Mapping[str, Folders] | None = None,
    brokers: int = 3,
    disks_per_broker: int = 1,
    controllers: int | None = None,
    racks: Sequence[str] | None = None,
    listeners: Sequence[str] | None = None,
    advertised_listeners: Sequence[str] | None = None,
    configs: Mapping[str, Any] | str | Path | None = None,
    name: str = DEFAULT_NAME,
    host: str = "127.0.0.1",
    insecure: bool = False,
    secure: bool = False,
    client_certificates: bool = False,
    ray_address: str | None = None,
    log_to_driver: bool = False,
    timeout_s: float = 60,
) -> Cluster:
    """Start, or find, an embedded cluster of logical brokers on this machine, its data under ``folder``.

    A second call returns the same cluster, and in another process a handle to it. While another
    process starts the cluster, ``init`` waits for that and says so. Of several disks a broker has the
    folders ``broker-0``, ``broker-0-disk-1``, …; each may be a link to another file system. ``racks``
    gives each broker a rack. ``controllers`` is 1, 3 or 5, each on another broker's disk; three survive the
    death of one, five of two. None keeps what the cluster has or plans to, and gives a new one 1.

    ``listeners`` is where Kafka clients reach the brokers: one ``host:port`` each, or a list of
    ``NAME://host:port``, or one of these from which each looks for free ports. None takes what the disks
    say, and port 9092 of ``host`` for new ones. Clients are given ``advertised_listeners`` instead.
    Listeners that let in everyone who can connect from other machines need ``insecure``. ``secure`` and
    ``client_certificates`` do what they do for ``raylog up``; ``security/client.properties`` tells clients.

    ``configs`` are Kafka's static configs of all brokers, or the path of a ``server.properties``. They
    count at once, behind those of ``admin.alter_configs``, and replace an earlier start's; None keeps these.

    ``ray_address`` None takes a Ray that runs on this machine, or starts one (loopback only, no
    dashboard, a small object store). "local" always starts one; anything else is Ray's address. A
    Ray that is started here prints nothing of its workers unless ``log_to_driver`` is set.

    ``disks``, such as ``{"10.0.0.7": "/data/disk", "10.0.0.8": ["/a", "/b"]}``, has nodes of a Ray
    that runs lend these folders to the cluster instead. Each such node is a broker, and is named by
    its address or the beginning of Ray's id of it. ``controllers`` None means three if there are
    three such nodes. Beside it, ``configs`` (with files of each node), ``name``, ``ray_address`` and ``timeout_s`` count.

    ``init`` waits as long as the start makes progress, which the logger "raylog.start" reports at INFO.
    Raises ConfigError for options that cannot be, DiskError for a folder that cannot be used, RayError for
    a Ray that cannot or says nothing for ``timeout_s`` (at most 30), and ClusterError when nothing moves so long.
    """
    need("ray", "raylog.init()")
    start, told = Start(timeout_s, logging.getLogger("raylog.start").info), _told(configs)
    both: dict[str, Any] = {"controllers": controllers, "configs": told, "name": name, "ray_address": ray_address}
    embedded: dict[str, Any] = {"brokers": brokers, "disks_per_broker": disks_per_broker, "racks": racks, "host": host}
    embedded |= {"listeners": listeners, "advertised_listeners": advertised_listeners}
    embedded |= {"insecure": insecure, "log_to_driver": log_to_driver}
    if disks is not None:
        own = {"folder": folder, "secure": secure, "client_certificates": client_certificates, **embedded}
        return _on_nodes(disks, start, own, **both)
    return _on_this_machine(Path(folder), start, secure, client_certificates, **embedded, **both)


def _on_this_machine(
    folder: Path, start: Start, is_secure: bool, has_client_certificates: bool, **settings: Any
) -> Cluster:
    with only_start(folder.expanduser().resolve(), logging.getLogger("raylog.start").warning):
        if is_secure:
            return _start_secure(folder, start, is_mutual=has_client_certificates, **settings)
        if has_client_certificates:
            raise ConfigError("client_certificates says how secure=True lets clients in: give both")
        return start_cluster(folder, start, **settings)


def _start_secure(folder: Path, start: Start, *, is_mutual: bool, **settings: Any) -> Cluster:
    """``start_cluster`` with listeners, users and an authorizer as ``raylog up --secure`` has them."""
    if settings["insecure"]:
        raise ConfigError("secure and insecure exclude each other: give one of them")
    files = make_secure(folder, settings, "secure=True", "raylog.init(secure=True)", is_mutual=is_mutual)
    cluster = start_cluster(folder, start, **settings)
    security = finish(cluster, files, cluster.status()["brokers"])
    logger = logging.getLogger("raylog.start")
    logger.info("Secure: %s has all that a client needs to be %s", security["client_properties"], security["user"])
    return cluster


def start_cluster(
    folder: str | Path,
    start: Start,
    *,
    brokers: int,
    disks_per_broker: int,
    controllers: int | None,
    racks: Sequence[str] | None,
    listeners: Sequence[str] | None,
    advertised_listeners: Sequence[str] | None,
    configs: ServerProperties,
    host: str,
    ray_address: str | None,
    insecure: bool = False,
    name: str = DEFAULT_NAME,
    log_to_driver: bool = False,
    launcher: LauncherProcess | None = None,
    asked: Future[Cluster | None] | None = None,
) -> Cluster:
    """Do what ``init`` does, with the caller's patience and reports.

    With a ``launcher``, the caller has just started the Ray at ``ray_address``, and this process
    does not connect to it. ``asked`` is what ``running_cluster`` returned, if the caller has asked
    already.
    """
    check_count(controllers)
    timeout_s, home = start.patience.still_s, Path(folder).expanduser().resolve()
    wanted, links = wanted_listeners(brokers, listeners, advertised_listeners, configs), wanted_links(configs, host)
    with clusters_lock:
        running = asked.result() if asked is not None else running_cluster(home, name, brokers * disks_per_broker)
        existing = clusters.get(home)
        if running is not None:
            _check_unchanged(existing_disks(home), wanted, links)
            if configs.is_given:
                set_static(running.address, configs.configs, timeout_s=timeout_s)
            have_controllers(running, controllers, start)
            return existing if existing is not None and existing.address == running.address else running
        started = checked_openness(wanted, home, host, is_insecure=insecure)
        found = prepare_disks(home, brokers, racks, disks_per_broker)
        found = _with_links(set_listeners(found, started), links, host)
        has_run = any(disk.controllers for disk in found)
        homes = quorum_disks(found, None if has_run else controllers)
        owns_ray, endpoints = start_controllers(
            found, homes, start, launcher, host=host, ray_address=ray_address, log_to_driver=log_to_driver
        )
        found = [with_controllers(disk, endpoints) for disk in found]
        cluster = Cluster(address_of_disk(name, found[0]), folder=home, owns_ray=owns_ray, is_started_here=True)
        with start.phase("disks"):
            if configs.is_given:
                set_static(cluster.address, configs.configs, timeout_s=timeout_s)
            order = RegisterDisks(tuple(_registration(disk, host) for disk in found))
            call(cluster.address, order, timeout_s=timeout_s)
        with start.phase("brokers"):
            _await_brokers(cluster, found, start)
        with start.phase("voters"):
            await_voters(cluster, len(homes), start)
            have_controllers(cluster, controllers, start)
        cluster.address = replace(cluster.address, bootstrap=note_controllers(found, cluster.quorum()))
        clusters[home] = cluster
        return cluster


def _await_brokers(cluster: Cluster, disks: Sequence[Disk], start: Start) -> None:
    """Wait for them; then the logger "raylog.start" says who may do everything."""
    await_brokers(cluster, {disk.broker_id for disk in disks}, start)
    logger = logging.getLogger("raylog.start")
    if logger.isEnabledFor(logging.INFO):  # else the status is asked for nothing
        for line in openness(disks, cluster.status()["brokers"]):
            logger.info(line)


def _check_unchanged(disks: Sequence[Disk], wanted: Sequence[Listeners | None], links: Links | None) -> None:
    """Raise ClusterError if a running cluster would need other listeners, or other TLS inside."""
    if any(differs(disk, wanted) for disk in disks):
        raise ClusterError(OTHER_LISTENERS)
    if links is not None and any(disk.links != links for disk in disks):
        raise ClusterError("the cluster runs with other TLS inside: shut it down before that is changed")


def _with_links(disks: Sequence[Disk], wanted: Links | None, host: str) -> list[Disk]:
    """The disks with the TLS inside that is wanted, or that they have. Raises ConfigError if links
    would fail by it.
    """
    found = with_same_links(disks, wanted)
    check_links(found[0].links, host)
    return found


def _on_nodes(
    disks: Mapping[str, Folders],
    start: Start,
    embedded: Mapping[str, Any],
    *,
    controllers: int | None,
    configs: ServerProperties,
    name: str,
    ray_address: str | None,
) -> Cluster:
    """``start_on_nodes``; ConfigError if anything is set that only an embedded cluster has."""
    defaults = {each.name: each.default for each in signature(init).parameters.values()}
    refused = [each for each, value in embedded.items() if value != defaults[each]]
    has_listeners = configs.listeners or configs.advertised_listeners or settings_of_listeners((), configs)
    refused += ["listeners of configs"] if has_listeners else []
    if refused:
        raise ConfigError(f"{', '.join(refused)} cannot be given with disks of nodes: leave that out")
    from raylog.lent_disks import start_on_nodes

    return start_on_nodes(
        disks,
        start,
        controllers=controllers,
        configs=configs.static_configs,
        links=told_links(configs),
        name=name,
        ray_address=ray_address,
    )


def _told(configs: Mapping[str, Any] | str | Path | None) -> ServerProperties:
    told = server_properties(configs)
    for line in told.notices:
        logging.getLogger("raylog.start").warning(line)
    return told


def _registration(disk: Disk, host: str) -> dict[str, Any]:
    return {
        "directory_id": disk.directory_id.bytes,
        "broker_id": disk.broker_id,
        "path": str(disk.path),
        "host": host,
        "rack": disk.rack,
    }
