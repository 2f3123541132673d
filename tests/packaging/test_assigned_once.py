"""A module gives each of its constants a value once: a second one beside the first would change alone."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.core
ROOT = Path(__file__).resolve().parents[2]
PRODUCT = [
    path
    for folder in ("raylog", "actors", "placement")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not any(parent.is_symlink() for parent in path.parents)
]


def assigned_twice(module: ast.Module) -> list[str]:
    """The constants of a module that it assigns more than once; branches of an ``if`` or ``try`` do not count."""
    names: Counter[str] = Counter()
    for statement in module.body:
        match statement:
            case ast.Assign(targets=targets):
                names.update(target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                names[name] += 1
    return sorted(name for name, count in names.items() if count > 1)


def test_each_constant_is_assigned_once() -> None:
    again = {
        str(path.relative_to(ROOT)): names for path in PRODUCT if (names := assigned_twice(ast.parse(path.read_text())))
    }
    assert not again


def test_a_second_value_is_found() -> None:
    assert assigned_twice(ast.parse("A = 1\nB: int = 2\nA = 3\n")) == ["A"]
