"""Each request that a controller answers can be made over the wire."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

from raylog.metadata.requests import Request

SERVER = Path(__file__).resolve().parents[2] / "raylog" / "server"


def test_a_server_makes_each_request_of_a_controller_out_of_one_from_the_wire() -> None:
    called = set()
    for path in sorted(SERVER.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called.add(ast.unparse(node.func).rpartition(".")[2])
    assert {each.__name__ for each in get_args(Request)} - called == set()
