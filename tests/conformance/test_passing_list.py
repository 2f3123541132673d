"""``passing.txt`` holds what real clients are known to do, and only grows: every line names a case that is there, every case is named.

Runs in the fast lane, where it reads the sources. That cases with parameters are there is seen in the conformance lane, which collects
them. The client libraries must each have a
case for every word of ``CORE``; what a library has no means for is in ``HAS_NONE``.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

import pytest

HERE = Path(__file__).resolve().parent
CASES_MIN = 291  # raised with every line that is added
CORE = (
    "produce", "consume", "idempotent producer", "compression codecs", "headers", "timestamps", "offsets for times", "seek", "pause",
    "large messages", "message too large", "unknown topic", "consumer callbacks", "incremental alter configs", "list offsets",
    "admin of topics", "metadata", "groups", "groups, cooperative-sticky", "groups, static members", "groups, commits", "groups, admin",
    "a leader killed", "a coordinator killed", "a Broker killed",
)  # fmt: skip
LIBRARIES = ("confluent-kafka", "kafka-python", "aiokafka")
HAS_NONE = {("aiokafka", "incremental alter configs"), ("aiokafka", "groups, cooperative-sticky")}
PROGRAMS = {"kcat": ("produce", "consume", "metadata", "query offsets")}


class Line(NamedTuple):
    client: str
    word: str
    case: str


def listed() -> list[Line]:
    text = (HERE / "passing.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [Line(*(part.strip() for part in line.split(" | "))) for line in lines]


def cases() -> set[str]:
    """All test functions of this folder, without their parameters."""
    found = set()
    for path in HERE.glob("test_*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found.add(f"{path.name}::{node.name}")
    return {each for each in found if not each.startswith(Path(__file__).name)}


def test_every_case_that_is_listed_is_there_and_every_case_is_listed() -> None:
    named = {line.case.partition("[")[0] for line in listed()}
    assert named == cases(), f"listed only: {sorted(named - cases())}; there only: {sorted(cases() - named)}"


def test_the_list_only_grows() -> None:
    assert len(listed()) >= CASES_MIN, "a line is gone"
    assert len({(line.client, line.word) for line in listed()}) == len(listed()), "a word is there twice"


@pytest.mark.conformance
def test_the_parameters_that_are_listed_are_there(request: pytest.FixtureRequest) -> None:
    options = request.config.option
    if options.keyword or any("::" in each for each in options.file_or_dir):
        pytest.skip("only some cases were asked for")
    collected = {f"{item.path.name}::{item.name}" for item in request.session.items if item.path.parent == HERE}
    modules = {case.partition("::")[0] for case in collected}
    wanted = {line.case for line in listed() if "[" in line.case and line.case.partition("::")[0] in modules}
    assert wanted <= collected, f"not collected: {sorted(wanted - collected)}"


def test_every_client_has_a_case_for_each_word() -> None:
    there = {(line.client, line.word) for line in listed()}
    wanted = {(client, word) for client in LIBRARIES for word in CORE}
    wanted |= {(client, word) for client, words in PROGRAMS.items() for word in words}
    assert wanted - there == HAS_NONE
