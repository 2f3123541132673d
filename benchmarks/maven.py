"""Jars by ``mvn dependency:copy-dependencies``, which knows the mirrors of a network that has no other way to Maven Central."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

_TOLD_CHARACTERS = 2000


class PeerError(RuntimeError):
    """A peer could not be fetched, started or asked; the message says what to do."""


def copy_jars(folder: Path, jars: Iterable[tuple[str, str, str]], *, alone: bool = False) -> None:
    """Put jars into a folder, (group, artifact, version) each; and, unless ``alone``, all that they depend on.

    PeerError without Maven, or with what Maven says.
    """
    maven = shutil.which("mvn")
    if maven is None:
        raise PeerError("Maven is missing: apt-get install maven")
    pom = folder / "pom.xml"
    pom.write_text(_project(jars, alone))
    command = [maven, "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    pom.unlink()
    if done.returncode:
        raise PeerError(f"Maven fetches nothing:\n{done.stdout[-_TOLD_CHARACTERS:]}{done.stderr[-_TOLD_CHARACTERS:]}")


def _project(jars: Iterable[tuple[str, str, str]], alone: bool) -> str:
    without = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    dependencies = "".join(
        "    <dependency>"
        f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>{without if alone else ''}"
        "</dependency>\n"
        for group, artifact, version in jars
    )
    return f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>raylog.benchmarks</groupId>
  <artifactId>peers</artifactId>
  <version>1</version>
  <dependencies>
{dependencies}  </dependencies>
</project>
"""
