"""How long a start is waited for: as long as something moves."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import raylog.cluster
import raylog.launcher
from raylog.cli.recovery import await_recovery
from raylog.cluster import Cluster
from raylog.disks.disk import format_disk
from raylog.errors import ClientTimeoutError, ClusterError, RaylogError
from raylog.launcher import LauncherProcess
from raylog.placement import local_ray
from raylog.readiness import await_brokers
from raylog.starting import ClusterStanding, Patience, Start
from raylog.types import Endpoint

pytestmark = pytest.mark.core
STILL_S = 60.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def status(
    live: int, *, brokers: int = 3, processes: int = 0, opened: int = 0, opening: int = 0, scanned_bytes: int = 0
) -> dict[str, Any]:
    return {
        "brokers": [{"id": number, "live": number < live} for number in range(brokers)],
        "actors": [{"state": "live" if number < processes else "starting"} for number in range(9)],
        "logs": {
            "clean": 0,
            "whole": opened,
            "suspect": 0,
            "missing": 0,
            "opening": opening,
            "scanned_bytes": scanned_bytes,
            "cut": [],
        },
    }


class Played:
    """A cluster whose status is asked every half a minute; the last one stays. None: nobody answers."""

    def __init__(self, clock: Clock, *states: dict[str, Any] | None) -> None:
        self._clock = clock
        self._states = list(states)
        self.asked = 0

    def status(self, timeout_s: float = 10) -> dict[str, Any]:
        self.asked += 1
        self._clock.now += 30
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        if state is None:
            raise ClientTimeoutError("nobody answers")
        return state


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_patience_ends_when_no_number_has_risen_for_long(clock: Clock) -> None:
    patience = Patience(STILL_S, clock)
    assert patience.saw((0, 5))
    clock.now += 59
    assert patience.saw((1, 4)) and not patience.has_ended
    clock.now += 59
    assert not patience.saw((0, 5)), "what comes back is no movement"
    assert not patience.has_ended and patience.left_s == pytest.approx(1)
    clock.now += 1
    assert patience.has_ended and patience.left_s == 0
    patience.begin()
    assert not patience.has_ended and patience.saw((0, 0))


def test_a_start_that_moves_is_waited_for_however_long_it_takes(clock: Clock) -> None:
    said: list[str] = []
    states = [status(0, processes=1), *(status(1, opened=n, opening=36 - n, processes=5) for n in range(36)), status(3)]
    played = Played(clock, *states)
    await_brokers(played, {0, 1, 2}, Start(STILL_S, said.append, clock))  # type: ignore[arg-type]
    assert clock.now - 100 > 10 * STILL_S and played.asked == len(states)
    assert "1 of 3 brokers serve, 5 of 9 processes are up, 4 of 36 logs are open" in said


def test_a_start_that_stands_still_is_given_up_and_named(clock: Clock) -> None:
    stuck = status(2, processes=7, opened=3, opening=1, scanned_bytes=2_500_000)
    with pytest.raises(ClusterError) as given_up:
        await_brokers(Played(clock, status(1), stuck), {0, 1, 2}, Start(STILL_S, None, clock))  # type: ignore[arg-type]
    assert str(given_up.value).startswith(
        "nothing has moved for 60 s: broker 2 does not serve yet (2 of 3 brokers serve, 7 of 9 processes are up, "
        "3 of 4 logs are open, 2.5 MB recovered)"
    )


def test_controllers_that_do_not_answer_for_a_moment_end_nothing_and_for_long_are_named(clock: Clock) -> None:
    start = Start(STILL_S, None, clock)
    await_brokers(Played(clock, status(1), None, status(3)), {0, 1, 2}, start)  # type: ignore[arg-type]
    with start.phase("again"), pytest.raises(ClusterError, match=r"does not serve yet .no controller answers."):
        await_brokers(Played(clock, None), {0, 1, 2}, start)  # type: ignore[arg-type]


def test_logs_are_waited_for_while_they_are_opened_and_those_that_are_not_are_told(clock: Clock) -> None:
    opening = [status(3, opened=n, opening=20 - n) for n in range(21)]
    assert await_recovery(Played(clock, *opening), Start(STILL_S, None, clock))["logs"]["opening"] == 0  # type: ignore[arg-type]
    stuck = Played(clock, status(3, opened=1, opening=5))
    assert await_recovery(stuck, Start(STILL_S, None, clock))["logs"]["opening"] == 5  # type: ignore[arg-type]


def test_phases_are_timed(clock: Clock) -> None:
    start = Start(STILL_S, None, clock)
    for name, taken_s in (("ray", 5), ("brokers", 2), ("ray", 1)):
        with start.phase(name):
            clock.now += taken_s
    assert start.phases_s == {"ray": 6, "brokers": 2}


def test_processes_that_work_on_coming_up_are_movement_though_none_answers(clock: Clock) -> None:
    start = Start(STILL_S, None, clock)
    start.watch(lambda: min(int(clock.now), 600))
    with pytest.raises(ClusterError, match="nothing has moved for 60 s"):
        await_brokers(Played(clock, status(0)), {0}, start)  # type: ignore[arg-type]
    assert 660 <= clock.now < 660 + 2 * STILL_S, "it was waited for until they stood still"


def test_only_what_a_process_of_that_ray_uses_to_come_up_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Process:
        def __init__(self, pid: int, ppid: int, name: str, used_s: float, *cmdline: str) -> None:
            self.pid = pid
            times = SimpleNamespace(user=used_s, system=0.0)
            self.info = {"ppid": ppid, "name": name, "cmdline": list(cmdline), "cpu_times": times}

    seen = [
        Process(9, 10, "python", 1.55),  # before its parent in the list
        *(Process(10, 1, "raylet", 50, "--gcs-address=127.0.0.1:1"), Process(11, 10, "python", 40)),
        *(Process(20, 1, "raylet", 50, "--gcs-address=127.0.0.1:2"), Process(21, 20, "python", 2)),
    ]
    monkeypatch.setattr(local_ray.psutil, "process_iter", lambda _: iter(seen))
    assert local_ray.coming_up("127.0.0.1:1") == 15 + 30


def test_a_standing_without_logs_says_nothing_of_them() -> None:
    assert ClusterStanding.of(status(0), {0}).words == "0 of 1 brokers serve, 0 of 9 processes are up"


PROGRAM = """
import json, sys
order = json.load(sys.stdin)
print("a line of Ray's")
for line in order["lines"]: print(json.dumps(line), flush=True)
sys.exit("broke") if order["breaks"] else None
"""


def carried_out(monkeypatch: pytest.MonkeyPatch, said: list[str], *lines: dict[str, Any], breaks: bool = False) -> Any:
    popen = raylog.launcher.subprocess.Popen
    monkeypatch.setattr(
        raylog.launcher.subprocess, "Popen", lambda command, **rest: popen([command[0], "-c", PROGRAM], **rest)
    )
    with LauncherProcess(is_loopback=True) as launcher:
        order = {"ray_address": "127.0.0.1:1", "lines": lines, "breaks": breaks}
        return launcher.carry_out(json.loads(json.dumps(order)), Start(STILL_S, said.append))


def test_the_launchers_progress_is_reported_and_its_last_line_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    progress = [{"progress": [up, 0], "words": f"{up} up"} for up in (1, 1, 2)]
    assert carried_out(monkeypatch, said, *progress, {"controllers": []}) == {"controllers": []}
    assert said == ["1 up", "2 up"]


@pytest.mark.parametrize(
    ("lines", "breaks", "words"), [([{"error": "no Ray"}], False, "no Ray"), ([], True, "broke"), ([], False, "start:")]
)
def test_what_the_launcher_could_not_do_is_told(
    monkeypatch: pytest.MonkeyPatch, lines: list[dict[str, Any]], breaks: bool, words: str
) -> None:
    with pytest.raises(ClusterError, match=words):
        carried_out(monkeypatch, [], *lines, breaks=breaks)


@pytest.mark.parametrize(
    ("listens", "failure", "runs"),
    [
        (True, ClientTimeoutError("it did not answer"), True),
        (False, ClientTimeoutError("it did not answer"), False),
        (True, ClusterError("it closed the connection before the handshake was done"), False),
    ],
    ids=["a busy cluster", "nobody", "another program"],
)
def test_a_cluster_that_is_busy_for_a_moment_runs_and_one_that_nobody_serves_does_not(
    listens: bool, failure: RaylogError, runs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a second program on the folder, or a second ``init``, would start what runs already."""
    asked: list[float] = []

    def status(_: Cluster, timeout_s: float) -> dict[str, Any]:
        asked.append(timeout_s)
        if len(asked) < 3:
            raise failure
        return {"brokers": [{"id": 0, "live": True}], "controller": {"pid": 1}}

    monkeypatch.setattr(Cluster, "status", status)
    monkeypatch.setattr(raylog.cluster, "is_of_a_raylet", lambda pid: True)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen()
        controllers = [Endpoint("127.0.0.1", server.getsockname()[1])]
        format_disk(tmp_path / "broker-0", cluster_id="c", broker_id=0, rack=None, controllers=controllers, secret="s")
        found = raylog.cluster.running_cluster(tmp_path, "raylog", 1)
    assert (found is not None) == runs and len(asked) == (3 if runs else 1)
