"""What the console computes without a cluster: bytes as they are shown, health, charts, pauses, limits."""

from __future__ import annotations

from typing import Any

import pytest

from raylog.types import ClusterEvent


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (None, "null", ""),
        (b"", "text", ""),
        (b'{"b": [1]}', "JSON", '{\n  "b": [\n    1\n  ]\n}'),
        (b'{"b": ', "text", '{"b": '),
        (b"[" * 1_900, "text", "[" * 1_900),
        ("ü".encode(), "text", "ü"),
        (b"a\x00b", "hex", None),
        (b"\xff\xfe", "hex", "000000  ff fe" + " " * 44 + ".."),
        (b"\x00\x00\x00\x00\x07" + b'{"a": 1}', "schema 7, JSON", '{\n  "a": 1\n}'),
        (b"\x00\x00\x00\x00\x07\x06abc", "schema 7, hex", None),
        (b"\x00\x00\x00\x00\x07Habc", "schema 7, hex", None),
        (b"\x00\x00\x00\x00\x00\x00\x00\x2a", "hex", None),
        (b"\x00\xff\xff\xff\xff\xff", "hex", None),
    ],
)
def test_bytes_are_shown_as_what_they_seem_to_be(data: bytes | None, kind: str, text: str | None) -> None:
    from raylog.console.shown_bytes import shown

    found = shown(data)
    assert found.kind == kind and not found.is_cut
    assert text is None or found.text == text


def test_what_is_cut_ends_between_characters_and_says_its_size() -> None:
    from raylog.console.shown_bytes import shown

    found = shown("aü".encode() * 1_000, 4)
    assert (found.kind, found.text, found.shown_bytes, found.size_bytes) == ("text", "aüa", 4, 3_000)
    assert found.is_cut
    found = shown("aü".encode() * 1_000, 2)
    assert (found.text, found.shown_bytes) == ("a", 1)
    long = shown(b"\x01" * 10_000, 9_000)
    assert (long.kind, long.shown_bytes) == ("hex", 4_096) and len(long.text.splitlines()) == 256


def record(**fields: Any) -> Any:
    from raylog.records.record import Record

    return Record("t", 0, 0, 0, 0, *(fields.get(name) for name in ("key", "value")), fields.get("headers", ()), 0)


@pytest.mark.parametrize(
    ("filter", "takes"),
    [
        ({}, True),
        ({"key": "k"}, True),
        ({"key": "x"}, False),
        ({"value": "al"}, True),
        ({"value": "al", "key": "x"}, False),
        ({"header": "h"}, True),
        ({"header": "h=ead"}, True),
        ({"header": "h=x"}, False),
        ({"header": "other"}, False),
    ],
)
def test_a_filter_takes_what_contains_all_of_it(filter: dict[str, str], takes: bool) -> None:
    from raylog.console.reading import Filter

    assert Filter(**filter).takes(record(key=b"key", value=b"value", headers=[("h", b"head")])) is takes
    assert Filter(**filter).takes(record()) is (not filter)


def state(**changes: Any) -> dict[str, Any]:
    brokers = [
        {
            "id": number,
            "rack": None,
            "listener": "h:1",
            "draining": False,
            "live": True,
            "disks": ["/d"],
            "offline_disks": {},
        }
        for number in (0, 1)
    ]
    return {"brokers": brokers, "topics": [], "leaderless": [], "under_replicated": [], "actors": []} | changes


def test_health_names_what_is_wrong_the_worst_first_with_a_remedy() -> None:
    from raylog.cli.checks import Level
    from raylog.client.admin.inspection import LogDir
    from raylog.console.overview import broker_rows, findings

    well = state()
    assert findings(well, None, broker_rows(well, {})) == []
    ill = state(
        leaderless=["orders-1"],
        under_min_isr=["orders-2"],
        under_replicated=[f"orders-{number}" for number in range(9)],
        unclean_elections=2,
        actors=[{"pid": 7, "broker": 0, "failures": ["no disk"], "damaged": ["orders-3"], "mended": []}],
    )
    ill["brokers"][1] |= {"live": False, "offline_disks": {"/d": "Input/output error"}}
    full = {0: {"/d": LogDir("/d", 100 << 30, 1 << 20, {})}}
    quorum = {"voters": [{"broker": 1, "recovering": True}]}
    found = findings(ill, quorum, broker_rows(ill, full))
    assert {each.check for each in found} == {
        "broker 1",
        "disk /d",
        "disk /d of broker 0",
        "partitions offline",
        "under min.insync.replicas",
        "under-replicated",
        "process 7 of broker 0",
        "elections",
        "logs",
        "controllers",
    }
    assert all(each.remedy for each in found)
    levels = [each.level for each in found]
    assert levels == sorted(levels, key=[Level.FAILURE, Level.WARNING].index) and set(levels) == {
        Level.FAILURE,
        Level.WARNING,
    }
    assert "and 4 more" in next(each.found for each in found if each.check == "under-replicated")


