"""``raylog logs``: what all processes of a cluster have logged, in the order of time."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from raylog.cli.connection import CONNECT_TIMEOUT_S, DEFAULT_FOLDER, Address, Folder, Timeout, find_cluster
from raylog.cli.output import AsJson, notice, print_json, print_text
from raylog.cli.remote import outside
from raylog.client.links.address import not_from_outside
from raylog.errors import ClientTimeoutError, ClusterError, DisconnectedError
from raylog.server.log_files import COUNT_MAX, SESSION_LOGS, LogLine, WantedLines, in_order, lines_of
from raylog.server.process_log import NO_NODE
from raylog.types import Endpoint, broker_of
from raylog.wire.private_watching import ReadLogs

if TYPE_CHECKING:
    from raylog.client.sync import AdminClient
    from raylog.cluster import Cluster

POLL_S: Final = 1.0
OVERLAP_MS: Final = 5_000
"""Of what was read already: files of different processes do not grow in the order of time."""

_SPAN = re.compile(r"(\d+)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

Read = Callable[[WantedLines], list[LogLine]]


class LeastLevel(StrEnum):
    """From here on up."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


def logs(
    level: Annotated[
        LeastLevel, typer.Option("--level", case_sensitive=False, help="Only lines of this level or above.")
    ] = LeastLevel.INFO,
    broker: Annotated[int, typer.Option("--broker", min=-1, help="Only of this broker's processes; -1: of all.")] = -1,
    since: Annotated[
        str | None,
        typer.Option("--since", help="As 30s, 10m, 2h, 1d, or a time as 2026-01-31T12:00.", show_default=False),
    ] = None,
    trace_id: Annotated[
        str, typer.Option("--trace", help="Only of the request with this trace id; all, if empty.")
    ] = "",
    last: Annotated[int, typer.Option("--last", min=1, max=COUNT_MAX, help="How many of the newest.")] = 1_000,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is logged until Ctrl-C.")] = False,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Print the log lines of all processes of the cluster, dead ones too, in the order of time.

    One process of each machine reads the files that Ray keeps there, and this command those of its own
    machine. Times are those of this machine's time zone. With --json each line is one
    document.
    """
    if outside().bootstrap_servers is not None:
        raise not_from_outside("logs")
    first = WantedLines(since_of(since, time.time()), level.value, broker, last, trace_id)
    read = _reader(folder, address, timeout)
    if not follow:
        _print(read(first), as_json=as_json)
        return
    followed(read, first, lambda lines: _print(lines, as_json=as_json), lambda: time.sleep(POLL_S))


def followed(
    read: Read, first: WantedLines, show: Callable[[Sequence[LogLine]], None], pause: Callable[[], None]
) -> None:
    """Show what there is, and then what is new, each line once. A cluster that does not answer is
    asked again.
    """
    shown = read(first)
    show(shown)
    newest_ms = shown[-1].time_ms if shown else first.since_ms
    seen = Counter(shown)
    while True:
        pause()
        asked = replace(first, since_ms=max(first.since_ms, newest_ms - OVERLAP_MS), count=COUNT_MAX)
        try:
            found = read(asked)
        except (ClusterError, ClientTimeoutError, DisconnectedError) as error:
            notice(f"{error}; asking again")
            continue
        new = _without(found, seen)
        show(new)
        newest_ms = max([newest_ms, *(line.time_ms for line in new)])
        seen = Counter(line for line in (*new, *seen.elements()) if line.time_ms >= asked.since_ms)


def _without(lines: Iterable[LogLine], seen: Counter[LogLine]) -> list[LogLine]:
    """In their order; a line that is there more often than it was seen is new so often."""
    left, new = seen.copy(), []
    for line in lines:
        if left[line]:
            left[line] -= 1
        else:
            new.append(line)
    return new


def since_of(text: str | None, now_s: float) -> int:
    """Unix time in ms; 0 for None. Raises BadParameter."""
    if text is None:
        return 0
    span = _SPAN.fullmatch(text.strip())
    if span is not None:
        return int((now_s - int(span[1]) * _SECONDS[span[2]]) * 1_000)
    try:
        return int(datetime.fromisoformat(text.strip()).timestamp() * 1_000)
    except ValueError:
        raise typer.BadParameter(f"--since {text!r}: give 30s, 10m, 2h, 1d, or a time as 2026-01-31T12:00") from None


# ------------------------------------------------------------------ where they come from


def _reader(folder: Path | None, address: str | None, timeout_s: float) -> Read:
    """Asks the cluster, or reads this machine's files where there is none that answers."""
    try:
        cluster = find_cluster(folder, address, timeout_s, must_serve=False)
        cluster.status(timeout_s)
    except (ClusterError, ClientTimeoutError, DisconnectedError) as error:
        cluster_id = _cluster_of(folder if folder is not None else DEFAULT_FOLDER) if address is None else None
        if cluster_id is None or not SESSION_LOGS.is_dir():
            raise
        notice(f"{error}; these are the files under {SESSION_LOGS} of this machine")
        return lambda wanted: lines_of(SESSION_LOGS, cluster_id, wanted)
    admin = cluster.admin()
    return lambda wanted: gathered(cluster, admin, wanted)


def _cluster_of(folder: Path) -> str | None:
    from raylog.disks.embedded import existing_disks

    disks = existing_disks(folder)
    return disks[0].cluster_id if disks else None


def gathered(cluster: Cluster, admin: AdminClient, wanted: WantedLines) -> list[LogLine]:
    """The newest lines of all machines together, and of this one, which may be a head that has no
    disk. Machines that do not answer, or keep no files, are named on stderr.
    """
    order = ReadLogs(wanted.since_ms, wanted.level, wanted.broker, wanted.count, wanted.trace_id)
    found: list[LogLine] = []
    for host, processes in sorted(_processes(cluster.status()).items()):
        reply = admin.read_logs(processes, order)
        if reply is None:
            notice(f"{host}: none of its processes answers")
        elif not reply.folder:
            notice(f"{host}: Ray keeps no files of what its processes log")
        else:
            found += [LogLine(*each) for each in reply.lines]
    own = lines_of(SESSION_LOGS, cluster.address.cluster_id, wanted) if SESSION_LOGS.is_dir() else []
    found += _without(own, Counter(found))
    return in_order(found)[-wanted.count :]


def _processes(status: dict[str, Any]) -> dict[str, list[Endpoint]]:
    """By machine: where its living processes are reached, Brokers first."""
    actors = [each for each in status["actors"] if each["state"] == "live" and each["endpoint"]]
    found: dict[str, list[Endpoint]] = {}
    for each in sorted(actors, key=lambda actor: (actor["kind"] != "broker", actor["node_id"])):
        endpoint = Endpoint.of(each["endpoint"])
        found.setdefault(endpoint.host, []).append(endpoint)
    return found


# ------------------------------------------------------------------ what is shown


def _print(lines: Iterable[LogLine], *, as_json: bool) -> None:
    for line in lines:
        if as_json:
            print_json(_plain(line))
        else:
            print_text(text_of(line))
    sys.stdout.flush()


def text_of(line: LogLine) -> str:
    at = datetime.fromtimestamp(line.time_ms / 1_000).astimezone().isoformat(" ", "milliseconds")[:23]
    place = "no broker" if line.node_id == NO_NODE else f"broker {broker_of(line.node_id)}, {line.node_id}"
    place += f", {line.trace_id}" if line.trace_id else ""
    first, *more = line.message.split("\n")
    return "\n    ".join((f"{at}  {line.level:<7}  {place:<18}  {line.logger}: {first}", *more))


def _plain(line: LogLine) -> dict[str, Any]:
    return {
        "time_ms": line.time_ms,
        "level": line.level,
        "broker": broker_of(line.node_id),
        "node_id": line.node_id,
        "logger": line.logger,
        "message": line.message,
    } | ({"trace_id": line.trace_id} if line.trace_id else {})
