"""Each test vector of the specification that is in scope has a test that carries its name.

A vector ``TV-n`` is proven by test functions with ``tv_n_`` in their names, which the other folders hold. This test reads the
sources, so it also sees tests of lanes that are not run here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent
IN_SCOPE = frozenset(range(35))
EXEMPT = frozenset([8, 24])


def vectors_of(name: str) -> set[int]:
    """The numbers of the vectors that a test's name claims."""
    return {int(number) for number in re.findall(r"(?<![a-z0-9])tv_(\d+)(?=_|$)", name)}


def functions_under(folder: Path) -> Iterator[str]:
    """The names of all test functions and methods below a folder, in files that speak of vectors."""
    for path in sorted(folder.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "tv_" in text else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield node.name


def test_every_vector_in_scope_has_a_test_of_its_name() -> None:
    proven = {vector for name in functions_under(TESTS) for vector in vectors_of(name)}
    missing = sorted(IN_SCOPE - EXEMPT - proven)
    assert not missing, "no test is named for " + ", ".join(f"TV-{vector}" for vector in missing)


def test_names_are_read_as_claims_of_vectors() -> None:
    assert vectors_of("test_tv_2_and_tv_34_hold") == {2, 34}
    assert vectors_of("test_the_view_of_tv_sets") == set()
    assert vectors_of("test_xtv_3_y") == set()
