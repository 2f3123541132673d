"""The jars of Spark's own kafka source and sink, kept beside those of Apache Kafka.

Four jars that Maven Central has and no Python package: taken out of this machine's Maven repository where they are, else from Maven
Central by HTTPS, else by ``mvn``, which knows the mirrors of a network that has no other way out. Whatever brought them, their
SHA-256 are the ones written here.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from maven import PeerError, copy_jars

VERSION = "3.5.7"
CENTRAL = "https://repo1.maven.org/maven2"
TIMEOUT_S = 20
_CACHE = Path(__file__).resolve().parent / ".cache"
_REPOSITORY = Path.home() / ".m2" / "repository"


@dataclass(frozen=True, slots=True)
class Jar:
    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        """In a Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.name}"


JARS = (
    Jar(
        "org.apache.spark", "spark-sql-kafka-0-10_2.12", VERSION,
        "184f8bd4a3cd22299c49090d88b894f81fd7546b4ee64879519a0d76a685dbb8",
    ),
    Jar(
        "org.apache.spark", "spark-token-provider-kafka-0-10_2.12", VERSION,
        "9701914db5c6d09628b58d2d2c1ccd2c9ea28f32f83dd6cb21f98b8237531ff4",
    ),
    Jar(
        "org.apache.kafka", "kafka-clients", "3.4.1",
        "9d0a9058c8ede79db6e54ae378ed16fe8d1bead2894635a4aa6aa0b7981668c6",
    ),
    Jar(
        "org.apache.commons", "commons-pool2", "2.11.1",
        "ea0505ee7515e58b1ac0e686e4d1a5d9f7d808e251a61bc371aa0595b9963f83",
    ),
)  # fmt: skip
"""What a Spark session needs besides its own; six megabytes."""


def jars() -> list[Path]:
    """The four jars, fetched on first use. PeerError where there is no way to them."""
    folder = _CACHE / f"spark-kafka-{VERSION}"
    _CACHE.mkdir(exist_ok=True)
    with (_CACHE / "connector.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if any(not (folder / jar.name).is_file() for jar in JARS):
            folder.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=_CACHE) as scratch:
                _fetch(Path(scratch))
                for jar in JARS:
                    (Path(scratch) / jar.name).rename(folder / jar.name)
    return [folder / jar.name for jar in JARS]


def _fetch(folder: Path) -> None:
    """Put all jars into a folder, by the first of the ways that has them."""
    failed = []
    for what, way in (
        ("this machine's Maven repository", _from_repository),
        (CENTRAL, _from_central),
        ("mvn", _from_maven),
    ):
        try:
            way(folder)
            _check(folder)
        except (OSError, PeerError) as error:
            failed.append(f"{what}: {error}")
        else:
            return
    raise PeerError(f"the jars of Spark's kafka source cannot be had ({'; '.join(failed)})")


def _from_repository(folder: Path) -> None:
    for jar in JARS:
        shutil.copyfile(_REPOSITORY / jar.path, folder / jar.name)


def _from_central(folder: Path) -> None:
    for jar in JARS:
        with urllib.request.urlopen(f"{CENTRAL}/{jar.path}", timeout=TIMEOUT_S) as reply:
            (folder / jar.name).write_bytes(reply.read())


def _from_maven(folder: Path) -> None:
    copy_jars(folder, ((jar.group, jar.artifact, jar.version) for jar in JARS), alone=True)


def _check(folder: Path) -> None:
    for jar in JARS:
        found = hashlib.sha256((folder / jar.name).read_bytes()).hexdigest()
        if found != jar.sha256:
            raise PeerError(f"{jar.name} is not the one that is meant: its SHA-256 is {found}")
