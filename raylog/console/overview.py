"""The first page: brokers, disks, processes, controllers, what is wrong in words, and last events.

``findings`` judges what the cluster says. Disks, damaged logs and controllers are judged by the
checks of ``raylog doctor``; each finding that is not ok carries the command that mends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from raylog.cli.checks import (
    DiskFacts,
    Facts,
    Finding,
    Level,
    RayFacts,
    Workload,
    check_controllers,
    check_disks,
    check_logs,
)
from raylog.cli.machine import damaged_logs
from raylog.client.admin.inspection import LogDir
from raylog.console.pages import asked, page
from raylog.console.view import ClusterView

NAMED_MAX = 5
NEEDS_CLUSTER = "--operation Describe --cluster"
_REMEDY_AWAY = "raylog up   # with the same folders; on another machine, restart its Ray node"
_REMEDY_LEADERLESS = (
    "raylog up   # bring back a broker of its ISR; where all are lost: "
    "raylog leader-election --election-type unclean loses acknowledged records"
)
_REMEDY_BEHIND = (
    "raylog topics describe --under-replicated-partitions   # it ends by itself once their brokers are back"
)
_REMEDY_OFFLINE_DISK = "raylog log-dirs   # replace the disk, then restart its broker"


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """A broker on the page. None where the cluster does not say it."""

    id: int
    rack: str | None
    listener: str | None
    state: str
    replicas: int
    leads: int
    disks: list[tuple[str, LogDir | None, str]]
    """Path, sizes, and why the disk is offline (empty: it is not)."""


def overview_page(request: Request) -> Response:
    view: ClusterView = request.app.state.view
    state, trouble = asked(view.status, NEEDS_CLUSTER)
    log_dirs, no_disks = asked(view.log_dirs, NEEDS_CLUSTER)
    quorum, no_quorum = asked(view.quorum, NEEDS_CLUSTER)
    events, no_events = (None, None) if view.is_outside else asked(view.last_events)
    rows = [] if state is None else broker_rows(state, log_dirs or {})
    return page(
        request,
        "overview.html",
        503 if state is None else 200,
        live_s=2,
        state=state,
        brokers=rows,
        quorum=quorum,
        events=[] if events is None else events[::-1],
        is_outside=view.is_outside,
        findings=[] if state is None else findings(state, quorum, rows),
        troubles=[each for each in (trouble, no_disks, no_quorum, no_events) if each is not None],
    )


def broker_rows(state: Mapping[str, Any], log_dirs: Mapping[int, Mapping[str, LogDir]]) -> list[BrokerRow]:
    """Each broker with what it holds and leads."""
    replicas: dict[int, int] = {}
    leads: dict[int, int] = {}
    for topic in state["topics"]:
        for part in topic["partitions"]:
            leads[part["leader"]] = leads.get(part["leader"], 0) + 1
            for broker in part["replicas"]:
                replicas[broker] = replicas.get(broker, 0) + 1
    rows = []
    for broker in state["brokers"]:
        sizes = log_dirs.get(broker["id"], {})
        offline = broker["offline_disks"] or {}
        paths = sorted({*broker["disks"], *sizes})
        live = "draining" if broker["draining"] else "live"
        rows.append(
            BrokerRow(
                broker["id"],
                broker["rack"],
                broker["listener"],
                live if broker["live"] else "away",
                replicas.get(broker["id"], 0),
                leads.get(broker["id"], 0),
                [(path, sizes.get(path), offline.get(path, "")) for path in paths],
            )
        )
    return rows


def findings(state: Mapping[str, Any], quorum: Mapping[str, Any] | None, rows: Iterable[BrokerRow]) -> list[Finding]:
    """What is not well, the worst first."""
    rows = list(rows)
    found = [
        Finding(f"broker {row.id}", Level.FAILURE, "it is away", _REMEDY_AWAY) for row in rows if row.state == "away"
    ]
    found += [
        Finding(f"disk {path}", Level.FAILURE, f"broker {row.id} cannot use it: {reason}", _REMEDY_OFFLINE_DISK)
        for row in rows
        for path, _, reason in row.disks
        if reason
    ]
    if state["leaderless"]:
        text = f"nobody leads {_named(state['leaderless'])}: they can be neither written nor read"
        found.append(Finding("partitions offline", Level.FAILURE, text, _REMEDY_LEADERLESS))
    if state.get("under_min_isr"):
        text = f"{_named(state['under_min_isr'])}: writes with acks=all are refused"
        found.append(Finding("under min.insync.replicas", Level.FAILURE, text, _REMEDY_BEHIND))
    if state["under_replicated"]:
        text = f"{_named(state['under_replicated'])}: a replica is away or behind"
        found.append(Finding("under-replicated", Level.WARNING, text, _REMEDY_BEHIND))
    for actor in state.get("actors", ()):
        found += [
            Finding(
                f"process {actor['pid']} of broker {actor['broker']}",
                Level.FAILURE,
                text,
                "raylog status   # its last lines say more",
            )
            for text in actor["failures"]
        ]
    if state.get("unclean_elections"):
        text = f"{state['unclean_elections']} unclean elections: acknowledged records may be lost"
        found.append(Finding("elections", Level.WARNING, text, "raylog events --kind leader-elected-unclean"))
    found += _by_doctor(state, quorum, rows)
    return sorted((each for each in found if each.level is not Level.OK), key=lambda each: each.level is Level.WARNING)


def _by_doctor(state: Mapping[str, Any], quorum: Mapping[str, Any] | None, rows: Iterable[BrokerRow]) -> list[Finding]:
    """The verdicts of ``raylog doctor``'s own checks on what the cluster says of itself."""
    disks = tuple(
        DiskFacts(f"{path} of broker {row.id}", sizes.usable_bytes, sizes.total_bytes, None)
        for row in rows
        for path, sizes, reason in row.disks
        if sizes is not None and sizes.total_bytes > 0 and not reason
    )
    recovering = [each["broker"] for each in (quorum or {"voters": ()})["voters"] if each["recovering"]]
    facts = Facts(
        open_files_soft=0,
        open_files_hard=0,
        map_count=0,
        shm_total_bytes=0,
        shm_free_bytes=0,
        disks=disks,
        loopback_problem=None,
        head_port_owner="free",
        ray=RayFacts(None, None, None, None, False),
        java_version=None,
        oom_scores=(),
        kernel_trouble=None,
        damaged_logs=tuple(damaged_logs(dict(state))) if "actors" in state else None,
        recovering_controllers=tuple(f"broker {broker}" for broker in recovering),
    )
    workload = Workload()
    return [*check_disks(facts, workload), check_logs(facts, workload), *check_controllers(facts, workload)]


def _named(names: list[str]) -> str:
    shown = ", ".join(names[:NAMED_MAX])
    return shown if len(names) <= NAMED_MAX else f"{shown} and {len(names) - NAMED_MAX:,} more"
