"""``raylog client-metrics``: what Kafka's ``kafka-client-metrics`` does. A subscription says which
metrics which clients push to the brokers, and how often (KIP-714).
"""

from __future__ import annotations

from typing import Annotated

import typer

from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, Folder, Timeout, find_cluster
from raylog.cli.output import AsJson, print_columns, print_json, print_text
from raylog.cli.remote import ClusterApp
from raylog.configs.client_metrics_configs import INTERVAL, MATCH, METRICS
from raylog.errors import ConfigError

app = ClusterApp(help="Subscriptions to the metrics that clients push.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the subscription.", show_default=False)]


@app.command("list")
def list_subscriptions(
    folder: Folder = None, address: Address = None, timeout: Timeout = CONNECT_TIMEOUT_S, as_json: AsJson = False
) -> None:
    """List the names of all subscriptions."""
    with find_cluster(folder, address, timeout).admin() as admin:
        names = admin.list_client_metrics()
    if as_json:
        print_json(names)
    else:
        print_text(*names)


@app.command("describe")
def describe(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Of the subscription; all if none is given.", show_default=False),
    ] = None,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Show what subscriptions ask for, and of which clients."""
    with find_cluster(folder, address, timeout).admin() as admin:
        known = admin.list_client_metrics()
        if name is not None and name not in known:
            raise ConfigError(_unknown(name, known))
        found = {each: admin.describe_client_metrics(each) for each in known if name in (None, each)}
    values = {each: {key: entry.value or "" for key, entry in entries.items()} for each, entries in found.items()}
    if as_json:
        print_json(values)
        return
    print_columns(
        ("Name", "Interval (ms)", "Metrics", "Match"),
        [(each, own[INTERVAL], own[METRICS], own[MATCH]) for each, own in values.items()],
    )


@app.command("set")
def set_subscription(
    name: Name,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metrics", help="First part of metrics' names, or * for all; may be repeated.", show_default=False
        ),
    ] = None,
    interval_ms: Annotated[
        int | None, typer.Option("--interval", help="How often clients push, in milliseconds.", show_default=False)
    ] = None,
    match: Annotated[
        list[str] | None,
        typer.Option(
            "--match",
            help="SELECTOR=REGULAR EXPRESSION, such as client_id=orders-.*; may be repeated. All clients if none is given.",
            show_default=False,
        ),
    ] = None,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Make a subscription, or change what is given of one that is there."""
    values = {} if interval_ms is None else {INTERVAL: str(interval_ms)}
    values |= {key: ",".join(given) for key, given in ((METRICS, metrics), (MATCH, match)) if given}
    if not values:
        raise ConfigError("say what clients shall push, such as --metrics '*'")
    with find_cluster(folder, address, timeout).admin() as admin:
        admin.alter_client_metrics(name, set=values)
    if as_json:
        print_json({"name": name, "set": values})
    else:
        print_text(f"Set {', '.join(values)} of {name}")


@app.command("delete")
def delete_subscription(
    name: Name,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Delete a subscription; its clients end their pushes, or go on with what others ask of them."""
    with find_cluster(folder, address, timeout).admin() as admin:
        known = admin.list_client_metrics()
        if name not in known:
            raise ConfigError(_unknown(name, known))
        admin.alter_client_metrics(name, delete=(METRICS, INTERVAL, MATCH))
    if as_json:
        print_json({"deleted": name})
    else:
        print_text(f"Deleted {name}")


def _unknown(name: str, known: list[str]) -> str:
    return f"there is no subscription {name!r}; there are: {', '.join(known) or 'none'}"
