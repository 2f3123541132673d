"""The first command of a newcomer, where the machine is not the right one, and the arithmetic of lanes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.core


@pytest.fixture
def lanes() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("lanes", ROOT / ".ci" / "lanes.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["lanes"] = module
    spec.loader.exec_module(module)
    return module


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
    assert run.stderr == "raylog runs on Linux x86_64 with Python 3.11 or 3.12; this is Darwin arm64.\n"


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
            "[test,demo]",
            "[spark]",
            "cli.demo",
            "flights_pipeline.py",
        )
    ]
    assert places == sorted(places)


def test_the_demo_without_spark_installs_none_and_leaves_the_second_act_out(tmp_path: Path) -> None:
    commands = commands_of_demo(tmp_path, "SPARK=0")
    assert "1.1 GB" in commands and "[test,demo]" in commands and "raylog.cli.demo" in commands
    assert "[spark]" not in commands and "flights_pipeline" not in commands and "0.5 GB" not in commands


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


def test_totals_are_read_from_the_report(lanes: types.ModuleType, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite tests="10" failures="2" errors="1" skipped="3"/><testsuite tests="1"/></testsuites>'
    )
    assert lanes.read_report(report) == lanes.Outcome(passed=5, failed=3, skipped=3)
    assert lanes.read_report(tmp_path / "none") == lanes.Outcome(0, 0, 0)


def test_what_failed_is_said_once_more_beside_the_totals(
    lanes: types.ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuite tests="2" failures="1"><testcase classname="tests.log" name="holds"/>'
        '<testcase classname="tests.log" name="breaks"><failure message="m">first\nE  assert 1 == 2</failure></testcase></testsuite>'
    )
    monkeypatch.setattr(lanes, "run_lane", lambda lane: lanes.read_report(report))
    assert lanes.main(["fast"]) == 1
    said = capsys.readouterr().out
    assert "── failed: tests.log::breaks\nfirst\nE  assert 1 == 2\nlanes that failed: fast\n1 passed, 1 failed" in said
    assert "holds" not in said


def test_an_unknown_lane_is_wrong_use(lanes: types.ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert lanes.main(["fast", "bogus"]) == 2
    assert "no lane bogus" in capsys.readouterr().err


def test_a_lane_that_spends_its_budget_fails_and_its_process_ends(
    lanes: types.ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(lanes.BUDGET_MINUTES, "fast", 0.005)
    monkeypatch.setattr(lanes, "mark_expression", lambda lane: "slow")
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def sleeping(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        program = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
        process = popen([sys.executable, "-c", program], start_new_session=True)
        started.append(process)
        return process

    monkeypatch.setattr(lanes.subprocess, "Popen", sleeping)
    monkeypatch.setattr(lanes, "REPORT_S", 0.05)
    assert lanes.main(["fast"]) == 1
    assert started[0].returncode is not None and started[0].returncode < 0
    assert "FAILED, not done" in capsys.readouterr().out


TESTS = """
import os, pathlib, signal, time
def test_breaks(): assert 1 == 2
def test_hangs(): {hangs}
"""


@pytest.mark.parametrize(
    ("hangs", "words"),
    [
        ("pathlib.Path('hangs').touch(); time.sleep(600)", "not done after its 1 min, in the middle of {test}"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "exit code -9, in the middle of {test}"),
    ],
)
def test_a_lane_that_is_late_or_dies_names_the_test_that_ran(
    lanes: types.ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    hangs: str,
    words: str,
) -> None:
    class Late(subprocess.Popen[bytes]):
        """Its lane's time is over once the test hangs."""

        def wait(self, timeout: float | None = None) -> int:
            if timeout == lanes.BUDGET_MINUTES["fast"] * 60:
                while self.poll() is None:
                    if (tmp_path / "hangs").exists():
                        raise subprocess.TimeoutExpired(self.args, timeout)
                    threading.Event().wait(0.01)
            return super().wait(timeout)

    (tmp_path / "test_of_a_lane.py").write_text(TESTS.format(hangs=hangs))
    (tmp_path / ".ci").symlink_to(ROOT / ".ci")
    monkeypatch.setattr(lanes, "ROOT", tmp_path)
    monkeypatch.setattr(lanes, "REPORT_S", 200)
    monkeypatch.setattr(lanes.subprocess, "Popen", Late)
    assert lanes.main(["fast"]) == 1
    said = capsys.readouterr().out
    assert words.format(test="test_of_a_lane.py::test_hangs") in said
    assert ("── failed: test_of_a_lane::test_breaks" in said) == ("sleep" in hangs), "who is interrupted reports"
