"""``raylog top``: who writes, reads, lags and works, each second anew."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, Folder, Timeout, find_cluster
from raylog.cli.output import AsJson, notice, print_json
from raylog.cli.top_figures import ACTOR_ORDERS, TOPIC_ORDERS, PageOrder, Row, figures
from raylog.cli.top_looks import Look, take_look
from raylog.cli.top_page import page
from raylog.errors import ClientTimeoutError, ClusterError, DisconnectedError, RaylogError

if TYPE_CHECKING:
    from raylog.client.sync import AdminClient
    from raylog.cluster import Cluster

Key = Callable[[float], str]
"""Waits at most so many seconds for a key; empty: none was pressed."""


class SortBy(StrEnum):
    """The orders of topics, then those of actors."""

    IN = "in"
    RECORDS = "records"
    OUT = "out"
    NAME = "name"
    CPU = "cpu"
    MEMORY = "memory"
    DELAY = "delay"


assert set(SortBy) == {*TOPIC_ORDERS, *ACTOR_ORDERS}
ORDER_OF_KEY = {"i": "in", "o": "out", "r": "records", "n": "name", "c": "cpu", "m": "memory", "d": "delay"}
QUIT = "q"
_ANSWER_MS = 10_000


def top(
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, metavar="SECONDS", help="How often, and over which time rates are.")
    ] = 1.0,
    sort: Annotated[
        list[SortBy] | None,
        typer.Option("--sort", help="By what topics and actors are sorted; may be given for each.", show_default=False),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Show it once, after one interval, and end.")] = False,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Show throughput, lag of groups, the slowest followers, the busiest processes, brokers and leaders.

    A key sorts, q or Ctrl-C ends. With --json, or into a pipe, every interval is one document or
    page. Through --bootstrap-server, rates in are the growth of logs; rates out and processes are
    not known there.
    """
    order = PageOrder()
    for each in sort or ():
        order = order.by(each.value)
    cluster = find_cluster(folder, address, timeout)
    with cluster.admin(default_api_timeout_ms=_ANSWER_MS) as admin:
        if once or as_json or not (sys.stdout.isatty() and sys.stdin.isatty()):
            _print(cluster, admin, order, interval, once=once, as_json=as_json)
        else:
            _show(cluster, admin, order, interval)


def _print(
    cluster: Cluster, admin: AdminClient, order: PageOrder, interval_s: float, *, once: bool, as_json: bool
) -> None:
    before = take_look(cluster, admin)
    console = Console()
    while True:
        time.sleep(interval_s)
        try:
            now = take_look(cluster, admin)
        except RaylogError as error:
            if once or not _may_pass(error):
                raise
            notice(f"{error}; asking again")
            continue
        document = figures(before, now, order)
        if as_json:
            print_json(document)
        else:
            console.print(page(document, order, height=None, note=" "))
        sys.stdout.flush()
        if once:
            return
        before = now


def _show(cluster: Cluster, admin: AdminClient, order: PageOrder, interval_s: float) -> None:
    from rich.live import Live

    with keys() as next_key, Live(screen=True, auto_refresh=False) as live:

        def draw(document: Row, order: PageOrder, note: str) -> None:
            live.update(page(document, order, height=live.console.height, note=note), refresh=True)

        run(lambda: take_look(cluster, admin), draw, next_key, order, interval_s)


def run(
    look: Callable[[], Look],
    draw: Callable[[Row, PageOrder, str], None],
    next_key: Key,
    order: PageOrder,
    interval_s: float,
) -> None:
    """Until the key that quits. A cluster that does not answer is asked again; its last figures stay."""
    before, now, note = look(), None, ""
    due_s = time.monotonic() + interval_s
    while True:
        key = next_key(max(0.0, due_s - time.monotonic()))
        if key == QUIT:
            return
        if key in ORDER_OF_KEY:
            order = order.by(ORDER_OF_KEY[key])
        elif not key:
            due_s = time.monotonic() + interval_s
            try:
                newest = look()
                before, now, note = now or before, newest, ""
            except RaylogError as error:
                if not _may_pass(error):
                    raise
                note = f"{error}; asking again"
        if now is not None:
            draw(figures(before, now, order), order, note)


def _may_pass(error: RaylogError) -> bool:
    """Whether asking again may help: the cluster is failing over, or starting."""
    return error.retriable or isinstance(error, ClusterError | ClientTimeoutError | DisconnectedError)


@contextmanager
def keys() -> Iterator[Key]:
    """Keys of the terminal as they are pressed, not shown. Meanwhile Ctrl-C still interrupts."""
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def next_key(within_s: float) -> str:
        readable, _, _ = select.select([terminal], [], [], within_s)
        if not readable:
            return ""
        return os.read(terminal, 1).decode("latin-1").lower() or QUIT  # the terminal is gone

    tty.setcbreak(terminal)
    try:
        yield next_key
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
