"""``raylog up``, ``down`` and ``status``: the life of a cluster from a shell.

``up`` outlives the command: it uses the Ray that runs on this machine, or starts one with ``ray
start``, on the loopback interface, and notes in the folder which session that was, so that ``down``
ends that Ray and no other. ``up`` again is harmless.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylog.cli.connection import CONNECT_TIMEOUT_S, DEFAULT_FOLDER, Address, Folder, Timeout, find_cluster
from raylog.cli.from_outside import print_status_from_outside, print_topics, status_from_outside
from raylog.cli.output import AsJson, notice, print_json, print_table, print_text, progress_bar
from raylog.cli.ray_head import RAY_NOTE, end_ray, start_ray
from raylog.cli.recovery import await_recovery, recovery_words
from raylog.cli.remote import outside
from raylog.disks.embedded import has_run
from raylog.errors import ClusterError
from raylog.extras import need
from raylog.placement.local_ray import running_ray
from raylog.placement.ray_private import messages_to_stderr
from raylog.starting import Start

if TYPE_CHECKING:
    from raylog.cluster import Cluster

REPORT_EVERY_S = 10


_Where = Annotated[Path, typer.Argument(help="The folder for the brokers' disks, created if it does not exist.")]
_BrokerCount = Annotated[int, typer.Option(min=1, help="Logical brokers on this machine.")]
_DisksPerBroker = Annotated[int, typer.Option(min=1, help="Folders broker-0, broker-0-disk-1, …")]
_ControllerCount = Annotated[
    int | None,
    typer.Option(
        help="1, 3 or 5. A cluster that has others goes there while it serves.",
        show_default="what it has; 3 for a new one of three brokers",
    ),
]
_Racks = Annotated[
    list[str] | None, typer.Option(help="The rack of a broker. Give it once per broker.", show_default=False)
]
_Listeners = Annotated[
    list[str] | None,
    typer.Option(
        help="Where Kafka clients reach a broker: host:port, a list (PLAINTEXT://:9092,SSL://:9093), or none. "
        "Once per broker, or once for all: each takes the next free port.",
        show_default="what it has; port 9092 of --host for a new one",
    ),
]
_AdvertisedListeners = Annotated[
    list[str] | None,
    typer.Option(help="The address that Kafka clients are given instead. Give it once per broker.", show_default=False),
]
_BrokerConfigs = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        metavar="NAME=VALUE|FILE",
        help="A broker config, set for all brokers: num.partitions=4. Or a properties file of them. May be repeated.",
        show_default=False,
    ),
]
_Host = Annotated[str, typer.Option(help="The address that the servers listen on.")]
_Secure = Annotated[
    bool,
    typer.Option(
        "--secure",
        help="Listen with SASL_SSL only: makes an authority, certificates and a super user under FOLDER/security, and has ACLs asked.",
    ),
]
_ClientCertificates = Annotated[
    bool,
    typer.Option(
        "--client-certificates",
        help="With --secure: listen with SSL, and clients show certificates of the authority instead of passwords.",
    ),
]
_Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Start a listener that lets in everyone who can connect, from other machines, too. On 127.0.0.1 it needs no such word.",
    ),
]
_DiskCount = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Run brokers on this Ray's nodes, on the disks that they advertise. A new cluster starts when this many disks have joined.",
        show_default=False,
    ),
]
_Wait = Annotated[float, typer.Option(min=0, help="With --disks: seconds to wait until every disk serves.")]
_ConsolePort = Annotated[
    int | None,
    typer.Option(
        "--console-port",
        min=1,
        max=65_535,
        help="With --disks: have a read-only console on the head, at this port of its 127.0.0.1. It wants a password.",
        show_default=False,
    ),
]
_Stall = Annotated[
    float,
    typer.Option(
        min=0,
        help="Give up after this many seconds without progress of any process, log, byte or broker. Ray has at most 30 to answer.",
    ),
]


def up(
    folder: _Where = DEFAULT_FOLDER,
    brokers: _BrokerCount = 3,
    disks_per_broker: _DisksPerBroker = 1,
    controllers: _ControllerCount = None,
    rack: _Racks = None,
    listeners: _Listeners = None,
    advertised_listeners: _AdvertisedListeners = None,
    config: _BrokerConfigs = None,
    host: _Host = "127.0.0.1",
    secure: _Secure = False,
    client_certificates: _ClientCertificates = False,
    insecure: _Insecure = False,
    disks: _DiskCount = None,
    wait: _Wait = 0,
    console_port: _ConsolePort = None,
    address: Address = None,
    timeout: _Stall = 60,
    as_json: AsJson = False,
) -> None:
    """Start the cluster under FOLDER, with the data that is there. Does nothing if it is running.

    Returns when every broker serves and every log is open, however long that takes while there is
    progress, and says what recovery did to the logs. The cluster runs until `raylog down`.

    With --disks, starts a cluster on this Ray's nodes, each of which was started with
    --resources="$(raylog node resources FOLDER…)". Then the command returns at once and says what
    is missing. Nodes may join before and after it; each becomes a broker. Exits with 1 if disks are
    still missing after --wait.
    """
    import raylog.server  # noqa: F401  # refuses a Python that leaves assertions out, before anything starts
    from raylog.cli.configs import refuse_links, started_with

    told = started_with(config)
    _refuse_half_given(secure=secure, client_certificates=client_certificates, disks=disks, console_port=console_port)
    need("ray", "raylog up")
    if disks is not None:
        refuse_links(told)
        _refuse_settings_of_nodes(folder, rack, listeners, advertised_listeners, told.has_listeners, insecure, secure)
        _up_on_nodes(disks, controllers, told.static_configs, console_port, address, wait, timeout, as_json)
        return
    state = _up_on_disks(
        folder,
        timeout,
        address,
        as_json,
        is_secure=secure,
        is_mutual=client_certificates,
        brokers=brokers,
        disks_per_broker=disks_per_broker,
        controllers=controllers,
        racks=rack,
        listeners=listeners,
        advertised_listeners=advertised_listeners,
        configs=told,
        host=host,
        insecure=insecure,
    )
    print_json(state) if as_json else _print_up(state, folder)


def _refuse_half_given(*, secure: bool, client_certificates: bool, disks: int | None, console_port: int | None) -> None:
    """BadParameter for an option that means something beside another one only."""
    if client_certificates and not secure:
        raise typer.BadParameter("--client-certificates says how --secure lets clients in: give both")
    if console_port is not None and disks is None:
        raise typer.BadParameter("--console-port goes with --disks: start `raylog console` beside this cluster")


def _refuse_settings_of_nodes(folder: Path, *given: object) -> None:
    """BadParameter for what each node says itself."""
    if folder != DEFAULT_FOLDER or any(given):
        raise typer.BadParameter("with --disks folders, racks and listeners are what `raylog node resources` was given")


def _up_on_disks(
    folder: Path,
    timeout_s: float,
    address: str | None,
    as_json: bool,
    *,
    is_secure: bool,
    is_mutual: bool,
    **settings: Any,
) -> dict[str, Any]:
    """Start it, or find it; returns what `raylog up --json` prints, once every log is open.
    ``settings``: ``_start_on_disks``'s.
    """
    from raylog import secure_up
    from raylog.disks.link_file import wanted_links
    from raylog.disks.listener_file import wanted_listeners
    from raylog.disks.start_lock import only_start
    from raylog.disks.started_listeners import checked_openness

    files = secure_up.make_secure(folder, settings, is_mutual=is_mutual) if is_secure else None
    names = ("brokers", "listeners", "advertised_listeners", "configs")
    wanted = wanted_listeners(*(settings[name] for name in names))  # before a Ray is started for nothing
    wanted_links(settings["configs"], settings["host"])
    is_running_possible = address is not None or running_ray() is not None
    home = None if is_running_possible else folder.expanduser().resolve()  # what runs already is not started
    checked_openness(wanted, home, settings["host"], is_insecure=settings["insecure"])
    with (
        only_start(folder.expanduser().resolve(), notice),
        _interruption_explained(folder),
        progress_bar(quiet=as_json) as progress,
    ):
        task = progress.add_task("Ray", total=3)
        start = Start(timeout_s, _reporter(lambda words: progress.update(task, description=words), quiet=as_json))
        cluster = _start_on_disks(
            folder,
            start,
            lambda words: progress.update(task, advance=1, description=words),
            address or running_ray(),
            **settings,
        )
        progress.update(task, advance=1, description="logs")
        with start.phase("logs"):
            status = await_recovery(cluster, start)
        progress.update(task, advance=1)
    security = secure_up.finish(cluster, files, status["brokers"]) if files is not None else None
    return {
        "cluster_id": cluster.address.cluster_id,
        "controllers": [str(each) for each in cluster.address.bootstrap],
        "folder": str(Path(folder).resolve()),
        "brokers": status["brokers"],
        "logs": status["logs"],
        "phases_s": {name: round(taken_s, 3) for name, taken_s in start.phases_s.items()},
        **({"security": security} if security is not None else {}),
    }


@contextlib.contextmanager
def _interruption_explained(folder: Path) -> Iterator[None]:
    """Whoever interrupts a start is told what of it runs on."""
    try:
        yield
    except KeyboardInterrupt:
        if (folder / RAY_NOTE).exists():
            notice(
                f"Interrupted. What has started runs on: `raylog up {folder}` goes on with it, `raylog down {folder}` ends it"
            )
        raise


def _start_on_disks(
    folder: Path,
    start: Start,
    advance: Callable[[str], None],
    ray_address: str | None,
    *,
    brokers: int,
    disks_per_broker: int,
    controllers: int | None,
    racks: list[str] | None,
    **settings: Any,
) -> Cluster:
    """The cluster in the folder, started in the Ray that runs, else in one of its own. ``settings``
    are those of ``start_cluster``.
    """
    from raylog.launcher import LauncherProcess

    launcher, asked = None, None
    with contextlib.ExitStack() as ends:
        if ray_address is None:
            _tell_obstacles(folder)
            launcher = ends.enter_context(LauncherProcess(is_loopback=True))  # comes up beside Ray
            beside = ends.enter_context(ThreadPoolExecutor(1))
            asked = beside.submit(_ask_for_running, folder, brokers * disks_per_broker)
            with start.phase("ray"):
                ray_address = start_ray(folder, brokers, racks, disks_per_broker)
        from raylog.embedded_cluster import start_cluster

        advance("controllers")
        if controllers is None and not has_run(folder):
            controllers = 3 if brokers >= 3 else 1
        return start_cluster(
            folder,
            start,
            brokers=brokers,
            disks_per_broker=disks_per_broker,
            controllers=controllers,
            racks=racks,
            ray_address=ray_address,
            launcher=launcher,
            asked=asked,
            **settings,
        )


def _tell_obstacles(folder: Path) -> None:
    """Say what will keep a Ray that is started here from working; it is tried nevertheless."""
    from raylog.cli.checks import obstacles
    from raylog.cli.machine import look_at_limits

    for each in obstacles(look_at_limits([folder])):
        notice(f"{each.check}: {each.found}. To mend it: {each.remedy}")


def _print_up(state: dict[str, Any], folder: Path) -> None:
    from raylog.configs.broker_configs import REPLICATION_FACTOR_UNSET
    from raylog.disks.embedded import existing_disks
    from raylog.disks.started_listeners import openness

    open_to = openness(existing_disks(folder.resolve()), state["brokers"])
    secured = []
    if "security" in state:
        from raylog.secure_up import lines_of

        secured = lines_of(state["security"])
    servers = _bootstrap_servers(state)
    live = sum(1 for each in state["brokers"] if each["live"])
    factor = min(REPLICATION_FACTOR_UNSET, len(state["brokers"]))
    where, option = ("", "") if folder == DEFAULT_FOLDER else (f" {folder}", f" --folder {folder}")
    print_text(
        f"Cluster {state['cluster_id']} is up: {live} broker{'s' * (live != 1)}, data in {state['folder']}",
        *([f"Kafka: bootstrap.servers={servers}"] if servers else []),
        *(f"Open:  {line}" for line in open_to),
        *([f"Logs:  {words}"] if (words := recovery_words(state["logs"])) else []),
        f"Next:  raylog topics create events --partitions 6 --replication-factor {factor}{option}",
        f"       raylog status{option}",
        f"       raylog down{where}",
        *secured,
    )


def _ask_for_running(folder: Path, count: int) -> Cluster | None:
    """The cluster that runs on the folder. Runs beside the start of Ray: it may take two seconds,
    and so may its imports.
    """
    from raylog.cluster import DEFAULT_NAME, running_cluster

    return running_cluster(Path(folder).expanduser().resolve(), DEFAULT_NAME, count)


def _reporter(draw: Callable[[str], None], *, quiet: bool) -> Callable[[str], None]:
    """Draws how far a start is on a terminal; elsewhere says it in a line now and then."""
    said_at = time.monotonic()

    def report(words: str) -> None:
        nonlocal said_at
        draw(words)
        if not quiet and not sys.stderr.isatty() and time.monotonic() > said_at + REPORT_EVERY_S:
            said_at = time.monotonic()
            notice(words)

    return report


def _up_on_nodes(
    disks: int,
    controllers: int | None,
    configs: Mapping[str, str] | None,
    console_port: int | None,
    address: str | None,
    wait_s: float,
    timeout_s: float,
    as_json: bool,
) -> None:
    from raylog.cluster import arrange, arrangement

    deadline = time.monotonic() + wait_s
    state = arrange(
        disks,
        controllers=controllers,
        configs=configs,
        console_port=console_port,
        ray_address=address,
        timeout_s=timeout_s,
    )
    console = state.get("console")
    messages_to_stderr()
    told = None
    while state["missing"] is not None and time.monotonic() < deadline:
        if state["missing"] != told:
            told = state["missing"]
            notice(f"Waiting (up to {wait_s:g} s): {told}")
        time.sleep(0.2)
        state = arrangement() or state
    if console is not None:
        state = {**state, "console": console}
    if as_json:
        print_json(state)
    else:
        for disk in state["disks"]:
            broker = "blank" if disk["broker"] is None else f"broker {disk['broker']}"
            print_text(f"{disk['host']}:{disk['path']}: {broker}{'' if disk['registered'] else ', not serving yet'}")
        if state["missing"] is None:
            print_text(f"Cluster {state['cluster_id']} is up: {len(state['disks'])} disks")
        else:
            print_text(
                f"Missing: {state['missing']}", "It goes on by itself; `raylog up --disks …` again tells how far it is."
            )
        if console is not None:
            _print_console(console)
    if wait_s and state["missing"] is not None:
        raise typer.Exit(1)


def _print_console(console: Mapping[str, Any]) -> None:
    where = f"http://127.0.0.1:{console['port']}/ on {console['host']}, the head's machine"
    waits = "" if console["problem"] is None else f" (it waits: {console['problem']})"
    print_text(
        f"Console: {where}{waits}", f"         any user name; the password is in {console['password_file']} there"
    )


def down(
    folder: Annotated[Path, typer.Argument(help="The folder that `raylog up` was given.")] = DEFAULT_FOLDER,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Stop the cluster cleanly. Its data stays; `raylog up` brings it back.

    Ends Ray, too, if `raylog up` started it and the folder is given. Through the listeners of
    brokers it takes the cluster's secret. Exits with 1 if no cluster runs there.
    """
    if outside().bootstrap_servers is not None:
        cluster = find_cluster(folder if folder != DEFAULT_FOLDER else None, address, timeout)
        cluster.shutdown()
        _print_down(cluster.address.cluster_id, f"Cluster {cluster.address.cluster_id}", ended=False, as_json=as_json)
        return
    cluster_id = None
    is_here = folder != DEFAULT_FOLDER or any(folder.glob("broker-*/meta.properties")) or (folder / RAY_NOTE).exists()
    try:
        cluster = find_cluster(folder if address is None and is_here else None, address, timeout)
        cluster_id = cluster.address.cluster_id
        cluster.shutdown()
    except ClusterError:
        if not end_ray(folder):
            raise
        ended = True  # its servers were gone already, the Ray that `up` had started was not
    else:
        ended = end_ray(folder)
    what = f"Cluster {cluster_id}" if cluster_id else f"What `raylog up` had started for {folder}"
    _print_down(cluster_id, what, ended=ended, as_json=as_json)


