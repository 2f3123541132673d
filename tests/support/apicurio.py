"""Apicurio Registry as a process, which keeps its schemas in a topic of the cluster under test; or a skip that says why.

Karapace cannot be had by pip. Apicurio's distribution is on Maven Central (109 MB); it is unpacked into ``build`` once. Maven itself does
not fetch it, because the description of its parent is not there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from connect_worker import free_port

VERSION = "3.0.9"  # 3.3 needs a Java that is newer than 17
URL = f"https://repo.maven.apache.org/maven2/io/apicurio/apicurio-registry-app/{VERSION}/apicurio-registry-app-{VERSION}-all.tar.gz"
SHA256 = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
HOME = Path(__file__).resolve().parents[2] / "build" / "apicurio" / VERSION
PATIENCE_S = 300.0


def program() -> Path:
    """The jar that runs; skips where Java or the distribution cannot be had."""
    found = HOME / f"apicurio-registry-app-{VERSION}-runner.jar"
    if found.exists():
        return found
    if shutil.which("java") is None:
        pytest.skip("no java on this machine: Apicurio Registry cannot run")
    HOME.mkdir(parents=True, exist_ok=True)
    packed = HOME / "all.tar.gz"
    try:
        with urllib.request.urlopen(URL, timeout=60) as answer, packed.open("wb") as file:
            shutil.copyfileobj(answer, file)
    except OSError as error:
        pytest.skip(f"Apicurio Registry cannot be had: {error}")
    with packed.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == SHA256, f"{URL} is not what it was"
    with tarfile.open(packed) as archive:
        archive.extractall(HOME, filter="data")
    packed.unlink()
    return found


@contextmanager
def apicurio(bootstrap: str, log: Path) -> Iterator[str]:
    """The URL under which it speaks Confluent's REST."""
    port, management = free_port(), free_port()
    settings = {
        "APICURIO_STORAGE_KIND": "kafkasql",
        "APICURIO_KAFKASQL_BOOTSTRAP_SERVERS": bootstrap,
        "QUARKUS_HTTP_HOST": "127.0.0.1",
        "QUARKUS_HTTP_PORT": str(port),
        "QUARKUS_MANAGEMENT_HOST": "127.0.0.1",
        "QUARKUS_MANAGEMENT_PORT": str(management),
    }
    command = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-jar", str(program())]
    with log.open("w") as file:
        process = subprocess.Popen(command, env=os.environ | settings, stdout=file, stderr=file)
    try:
        url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        _await(f"{url}/subjects", process, log)
        yield url
    finally:
        process.kill()
        process.wait()


def _await(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    from raw_requests import eventually

    def answers() -> bool:
        assert process.poll() is None, log.read_text()[-4_000:]
        try:
            with urllib.request.urlopen(url, timeout=10):
                return True
        except (OSError, urllib.error.URLError):
            return False

    eventually(answers, "Apicurio Registry to answer", PATIENCE_S)
