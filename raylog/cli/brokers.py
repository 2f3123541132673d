"""``raylog brokers``: what is done to a whole broker before its machine is touched, and afterwards."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from raylog.cli.connection import Address, Folder, find_cluster
from raylog.cli.output import AsJson, notice, print_json, print_table, print_text

app = typer.Typer(help="List brokers, take leaders away from one, and give them back.", no_args_is_help=True)

Broker = Annotated[int, typer.Argument(min=0, help="The broker's id.", show_default=False)]
POLL_S = 0.2


@app.command("list")
def list_(folder: Folder = None, address: Address = None, as_json: AsJson = False) -> None:
    """List brokers with the replicas that they hold and the partitions that they lead."""
    state = find_cluster(folder, address).status()
    brokers = []
    for broker in state["brokers"]:
        parts = [part for topic in state["topics"] for part in topic["partitions"]]
        brokers.append(
            {
                "broker": broker["id"],
                "rack": broker["rack"],
                "live": broker["live"],
                "draining": broker["draining"],
                "replicas": sum(broker["id"] in part["replicas"] for part in parts),
                "leads": sum(part["leader"] == broker["id"] for part in parts),
            }
        )
    if as_json:
        print_json(brokers)
        return
    rows = []
    for each in brokers:
        state_name = "away" if not each["live"] else "draining" if each["draining"] else "live"
        rows.append([each["broker"], each["rack"] or "-", state_name, each["replicas"], each["leads"]])
    print_table(["broker", "rack", "state", "replicas", "leads"], rows)


@app.command("drain")
def drain(
    broker: Broker,
    timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for partitions that nobody else can lead yet.")
    ] = 60.0,
    folder: Folder = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Move every leader away from a broker and keep them away until `undrain`: then it can be stopped without anybody waiting.

    Its replicas stay and follow. Exits with 1 if it still leads something after the timeout.
    """
    with find_cluster(folder, address).admin() as admin:
        deadline = time.monotonic() + timeout
        progress = admin.drain_broker(broker)
        moved = list(progress.moved)
        if progress.remaining and timeout:
            notice(f"{len(progress.remaining)} partitions have nobody else in sync to lead them; waiting")
        while progress.remaining and time.monotonic() < deadline:
            time.sleep(POLL_S)
            before = set(progress.remaining)
            progress = admin.drain_broker(broker)
            moved += sorted(before - set(progress.remaining))
    if as_json:
        print_json(
            {
                "broker": broker,
                "moved": [{"topic": each.topic, "partition": each.partition} for each in moved],
                "remaining": [{"topic": each.topic, "partition": each.partition} for each in progress.remaining],
            }
        )
    else:
        print_text(f"Broker {broker} is drained: {len(moved)} leaders moved, {len(progress.remaining)} remain")
        print_text(*(f"  {each.topic}-{each.partition}: nobody else is in sync" for each in progress.remaining))
    if progress.remaining:
        raise typer.Exit(1)


@app.command("undrain")
def undrain(broker: Broker, folder: Folder = None, address: Address = None, as_json: AsJson = False) -> None:
    """Let a broker lead again. Its leaders come back within minutes, or at once by `raylog leader-election`."""
    with find_cluster(folder, address).admin() as admin:
        admin.undrain_broker(broker)
    if as_json:
        print_json({"broker": broker, "draining": False})
    else:
        print_text(f"Broker {broker} may lead again; to bring its leaders back now:")
        print_text("  raylog leader-election --election-type preferred --all-topic-partitions")