def _print_down(cluster_id: str | None, what: str, *, ended: bool, as_json: bool) -> None:
    if as_json:
        print_json({"cluster_id": cluster_id, "ray_ended": ended})
    else:
        print_text(f"{what} is down" + (", and the Ray that it had started" if ended and cluster_id else ""))


def status(
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    watch: Annotated[bool, typer.Option("--watch", help="Print again every second until interrupted.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show brokers, processes and topics as the controller knows them.

    Exits with 1 if a broker is away or a partition has no leader. Through the listeners of brokers
    it shows what Kafka's requests tell: no processes, and no warnings.
    """
    cluster = find_cluster(folder, address, timeout)
    is_outside = cluster.address.is_outside
    while True:
        state = status_from_outside(cluster) if is_outside else cluster.status()
        if as_json:
            print_json(state)
        elif is_outside:
            print_status_from_outside(state)
        else:
            _print_status(cluster.address.cluster_id, state)
        if not watch:
            break
        time.sleep(1)
    if not all(broker["live"] for broker in state["brokers"]) or state["leaderless"]:
        raise typer.Exit(1)


def _print_status(cluster_id: str, state: dict[str, Any]) -> None:
    controller = state["controller"]
    print_text(
        f"Cluster {cluster_id}: controller of broker {controller['broker']} at {controller['endpoint']}, "
        f"epoch {controller['epoch']}, process {controller['pid']}",
        "",
    )
    processes: dict[int, list[dict[str, Any]]] = {}
    for actor in state["actors"]:
        processes.setdefault(actor["broker"], []).append(actor)
    rows = []
    for broker in state["brokers"]:
        own = [actor for actor in processes.get(broker["id"], []) if actor["state"] == "live"]
        leads = sum(part["leader"] == broker["id"] for topic in state["topics"] for part in topic["partitions"])
        rows.append(
            [
                broker["id"],
                broker["rack"] or "-",
                ("draining" if broker["draining"] else "live") if broker["live"] else "away",
                len(own),
                sum(actor["replicas"] for actor in own),
                leads,
                ", ".join(path + " (offline)" * (path in broker["offline_disks"]) for path in broker["disks"]),
            ]
        )
    print_table(["broker", "rack", "state", "processes", "replicas", "leads", "disks"], rows)
    if servers := _bootstrap_servers(state):
        print_text("", f"Kafka clients: bootstrap.servers={servers}")
    print_text("")
    print_topics(state)
    if words := recovery_words(state["logs"]):
        print_text("", f"Logs: {words}")
    _print_warnings(state)


def _print_warnings(state: dict[str, Any]) -> None:
    for broker in state["brokers"]:
        for path, reason in broker["offline_disks"].items():
            notice(f"broker {broker['id']}: the disk {path} is offline: {reason}")
    for actor in state["actors"]:
        for failure in actor["failures"]:
            notice(f"broker {actor['broker']}, process {actor['pid']}: {failure}")
        for damage in actor["damaged"]:
            notice(f"broker {actor['broker']}: DAMAGED log {damage}")
        for damage in actor["mended"]:
            notice(f"broker {actor['broker']}: mended, copied from the leader: {damage}")
    if state["unclean_elections"]:
        notice(f"{state['unclean_elections']} unclean elections: acknowledged records may be lost")


def _bootstrap_servers(state: dict[str, Any]) -> str:
    return ",".join(each["listener"] for each in state["brokers"] if each["listener"])
