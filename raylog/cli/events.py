"""``raylog events``: what has happened to the cluster, as its controllers decided it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from datetime import datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, Folder, Timeout, find_cluster
from raylog.cli.output import AsJson, notice, print_json, print_text
from raylog.errors import ClientTimeoutError, ClusterError

if TYPE_CHECKING:
    from raylog.types import ClusterEvent

POLL_S = 0.5
AT_ONCE_MAX = 10_000  # as many as a controller keeps


def events(
    last: Annotated[int, typer.Option("--last", min=1, max=AT_ONCE_MAX, help="How many of the newest to show.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens until Ctrl-C.")] = False,
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", help="Only of this kind, such as leader-elected or 'isr-*'.", show_default=False),
    ] = None,
    about: Annotated[
        str, typer.Option("--about", help="Only about this, such as orders-0, 'orders-*' or 'broker 1'.")
    ] = "*",
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Print elections, ISR changes, moves, deaths with their reasons, and changes of topics, brokers,
    configs, ACLs, users and quotas.

    Times are those of this machine's time zone. A controller knows the last 10,000 events since its
    last snapshot. With --follow and --json each line is one event.
    """
    cluster = find_cluster(folder, address, timeout)

    def is_wanted(event: ClusterEvent) -> bool:
        of_kind = not kind or any(fnmatchcase(event.kind, each) for each in kind)
        return of_kind and fnmatchcase(event.subject, about)

    known, has_earlier = cluster.events(count=AT_ONCE_MAX)
    shown = [each for each in known if is_wanted(each)]
    if has_earlier and len(shown) < last and not as_json:
        notice("earlier events are not known: the controller has started, or taken a snapshot, since")
    shown = shown[-last:]
    if not follow:
        _print(shown, as_json=as_json)
        return
    position = known[-1].position if known else (0, -1)
    _print_each(shown, as_json=as_json)
    while True:
        time.sleep(POLL_S)
        try:
            found, lacks = cluster.events(position, count=AT_ONCE_MAX)
        except (ClusterError, ClientTimeoutError) as error:
            notice(f"{error}; asking again")
            continue
        if lacks and not as_json:
            notice("some events are missing here: too many happened at once")
        _print_each(filter(is_wanted, found), as_json=as_json)
        if found:
            position = found[-1].position


def _print(shown: Iterable[ClusterEvent], *, as_json: bool) -> None:
    if as_json:
        print_json([_plain(each) for each in shown])
    else:
        print_text(*map(_line, shown))


def _print_each(shown: Iterable[ClusterEvent], *, as_json: bool) -> None:
    for each in shown:
        print_text(json.dumps(_plain(each)) if as_json else _line(each))
    sys.stdout.flush()


def _line(event: ClusterEvent) -> str:
    at = "time not known" if event.at_ms < 0 else _local(event.at_ms).isoformat(" ", "milliseconds")[:23]
    return f"{at:<23}  {event.kind:<22}  {event.subject}{': ' if event.text else ''}{event.text}"


def _local(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1_000).astimezone()


def _plain(event: ClusterEvent) -> dict[str, Any]:
    return {
        "index": event.index,
        "number": event.number,
        "time_ms": event.at_ms if event.at_ms >= 0 else None,
        "kind": event.kind,
        "subject": event.subject,
        "text": event.text,
    }
