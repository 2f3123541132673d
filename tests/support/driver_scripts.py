"""Programs as users write them, run in processes of their own: what they print is what a user sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROLOGUE = """
import json, os, signal, sys, time
import raylog

def note(**facts):
    print(json.dumps(facts), flush=True)

def eventually(condition, timeout_s=180):
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise SystemExit("a condition did not come true")
        time.sleep(0.02)
    return found

def part(cluster, topic):
    return next(each for each in cluster.status()["topics"] if each["name"] == topic)["partitions"][0]

def is_whole(cluster, topic):
    found = part(cluster, topic)
    return found["leader"] >= 0 and not found["offline"] and sorted(found["isr"]) == sorted(found["replicas"])

def make(cluster, topic):
    cluster.admin().create_topics([raylog.NewTopic(topic, 1, 3, configs={"min.insync.replicas": "2"})])
    eventually(lambda: is_whole(cluster, topic))

def pid_of(cluster, node):
    return next(each["pid"] for each in cluster.status()["actors"] if each["node_id"] == node)
"""


@dataclass(frozen=True)
class Run:
    """What a program printed. ``facts`` are its notes, merged."""

    code: int
    stdout: str
    stderr: str

    @property
    def facts(self) -> dict[str, Any]:
        return facts_of(self.stdout)


def facts_of(output: str) -> dict[str, Any]:
    """The notes of a program that printed this, merged."""
    merged: dict[str, Any] = {}
    for line in output.splitlines():
        if line.startswith("{"):
            merged |= json.loads(line)
    return merged


def run_script(
    folder: Path,
    body: str,
    *arguments: str,
    command: list[str] | None = None,
    timeout_s: float = 500,
    **environment: str,
) -> Run:
    """Run a program that starts with ``PROLOGUE``; its working directory is ``folder``, its input stays open and empty."""
    script = folder / "program.py"
    script.write_text(PROLOGUE + body)
    done = subprocess.Popen(
        [*(command or [sys.executable]), str(script), *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        stdout, stderr = done.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        done.kill()
        stdout, stderr = done.communicate()
        raise AssertionError(f"the program did not end within {timeout_s} s: {stdout}\n{stderr}") from None
    return Run(done.returncode, stdout, stderr)
