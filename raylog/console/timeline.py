"""Events and failovers on a time line.

A *pause* is the time for which nobody led a partition: from the event that says so to the election
that ended it, as the controllers' clock has them. An election without a pause between had its
successor at hand: the partition changed its leader in one decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from starlette.requests import Request
from starlette.responses import Response

from raylog.console.pages import Trouble, page
from raylog.console.view import ClusterView
from raylog.types import ClusterEvent

KNOWN_MAX = 10_000
SHOWN_MAX = 200
DOTS_MAX = 400
PAUSES_MAX = 50
WIDTH, LEFT, LANE, TOP = 760, 110, 26, 10
LANES = {
    "leaders": ("leader-*", "partition-offline"),
    "ISR": ("isr-*",),
    "processes": ("actor-*",),
    "replicas": ("replica*", "reassignment-*"),
    "brokers": ("broker-*", "disk-*", "controllers-*"),
    "settings": ("*",),
}
_BAD = ("leader-elected-unclean", "partition-offline", "actor-died", "isr-shrunk", "disk-replaced", "broker-leaving")
_GOOD = ("leader-elected", "isr-expanded", "actor-started")


@dataclass(frozen=True, slots=True)
class Pause:
    """``end_ms`` None: nobody leads it still."""

    partition: str
    start_ms: int
    end_ms: int | None

    @property
    def lasted_ms(self) -> int | None:
        return None if self.end_ms is None else self.end_ms - self.start_ms


@dataclass(frozen=True, slots=True)
class Dot:
    """An event, or several of one kind that would be drawn at the same place."""

    x: float
    y: int
    words: str
    mood: str


def events_page(request: Request) -> Response:
    view: ClusterView = request.app.state.view
    kind = request.query_params.get("kind", "").strip()[:100]
    about = request.query_params.get("about", "").strip()[:500]
    if view.is_outside:
        text = (
            "Kafka's protocol has no request for events: a console that is started with --folder or "
            "--address, beside the cluster, shows them."
        )
        known, lacks = list[ClusterEvent](), False
        troubles = [Trouble(text)]
    else:
        known, lacks = view.kept("events", lambda: view.cluster.events(count=KNOWN_MAX))
        troubles = []
    found = [
        each
        for each in known
        if fnmatchcase(each.kind, kind or "*") and (not about or about.lower() in each.subject.lower())
    ]
    timed = [each for each in found if each.at_ms >= 0][-DOTS_MAX:]
    return page(
        request,
        "events.html",
        live_s=2,
        kind=kind,
        about=about,
        kinds=sorted({each.kind for each in known}),
        events=found[-SHOWN_MAX:][::-1],
        count=len(found),
        lacks=lacks,
        pauses=pauses(found)[-PAUSES_MAX:][::-1],
        dots=dots(timed),
        span=(timed[0].at_ms, timed[-1].at_ms) if timed else None,
        lanes=[(name, TOP + LANE * index + LANE // 2) for index, name in enumerate(LANES)],
        width=WIDTH,
        left=LEFT,
        height=TOP + LANE * len(LANES) + 22,
        troubles=troubles,
    )


def pauses(events: Iterable[ClusterEvent]) -> list[Pause]:
    """The times for which nobody led a partition, by their begin. Events whose time is not known
    are left out.
    """
    open_since: dict[str, int] = {}
    found: list[Pause] = []
    for event in events:
        if event.at_ms < 0:
            continue
        if event.kind == "partition-offline":
            open_since.setdefault(event.subject, event.at_ms)
        elif event.kind in ("leader-elected", "leader-elected-unclean") and event.subject in open_since:
            found.append(Pause(event.subject, open_since.pop(event.subject), event.at_ms))
        elif event.kind == "topic-deleted":
            for name in [each for each in open_since if each.rpartition("-")[0] == event.subject]:
                del open_since[name]
    found += [Pause(name, start_ms, None) for name, start_ms in open_since.items()]
    return sorted(found, key=lambda each: (each.start_ms, each.partition))


def dots(events: Sequence[ClusterEvent]) -> list[Dot]:
    """Where the events are drawn; all have a time."""
    if not events:
        return []
    first_ms, last_ms = events[0].at_ms, events[-1].at_ms
    across = max(1, last_ms - first_ms)
    places: dict[tuple[int, int, str], list[ClusterEvent]] = {}
    for event in events:
        lane = next(
            index for index, kinds in enumerate(LANES.values()) if any(fnmatchcase(event.kind, k) for k in kinds)
        )
        x = LEFT + 8 + round((WIDTH - LEFT - 16) * (event.at_ms - first_ms) / across)
        places.setdefault((x, TOP + LANE * lane + LANE // 2, _mood(event.kind)), []).append(event)
    return [
        Dot(x, y, f"{each[0].kind}: {each[0].subject}" + (f" and {len(each) - 1} more" if len(each) > 1 else ""), mood)
        for (x, y, mood), each in places.items()
    ]


def _mood(kind: str) -> str:
    return "bad" if kind in _BAD else "good" if kind in _GOOD else ""
