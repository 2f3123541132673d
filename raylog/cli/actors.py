"""``raylog actors``: the processes that hold replicas, and which of them holds what."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, ConnectTimeout, Folder, Timeout, find_cluster
from raylog.cli.output import AsJson, notice, print_json, print_table, print_text
from raylog.cli.remote import ClusterApp
from raylog.types import TopicPartition

if TYPE_CHECKING:
    from raylog.client.admin.actors import ActorInfo

app = ClusterApp(
    help="List the actors that hold replicas, add one, move replicas between those of a disk, retire one.",
    no_args_is_help=True,
)

Broker = Annotated[int, typer.Option("--broker", min=0, help="The broker's id.", show_default=False)]
POLL_S = 0.2


@app.command("list")
def list_(
    folder: Folder = None, address: Address = None, timeout: Timeout = CONNECT_TIMEOUT_S, as_json: AsJson = False
) -> None:
    """List the actors of each disk with what they hold, lead and use.

    CPU and busy are shares of one core since the last heartbeat: of the whole process, and of its
    event loop. Hosts that the cluster added by itself are marked automatic.
    """
    with find_cluster(folder, address, timeout).admin() as admin:
        found = admin.list_actors()
    if as_json:
        print_json(
            [
                {
                    "actor": each.actor,
                    "broker": each.broker,
                    "disk": each.disk,
                    "host": each.host,
                    "state": each.state,
                    "pid": each.pid,
                    "replicas": each.replicas,
                    "leaders": each.leaders,
                    "cpu": each.cpu,
                    "memory_bytes": each.memory_bytes,
                    "busy": each.busy,
                    "automatic": each.automatic,
                }
                for each in found
            ]
        )
        return
    for broker, disk in sorted({(each.broker, each.disk) for each in found}):
        rows = [
            [
                *(str(each.actor), _host(each), each.state, str(each.pid or "-"), each.replicas, each.leaders),
                _share(each.busy),
                _share(each.cpu),
                f"{each.memory_bytes / (1 << 20):.0f} MiB" if each.memory_bytes is not None else "-",
            ]
            for each in found
            if (each.broker, each.disk) == (broker, disk)
        ]
        columns = ["actor", "host", "state", "pid", "replicas", "leaders", "busy", "CPU", "memory"]
        print_table(columns, rows, title=f"broker {broker}, {disk}")


def _host(each: ActorInfo) -> str:
    return f"{each.host or '-'}{', automatic' if each.automatic else ''}"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f} %"


@app.command("add")
def add(
    broker: Broker,
    disk: Annotated[str, typer.Option(help="The disk's folder; by default the disk with the fewest actors.")] = "",
    kind: Annotated[str, typer.Option(help="replicas, or coordinator for internal topics.")] = "replicas",
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Start one more actor on a disk. It holds nothing at first. New replicas go to it, and `move`
    moves others there.
    """
    if kind not in ("replicas", "coordinator"):
        raise typer.BadParameter(f"{kind!r}: choose from replicas, coordinator", param_hint="--kind")
    with find_cluster(folder, address, timeout).admin() as admin:
        actor, said = admin.add_actor(broker, disk=disk, kind=kind)  # type: ignore[arg-type]
    if said:
        notice(said)
    if as_json:
        print_json({"actor": actor, "broker": broker, "notice": said or None})
    else:
        print_text(f"Broker {broker} gets actor {actor}; `raylog actors list` shows when it is live")


@app.command("move")
def move(
    partition: Annotated[str, typer.Argument(help="TOPIC-PARTITION.", show_default=False)],
    broker: Broker,
    to: Annotated[int, typer.Option("--to", min=0, help="The actor to move it to.", show_default=False)],
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Move a broker's replica to another actor of the same disk. Nothing is copied.

    If the replica leads, another one that is in sync leads meanwhile. If there is none, the
    partition pauses for a moment.
    """
    topic, _, number = partition.rpartition("-")
    if not topic or not number.isdigit():
        raise typer.BadParameter(f"{partition!r} is no TOPIC-PARTITION, as in orders-0", param_hint="TOPIC-PARTITION")
    with find_cluster(folder, address, timeout).admin() as admin:
        ((_, error),) = admin.move_replicas([(topic, int(number), broker, to)]).items()
    if error is not None:
        raise error
    if as_json:
        print_json({"topic": topic, "partition": int(number), "broker": broker, "actor": to})
    else:
        print_text(f"Actor {to} holds broker {broker}'s replica of {partition} now")


@app.command("retire")
def retire(
    actor: Annotated[int, typer.Argument(min=0, help="The actor, as `list` names it.", show_default=False)],
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for replicas that cannot move yet.")] = 60.0,
    folder: Folder = None,
    address: Address = None,
    connect_timeout: ConnectTimeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Move an actor's replicas to the others of its disk, and end it.

    Exits with 1 if some cannot move before the timeout. They move by themselves as soon as they
    can.
    """
    with find_cluster(folder, address, connect_timeout).admin() as admin:
        deadline = time.monotonic() + timeout
        progress = admin.retire_actor(actor)
        moved: list[TopicPartition] = list(progress.moved)
        while progress.remaining and time.monotonic() < deadline:
            time.sleep(POLL_S)
            progress = admin.retire_actor(actor)
            moved += progress.moved
    if as_json:
        print_json(
            {
                "actor": actor,
                "moved": [{"topic": each.topic, "partition": each.partition} for each in moved],
                "remaining": [
                    {"topic": each.topic, "partition": each.partition, "reason": reason}
                    for each, reason in progress.remaining.items()
                ],
            }
        )
    else:
        print_text(f"Actor {actor}: {len(moved)} replicas moved, {len(progress.remaining)} remain")
        print_text(*(f"  {each.topic}-{each.partition}: {reason}" for each, reason in progress.remaining.items()))
    if progress.remaining:
        raise typer.Exit(1)
