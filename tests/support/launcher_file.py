"""The repository's ``cluster.yaml`` as a user changes it."""

from __future__ import annotations

from pathlib import Path

CLUSTER_YAML = Path(__file__).resolve().parents[2] / "cluster.yaml"
RESOURCES = "raylog node resources /data/raylog/disk-*"
CONFIG = "--config /data/raylog/tls/server.properties"


def with_tls(text: str) -> str:
    """What the file says of TLS is done: lines marked so have lost their #, and each node names its settings."""
    lines = text.splitlines(keepends=True)
    marked = [line for line in lines if line.startswith("#") and line.rstrip().endswith("# TLS")]
    assert len(marked) == 3 and text.count(RESOURCES) == 2 and f"#   {CONFIG}\n" in text
    return "".join(line[1:] if line in marked else line for line in lines).replace(RESOURCES, f"{RESOURCES} {CONFIG}")
