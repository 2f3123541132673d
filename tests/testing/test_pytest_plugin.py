"""The plugin for other people's tests: there for who asks, and nothing to everybody else. And the page that shows it all."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
LINES_OF_A_TEST = 10


def run(folder: Path, text: str, *options: str) -> str:
    """pytest's output for that file of tests, in a process and a project of its own."""
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider --strict-markers -W error\n")
    (folder / "test_theirs.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", *options, "test_theirs.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    return done.stdout + done.stderr


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_pytest_finds_the_plugin() -> None:
    (found,) = (each for each in importlib.metadata.entry_points(group="pytest11") if each.name == "raylog")
    assert found.value == "raylog.testing.pytest_plugin"


def test_the_page_begins_with_a_test_of_ten_lines() -> None:
    lines = [line for line in blocks()[0].splitlines() if line.strip()]
    assert len(lines) <= LINES_OF_A_TEST


@pytest.mark.conformance
def test_the_fixture_is_a_broker_as_the_marker_says(tmp_path: Path) -> None:
    text = """
import pytest

pytestmark = pytest.mark.raylog_broker(topics=["of-the-module"], brokers=2)


def test_module(raylog_broker):
    assert raylog_broker.records("of-the-module") == []
    assert raylog_broker.bootstrap.count(",") == 1


@pytest.mark.raylog_broker(topics={"own": 2})
def test_nearest_marker_counts(raylog_broker):
    assert raylog_broker.records("own") == []
    assert raylog_broker.bootstrap.count(",") == 1


@pytest.mark.raylog_broker(topics="mistake")
def test_mistake(raylog_broker):
    pass
"""
    output = run(tmp_path, text)
    assert "2 passed, 1 error" in output, output
    assert "give a list of names" in output


@pytest.mark.conformance
def test_who_does_not_use_the_fixture_imports_nothing(tmp_path: Path) -> None:
    text = """
import sys


def test_mine():
    found = [name for name in sys.modules if name.partition(".")[0] in ("raylog", "kio", "ray")]
    lazy = ["raylog", "raylog.lazy_names", "raylog.testing", "raylog.testing.pytest_plugin"]
    assert sorted(found) == [*lazy, "raylog.version"]
"""
    output = run(tmp_path, text)
    assert "1 passed" in output, output


@pytest.mark.conformance
def test_the_broker_runs_without_ray_pytest_and_what_only_clients_need(tmp_path: Path) -> None:
    program = """
import sys
import raylog
with raylog.testing.broker(topics=["t"]) as kafka:
    assert kafka.records("t") == []
found = {"ray", "pytest", "pydantic", "pyarrow", "numpy"} & set(sys.modules)
assert not found, found
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=300)


@pytest.mark.conformance
def test_everything_that_the_page_shows_runs(tmp_path: Path) -> None:
    shown = blocks()
    output = run(tmp_path, "\n\n".join(shown))
    count = sum(block.count("def test_") for block in shown)
    assert count >= 6 and re.search(rf"^{count} passed", output, re.MULTILINE), output
