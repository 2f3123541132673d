"""The shape of the tree: how long files and functions are, whose names classes share, how matches end, where folders are.

What broke a rule before the rule was made is listed. The lists may only become shorter: a test fails for an entry that is needed no more.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
FOLDER_FILES_MAX = 15

MATCHED = ("effect", "event", "frame", "message", "order", "record", "request")
"""Names under which values of closed unions are matched."""
OPEN_MATCHES = {
    "raylog/groups/machine.py",  # which requests have to wait for a leader: most need no more than the default
    "raylog/metadata/controller.py",  # all other events are the active controller's
    "raylog/replication/parked.py",
    "raylog/simulator/simulated_sessions.py",
}


@cache
def modules() -> dict[str, ast.Module]:
    """By path from the root. Without the links, which lead to the folders at the root."""
    paths = [path for folder in ("raylog", "actors", "placement") for path in sorted((ROOT / folder).rglob("*.py"))]
    named = {str(path.relative_to(ROOT)): path for path in paths}
    return {
        name: ast.parse(path.read_text())
        for name, path in named.items()
        if not name.startswith(("raylog/actors/", "raylog/placement/"))
    }


def nodes(kind: type | tuple[type, ...]) -> Iterator[tuple[str, ast.AST]]:
    for name, module in modules().items():
        for node in ast.walk(module):
            if isinstance(node, kind):
                yield name, node


def test_there_is_something_to_look_at() -> None:
    assert len(modules()) > 400 and "raylog/server/replica_server.py" in modules()


def test_no_file_is_long() -> None:
    kernel = [str(path.relative_to(ROOT)) for path in (ROOT / "raylog").rglob("*.[ch]")]
    files = [*modules(), *kernel]
    assert kernel
    long = {name for name in files if len((ROOT / name).read_text().splitlines()) > FILE_LINES_MAX}
    assert not long, long


@pytest.mark.parametrize("folder", ["tests", "benchmarks"])
def test_no_test_or_benchmark_is_long(folder: str) -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py")}
    long = {str(path.relative_to(ROOT)) for path, length in lengths.items() if length > FILE_LINES_MAX}
    assert lengths and not long, long


@pytest.mark.parametrize("room", ["client", "metadata"])
def test_a_room_with_much_in_it_has_folders(room: str) -> None:
    folders = [path for path in (ROOT / "raylog" / room).rglob("*") if path.is_dir() and path.name != "__pycache__"]
    crowded = {path.name: len(list(path.glob("*.py"))) for path in [ROOT / "raylog" / room, *folders]}
    assert len(crowded) > 3 and max(crowded.values()) <= FOLDER_FILES_MAX, crowded


def test_no_function_is_long() -> None:
    functions = nodes((ast.FunctionDef, ast.AsyncFunctionDef))
    long = {
        f"{name} {node.name}"  # type: ignore[attr-defined]
        for name, node in functions
        if node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX  # type: ignore[attr-defined]
    }
    assert not long, long


def test_no_two_classes_share_a_name() -> None:
    found = defaultdict(set)
    for name, node in nodes(ast.ClassDef):
        found[node.name].add(name)  # type: ignore[attr-defined]
    shared = {name: where for name, where in found.items() if len(where) > 1}
    assert not shared, shared


def test_a_match_over_a_closed_union_says_that_nothing_is_left() -> None:
    """So a new event, effect or record that somebody forgets is a type error."""
    without = set()
    for name, node in nodes(ast.Match):
        assert isinstance(node, ast.Match)
        if isinstance(node.subject, ast.Name) and node.subject.id in MATCHED:
            last = node.cases[-1]
            if "assert_never" not in ast.unparse(last.body[0]):
                without.add(name)
    assert without <= OPEN_MATCHES, f"end these with `case _: assert_never(…)`: {sorted(without - OPEN_MATCHES)}"
    assert without >= OPEN_MATCHES, f"list these no more: {sorted(OPEN_MATCHES - without)}"


@pytest.mark.parametrize("folder", ["actors", "placement"])
def test_rays_own_folders_stay_at_the_top(folder: str) -> None:
    assert (ROOT / folder).is_dir() and not (ROOT / folder).is_symlink() and (ROOT / "raylog" / folder).is_symlink()


CITED = re.compile(
    r"\[([ALPQ]\d+(?:[–, ]+[ALPQ]\d+)*)\]|\((?:[^()`\"]*?[ ,;])?([ALPQ]\d+)[):]|\b(TV-\d+)\b|\b(?:DESIGN|design) §(\d+)"
)
"""How comments and docs cite the specification and the design: ``[L22, L24]``, ``(Q9)``, ``TV-21``, ``DESIGN §6``."""


def prose(path: Path) -> str:
    """A page, or the comments and docstrings of a module."""
    if path.suffix != ".py":
        return path.read_text()
    with path.open("rb") as file:
        tokens = list(tokenize.tokenize(file.readline))
    triple = [each.string for each in tokens if each.type == tokenize.STRING and each.string.startswith('"""')]
    return "\n".join([*triple, *(each.string for each in tokens if each.type == tokenize.COMMENT)])


def cited_ids(text: str) -> set[str]:
    """The ids that a text cites; both ends of a range such as ``[L22–L26]``."""
    found: set[str] = set()
    for bracketed, parenthesised, vector, section in CITED.findall(text):
        found.update(re.findall(r"[ALPQ]\d+", bracketed or parenthesised))
        found.update([vector] if vector else [])
        found.update([f"§{section}"] if section else [])
    return found


def test_every_citation_leads_to_an_id_or_a_section() -> None:
    specification = "".join(path.read_text() for path in sorted((ROOT / "docs" / "specification").glob("*.md")))
    sections = re.findall(r"(?m)^## (\d+)\. ", (ROOT / "docs" / "design.md").read_text())
    there = {*re.findall(r'<a id="([^"]+)">', specification), *(f"§{section}" for section in sections)}
    paths = [ROOT / name for name in modules()] + [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    cited = {path: cited_ids(prose(path)) for path in paths}
    assert {"L22", "L26", "P8", "Q9", "A20", "TV-21", "§6"} <= set().union(*cited.values())
    lost = {str(path.relative_to(ROOT)): sorted(ids - there) for path, ids in cited.items() if ids - there}
    assert not lost, f"add these to docs/specification or docs/design.md, or cite something else: {lost}"