def event(at_ms: int, kind: str, subject: str = "orders-0") -> ClusterEvent:
    return ClusterEvent(at_ms, 0, at_ms, kind, subject, "")


def test_a_pause_lasts_from_no_leader_to_the_next() -> None:
    from raylog.console.timeline import pauses

    found = pauses(
        [
            event(1, "partition-offline"),
            event(2, "partition-offline", "gone-0"),
            event(3, "leader-elected", "payments-0"),
            event(40, "leader-elected"),
            event(41, "leader-elected"),
            event(50, "partition-offline", "payments-0"),
            event(-1, "partition-offline", "untimed-0"),
            event(60, "topic-deleted", "gone"),
        ]
    )
    assert [(each.partition, each.lasted_ms) for each in found] == [("orders-0", 39), ("payments-0", None)]


def test_events_at_one_place_are_one_dot() -> None:
    from raylog.console.timeline import LEFT, WIDTH, dots

    found = dots([event(0, "isr-shrunk"), event(0, "isr-shrunk", "orders-1"), event(9, "no-such-kind")])
    assert [(each.words, each.mood) for each in found] == [
        ("isr-shrunk: orders-0 and 1 more", "bad"),
        ("no-such-kind: orders-0", ""),
    ]
    assert found[0].y < found[1].y and LEFT < found[0].x < found[1].x < WIDTH
    assert dots([]) == []


def test_history_of_lag_is_bounded_and_forgets_groups_that_are_gone() -> None:
    from raylog.console.lag_history import POINTS_MAX, LagHistory, chart

    history = LagHistory()
    for number in range(POINTS_MAX + 5):
        history.add(number, {"a": number, "b": 0})
    assert history.of("a")[0] == (5, 5) and len(history.of("a")) == POINTS_MAX
    history.add(9_999, {"a": 1})
    assert history.of("b") == [] and chart(history.of("b")) is None
    line = chart([(0, 0), (10, 1_734)])
    assert line is not None and [label for _, label in line.grid] == ["0", "1,000", "2,000"]
    assert line.points.split()[0].endswith(",146.0"), "no lag is at the bottom"


class NoCluster:
    options: dict[str, Any] = {}

    def admin(self, **_: Any) -> None:
        return None


def test_answers_are_kept_for_a_moment_and_errors_are_not() -> None:
    from raylog.console.view import ClusterView

    now = [0.0]
    view = ClusterView(NoCluster(), clock=lambda: now[0])  # type: ignore[arg-type]
    asked: list[int] = []

    def ask() -> int:
        asked.append(1)
        if len(asked) == 1:
            raise OSError("away")
        return len(asked)

    with pytest.raises(OSError):
        view.kept("q", ask)
    assert [view.kept("q", ask), view.kept("q", ask)] == [2, 2]
    now[0] = 1.0
    assert view.kept("q", ask) == 3


def test_what_took_long_is_asked_for_seldomer_up_to_a_bound() -> None:
    from raylog.console.view import KEPT_S_MAX, ClusterView

    now = [0.0]
    view = ClusterView(NoCluster(), clock=lambda: now[0])  # type: ignore[arg-type]
    asked: list[float] = []

    def ask(takes_s: float) -> int:
        now[0] += takes_s
        asked.append(now[0])
        return len(asked)

    def kept(takes_s: float) -> int:
        return view.kept("q", lambda: ask(takes_s), grows=True)

    assert kept(0.03125) == 1  # so it is kept for 6.25 seconds
    now[0] += 6
    assert kept(8) == 1
    now[0] += 0.25
    assert kept(8) == 2
    now[0] += KEPT_S_MAX - 0.5
    assert kept(0) == 2
    now[0] += 0.5
    assert kept(0) == 3
    now[0] += 1
    assert kept(0) == 4


def test_sizes_and_times_are_for_people() -> None:
    from raylog.console.pages import moment, size

    assert [size(each) for each in (-1, 0, 1_023, 1_536, 1 << 60)] == [
        "?",
        "0 B",
        "1,023 B",
        "1.5 KiB",
        "1,048,576.0 TiB",
    ]
    assert moment(-1) == "–" and moment(0) == "1970-01-01 00:00:00.000Z" and moment(2**62) == f"{2**62} ms"


def test_servers_and_the_package_import_nothing_of_the_console() -> None:
    import subprocess
    import sys

    program = (
        "import sys, raylog, raylog.actors.launch, raylog.server.replica_server, raylog.cli.main\n"
        "print(sorted({'raylog.console', 'starlette', 'uvicorn', 'jinja2'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
