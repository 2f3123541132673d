"""The first command of a newcomer, where the machine is not the right one, and the arithmetic of lanes."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import threading
import time
import types
from pathlib import Path

import pytest
from raw_requests import eventually

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.core


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    module = importlib.import_module("lanes")
    monkeypatch.setattr(module, "loop_s", lambda: module.LOOP_S)  # however slow this machine is
    return module


@pytest.fixture
def lane_process(lanes: types.ModuleType) -> types.ModuleType:
    return importlib.import_module("lane_process")


def stand_in(folder: Path, name: str, script: str) -> None:
    file = folder / name
    file.write_text("#!/bin/sh\n" + script)
    file.chmod(0o755)


def find_python(path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["/bin/sh", ROOT / ".ci" / "find-python"], env={"PATH": path}, capture_output=True, text=True)


def test_another_platform_gets_one_sentence_and_exit_1(tmp_path: Path) -> None:
    stand_in(tmp_path, "uname", 'if [ "$1" = -s ]; then echo Darwin; else echo arm64; fi\n')
    run = find_python(f"{tmp_path}:/usr/bin:/bin")
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == (
        "The checkout's tests and demo need Linux x86_64 with Python 3.11 or 3.12; this is Darwin arm64.\n"
    )


def test_a_machine_without_the_right_python_gets_one_sentence_and_exit_1(tmp_path: Path) -> None:
    stand_in(tmp_path, "uname", 'if [ "$1" = -s ]; then echo Linux; else echo x86_64; fi\n')
    for name in ("python3.11", "python3.12", "python3", "python"):
        stand_in(tmp_path, name, "exit 1\n")
    run = find_python(str(tmp_path))
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.count("\n") == 1 and "without a Python 3.11 or 3.12" in run.stderr


def test_a_python_that_can_be_used_is_found(tmp_path: Path) -> None:
    stand_in(tmp_path, "uname", 'if [ "$1" = -s ]; then echo Linux; else echo x86_64; fi\n')
    stand_in(tmp_path, "python3.11", "exit 127\n")
    stand_in(tmp_path, "python3.12", "exit 0\n")
    assert find_python(str(tmp_path)).stdout == f"{tmp_path}/python3.12\n"


def commands_of_demo(folder: Path, *settings: str) -> str:
    """What ``make demo`` would do in a checkout where nothing is installed."""
    for name in (
        "Makefile",
        "pyproject.toml",
        "constraints.txt",
        "build_kernel.py",
        ".ci/find-python",
        "raylog/records/kernel.c",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(ROOT / name)
    run = subprocess.run(["make", "-n", "demo", *settings], cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_the_demo_says_what_it_installs_before_it_does(tmp_path: Path) -> None:
    commands = commands_of_demo(tmp_path)
    places = [
        commands.index(each)
        for each in (
            "1.1 GB",
            "0.5 GB; make demo SPARK=0 leaves it out",
            "[data,test,demo]",
            "[raydp]",
            "import demo; demo()",
            "flights_pipeline.py",
        )
    ]
    assert places == sorted(places)


def test_the_demo_without_spark_installs_none_and_leaves_the_second_act_out(tmp_path: Path) -> None:
    commands = commands_of_demo(tmp_path, "SPARK=0")
    assert "1.1 GB" in commands and "[data,test,demo]" in commands and "import demo; demo()" in commands
    assert "[raydp]" not in commands and "flights_pipeline" not in commands and "0.5 GB" not in commands


def test_every_test_belongs_to_exactly_one_lane(lanes: types.ModuleType) -> None:
    expressions = {lane: lanes.mark_expression(lane) for lane in lanes.BUDGET_MINUTES}
    for mark in (None, *lanes.MARKS):
        names = {name: name == mark for name in lanes.MARKS}
        holding = [lane for lane, expression in expressions.items() if eval(expression, {}, names)]
        assert holding == ([] if mark == "slow" else [mark or "fast"])


def test_a_lane_leaves_out_the_files_that_have_no_test_of_it(
    lanes: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = {
        "fast": "def test_a(): ...",
        "mixed": "@pytest.mark.core\ndef test_a(): ...\ndef test_b(): ...",
        "skipped": "pytestmark = pytest.mark.skipif(True, reason='')\n@pytest.mark.ray\ndef test_a(): ...",
        "core": "pytestmark = pytest.mark.core\ndef test_a(): ...",
        "ray": "pytestmark = [pytest.mark.timeout(9), pytest.mark.ray]\nX = [\n]\ndef test_a(): ...",
        "spark": "pytestmark = [\n    pytest.mark.timeout(9),\n    pytest.mark.spark,\n]\ndef test_a(): ...",
        "listed": "pytestmark = [pytest.mark.timeout(9)]\nX = [\n    pytest.mark.core,\n]\ndef test_a(): ...",
    }
    (tmp_path / "tests").mkdir()
    for name, text in files.items():
        (tmp_path / "tests" / f"test_{name}.py").write_text(text)
    monkeypatch.setattr(lanes, "ROOT", tmp_path)
    read = {
        lane: files.keys() - {path.stem.removeprefix("test_") for path in lanes.without_tests_of(lane)}
        for lane in ("fast", "core", "ray", "spark")
    }
    assert read == {
        "fast": {"fast", "mixed", "skipped", "listed"},
        "core": {"mixed", "core", "listed"},
        "ray": {"skipped", "ray"},
        "spark": {"spark"},
    }


def test_slow_tests_run_in_the_long_lanes_alone(lanes: types.ModuleType) -> None:
    for lane in lanes.BUDGET_MINUTES:
        slow = {name: name in ("slow", lane) for name in lanes.MARKS}
        long = [name for name in lanes.BUDGET_MINUTES if eval(lanes.mark_expression(name, long=True), {}, slow)]
        short = [name for name in lanes.BUDGET_MINUTES if eval(lanes.mark_expression(name), {}, slow)]
        assert (long, short) == ([lane], [])


def test_tracks_hold_every_lane_once(lanes: types.ModuleType) -> None:
    assert sorted(lane for track in lanes.TRACKS for lane in track) == sorted(lanes.BUDGET_MINUTES)


def test_totals_are_read_from_the_report(lane_process: types.ModuleType, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite tests="10" failures="2" errors="1" skipped="3"/><testsuite tests="1"/></testsuites>'
    )
    assert lane_process.read_report(report) == lane_process.Outcome(passed=5, failed=3, skipped=3)
    assert lane_process.read_report(tmp_path / "none") == lane_process.Outcome(0, 0, 0)


TESTS = """
import os, pathlib, signal, threading, time
def test_breaks(): assert 1 == 2
def test_goes_on(): {goes_on}
def test_holds(): ...
"""


@pytest.fixture
def tree(
    lanes: types.ModuleType, lane_process: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Path:
    """A tree with these lanes and no test yet."""
    (tmp_path / ".ci").symlink_to(ROOT / ".ci")
    (tmp_path / "tests").mkdir()
    for module in (lanes, lane_process):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(lanes, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(lanes, "can_run_side_by_side", lambda: True)
    return tmp_path


def test_what_failed_is_said_once_more_beside_the_totals(
    lanes: types.ModuleType, tree: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tree / "tests" / "test_of_a_lane.py").write_text(TESTS.format(goes_on="..."))
    assert lanes.main(["fast"]) == 1
    said = capfd.readouterr().out
    totals = said[said.index("── lane fast: FAILED") :]
    assert "── failed: tests.test_of_a_lane::test_breaks" in totals and "assert 1 == 2" in totals
    assert "test_holds" not in totals
    assert totals.endswith("lanes that failed: fast\n2 passed, 1 failed, 0 skipped\n")


def test_an_unknown_lane_is_wrong_use(lanes: types.ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert lanes.main(["fast", "bogus"]) == 2
    assert "no lane bogus" in capsys.readouterr().err


def test_a_missed_budget_is_said_and_fails_nothing(
    lanes: types.ModuleType, tree: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(lanes.BUDGET_MINUTES, "fast", 0.001)
    monkeypatch.setattr(lanes, "HANG_FACTOR", 1_000_000)
    (tree / "tests" / "test_of_a_lane.py").write_text("def test_holds(): ...")
    assert lanes.main(["fast"]) == 0
    said = capfd.readouterr().out
    assert "── lane fast: ok in " in said and "MISSED its budget by" in said


HANGS = (
    "threading.Thread(target=threading.Event().wait, daemon=True).start(); "
    "pathlib.Path('hangs').touch(); threading.Event().wait(600)"
)
DIES = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(
    ("goes_on", "words"),
    [
        (HANGS, "hung: not done after 91 s, in the middle of tests/test_of_a_lane.py::test_goes_on"),
        (DIES, "exit code -9, in the middle of tests/test_of_a_lane.py::test_goes_on"),
    ],
)
def test_a_lane_that_hangs_or_dies_names_the_test_that_ran(
    lanes: types.ModuleType,
    lane_process: types.ModuleType,
    tree: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    goes_on: str,
    words: str,
) -> None:
    """Its time is over once the test hangs: no budget of this test's is measured by the machine's clock.

    SIGINT is ignored here, as in a shell's background job, and pytest inherits that.
    """
    seconds = property(lambda self: 91.0 if (tree / "hangs").exists() else 0.0)
    monkeypatch.setattr(lane_process.LaneProcess, "seconds", seconds)
    monkeypatch.setitem(lanes.BUDGET_MINUTES, "fast", 0.5)
    (tree / "tests" / "test_of_a_lane.py").write_text(TESTS.format(goes_on=goes_on))
    interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert lanes.main(["fast"]) == 1
    finally:
        signal.signal(signal.SIGINT, interrupted)
    said = capfd.readouterr()
    assert words in said.out
    if goes_on is HANGS:
        assert "── failed: tests.test_of_a_lane::test_breaks" in said.out, "an interrupted lane reports"
        assert "in test_goes_on" in said.err, "a hung lane prints its stacks"
        assert "\nThread 0x" in f"\n{said.err}" and "Current thread 0x" in said.err, "every thread's"


def test_a_process_that_ignores_the_interrupt_is_killed(
    lanes: types.ModuleType, lane_process: types.ModuleType, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_process, "STACKS_S", 0.05)
    monkeypatch.setattr(lane_process, "REPORT_S", 0.05)
    stubborn = "signal.signal(signal.SIGINT, signal.SIG_IGN); " + HANGS
    (tree / "tests" / "test_of_a_lane.py").write_text(TESTS.format(goes_on=stubborn))
    process = lane_process.LaneProcess("fast", "not slow", ignored=[], log=tree / "log")
    monkeypatch.setattr(
        lane_process.LaneProcess, "seconds", property(lambda self: 91.0 if (tree / "hangs").exists() else 0.0)
    )
    outcome = process.wait(90.0, threading.Event())
    assert outcome.failed == 1 and "hung" in outcome.failures[0]
    assert process._process.returncode == -signal.SIGKILL


def test_lanes_of_two_tracks_run_side_by_side(
    lanes: types.ModuleType, tree: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each waits for the other's file, so neither can run first. What fails prints its whole log."""
    for lane, other in (("ray", "core"), ("core", "ray")):
        (tree / "tests" / f"test_{lane}.py").write_text(
            "import pathlib, time, pytest\n"
            f"@pytest.mark.{lane}\n"
            "def test_meets():\n"
            f"    pathlib.Path('{lane}').touch()\n"
            f"    while not pathlib.Path('{other}').exists(): time.sleep(0.01)\n"
            f"    assert '{lane}' == 'core'\n"
        )
    (tree / "pytest.ini").write_text("[pytest]\nmarkers =\n    ray\n    core\n")
    assert lanes.main(["ray", "core"]) == 1
    said = capfd.readouterr().out
    assert "E       AssertionError: assert 'ray' == 'core'" in said
    assert "── lane core: ok in" in said and "── lane ray: FAILED in" in said
    assert said.endswith("lanes that failed: ray\n1 passed, 1 failed, 0 skipped\n")
    assert (tree / "logs" / "core.log").exists()


