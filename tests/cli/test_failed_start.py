"""``raylog up`` where Ray comes up halfway and fails: on a machine that is too busy, or where another Ray takes its port."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from raylog.cli import cluster, ray_head
from raylog.errors import RayError

pytestmark = pytest.mark.core

PORT = 3  # nobody's: a Ray of the user is not touched
SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)", f"--gcs-address=127.0.0.1:{PORT}"]


class FailingRay:
    """``ray start`` that leaves a process behind and says why it failed, as often as it is tried."""

    def __init__(self, said: str) -> None:
        self.said = said
        self.left: list[subprocess.Popen[bytes]] = []

    def __call__(self, *arguments: Any, env: dict[str, str], **settings: Any) -> subprocess.CompletedProcess[str]:
        self.left.append(subprocess.Popen(SLEEPER, env=env))
        return subprocess.CompletedProcess([], 1, "", self.said)


def test_a_process_that_heeds_no_sigterm_is_gone_when_its_ray_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_head, "END_TIMEOUT_S", 1)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        ray_head._end_with_children([psutil.Process(process.pid)])
        assert process.poll() is not None


@pytest.fixture
def neighbour(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process of another Ray, which has the port that this one tries."""
    monkeypatch.setattr(ray_head, "_free_port", lambda wanted: PORT)
    process = subprocess.Popen(SLEEPER)
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    ("said", "tries"),
    [
        ("Exception: The current node timed out during startup.\n", ray_head.RAY_START_ATTEMPTS),
        ("AssertionError: Session name a does not match persisted value b'b'.\n", ray_head.RAY_START_ATTEMPTS),
        ("ValueError: no such option\n", 1),
    ],
)
def test_what_came_up_of_a_ray_that_failed_to_start_is_ended_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, neighbour: subprocess.Popen[bytes], said: str, tries: int
) -> None:
    ray = FailingRay(said)
    monkeypatch.setattr(ray_head.subprocess, "run", ray)
    try:
        with pytest.raises(RayError, match=said.strip()):
            ray_head.start_ray(tmp_path / "data", 1, None, 1)
        assert len(ray.left) == tries
        for each in ray.left:
            each.wait(30)  # it has been killed; a busy machine takes a moment over that
        assert neighbour.poll() is None
    finally:
        for each in ray.left:
            each.kill()
            each.wait()


@contextmanager
def marked() -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A process of an attempt, and its mark."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(SLEEPER, env={ray_head.ATTEMPT_MARK: mark})
    try:
        yield process, mark
    finally:
        process.kill()
        process.wait()


def test_a_process_is_ended_that_has_the_id_of_one_that_was_seen_before() -> None:
    """psutil keeps what it has seen by id, and would end nothing that is another process now."""
    with marked() as (process, mark):
        for seen in psutil.process_iter():
            if seen.pid == process.pid:
                seen._ident = (seen.pid, 1.0)
        ray_head._end_with_children(ray_head._marked_processes(mark))
        assert process.poll() is not None


def test_a_process_whose_program_is_being_loaded_is_known_by_its_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    environ, early = psutil.Process.environ, [2]
    with marked() as (process, mark):

        def read(of: psutil.Process) -> dict[str, str]:
            if of.pid == process.pid and early[0]:
                early[0] -= 1
                return {}
            return environ(of)

        monkeypatch.setattr(psutil.Process, "environ", read)
        assert [each.pid for each in ray_head._marked_processes(mark)] == [process.pid]


@pytest.mark.parametrize("moment", ["while Ray starts", "while its processes are noted"])
def test_what_came_up_of_a_ray_whose_start_is_interrupted_is_ended_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, neighbour: subprocess.Popen[bytes], moment: str
) -> None:
    left: list[subprocess.Popen[bytes]] = []

    def interrupt(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    def ray(*arguments: Any, env: dict[str, str], **settings: Any) -> subprocess.CompletedProcess[str]:
        left.append(subprocess.Popen(SLEEPER, env=env))
        if moment == "while Ray starts":
            interrupt()
        return subprocess.CompletedProcess([], 0, "", "")

    monkeypatch.setattr(ray_head.subprocess, "run", ray)
    monkeypatch.setattr(ray_head, "_ray_processes", interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            ray_head.start_ray(tmp_path / "data", 1, None, 1)
        assert len(left) == 1 and left[0].poll() is not None
        assert neighbour.poll() is None and not (tmp_path / "data" / ray_head.RAY_NOTE).exists()
    finally:
        for each in left:
            each.kill()
            each.wait()


def test_whoever_interrupts_a_start_is_told_what_runs_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), cluster._interruption_explained(tmp_path):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "", "nothing has started"
    (tmp_path / ray_head.RAY_NOTE).write_text("{}")
    with pytest.raises(KeyboardInterrupt), cluster._interruption_explained(tmp_path):
        raise KeyboardInterrupt
    assert f"`raylog up {tmp_path}` goes on with it, `raylog down {tmp_path}` ends it" in capsys.readouterr().err
