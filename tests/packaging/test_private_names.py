"""Private names of Ray, Spark and kio stand behind one module each, and every one that is used is
listed here: a new release is held against this list.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RAY = {
    "ray._common.tls_utils:load_certs_from_env",
    "ray._private.authentication.authentication_token_setup",
    "ray._private.node:Node",
    "ray._private.parameter:RayParams",
    "ray._private.ray_constants",
    "ray._private.services",
    "ray._private.state:available_resources_per_node",
    "ray._private.state:state",
    "ray._private.tls_utils:load_certs_from_env",
    "ray._private.worker",
    "ray._raylet",
    "ray.core.generated.gcs_pb2",
    "ray.core.generated.gcs_service_pb2",
    "ray.scripts.scripts:main",
}
SPARK = {
    "_active_spark_context",
    "_gateway",
    "_jdf",
    "_jsc",
    "_jsparkSession",
    "_jvm",
    "_parse_datatype_string",
}
KIO = {"kio.serial._implicit_defaults", "kio.serial._introspect"}
PATTERNS = {
    "placement/ray_private.py": (r"\bray\.(?:_[a-z]\w*|core|scripts)\b[\w.:]*", RAY),
    "raylog/spark/spark_private.py": (
        r"(?<=[. ])_(?:active_spark_context|gateway|jdf|jsc|jsparkSession|jvm|parse_datatype_string)\b",
        SPARK,
    ),
    "raylog/wire/schema.py": (r"kio(?:\.\w+)*\._\w+", KIO),
}

pytestmark = pytest.mark.core


def used(pattern: str) -> dict[str, set[str]]:
    """The names that fit, by the module that has them, comments and docstrings included."""
    found: dict[str, set[str]] = {}
    for folder in ("raylog", "actors", "placement"):
        for path in (ROOT / folder).rglob("*.py"):
            if (ROOT / folder).is_symlink() or any(each.is_symlink() for each in path.parents):
                continue
            if names := set(re.findall(pattern, path.read_text())):
                found[str(path.relative_to(ROOT))] = names
    return found


@pytest.mark.parametrize("module", PATTERNS)
def test_private_names_are_used_in_one_module_and_listed(module: str) -> None:
    pattern, listed = PATTERNS[module]
    assert used(pattern) == {module: listed}