def test_a_lane_beside_others_is_hung_once_its_tests_stand_still_or_twice_its_time_is_over(
    lane_process: types.ModuleType, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "tests" / "test_of_a_lane.py").write_text("def test_holds(): ...")
    process = lane_process.LaneProcess("fast", "not slow", ignored=[], log=tree / "log")
    now = {"seconds": 91.0, "quiet_s": 10.0}
    for name in now:
        monkeypatch.setattr(lane_process.LaneProcess, name, property(lambda self, name=name: now[name]))
    assert process.is_hung(90.0, patience_s=0.0) and not process.is_hung(90.0, patience_s=300.0)
    assert process.is_hung(90.0, patience_s=10.0) and not process.is_hung(91.0, patience_s=0.0)
    now["seconds"] = 181.0
    assert process.is_hung(90.0, patience_s=300.0)
    monkeypatch.undo()
    assert process.wait(600.0, threading.Event()).failed == 0


def test_a_lane_is_quiet_since_its_last_test_began(
    lane_process: types.ModuleType, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "tests" / "test_of_a_lane.py").write_text(TESTS.format(goes_on=HANGS))
    process = lane_process.LaneProcess("fast", "not slow", ignored=[], log=tree / "log")
    monkeypatch.setattr(lane_process.LaneProcess, "seconds", property(lambda self: 91.0))
    eventually((tree / "hangs").exists, "the test that hangs")
    os.utime(process._progress, (time.time() - 40, time.time() - 40))
    assert 40 <= process.quiet_s < 91
    outcome = process.wait(90.0, threading.Event(), patience_s=30.0)
    assert outcome.failed >= 1 and "hung: not done after 91 s" in outcome.failures[-1]


def test_a_slow_machine_has_longer_until_a_lane_counts_as_hung(lanes: types.ModuleType) -> None:
    usual = lanes.LOOP_S
    assert lanes.hang_s(60, beside=False, loop_s=usual) == lanes.hang_s(60, beside=False, loop_s=usual / 3) == 180
    assert lanes.hang_s(60, beside=True, loop_s=usual) == 360
    assert lanes.hang_s(60, beside=False, loop_s=2.5 * usual) == pytest.approx(450)
    assert lanes.hang_s(60, beside=False, loop_s=100 * usual) == 180 * lanes.SLOWNESS_MAX
