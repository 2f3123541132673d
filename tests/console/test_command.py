"""``raylog console`` as a process: its URL, its options, its end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from raylog.testing import Kafka

pytestmark = pytest.mark.core
COMMAND = [sys.executable, "-m", "raylog.cli.entry", "console"]


def refused(*options: str) -> str:
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done
    return done.stderr


def test_the_command_says_its_url_serves_and_ends_by_a_signal(kafka: Kafka, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text(f"bootstrap.servers={kafka.bootstrap}\nclient.id=watcher\n")
    options = ["--command-config", str(config), "--port", "0", "--json", "--read-only"]
    process = subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        assert said["read_only"] is True and said["url"].startswith("http://127.0.0.1:")
        with urllib.request.urlopen(said["url"] + "topics", timeout=60) as answer:
            page = answer.read().decode()
        assert ">orders</a>" in page and ">read-only<" in page
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    assert "Every program of this machine may use this console" in errors and "Traceback" not in errors


def test_what_cannot_be_is_refused_before_the_cluster_is_asked(tmp_path: Path) -> None:
    assert "--password-file" in refused("--host", "0.0.0.0", "--bootstrap-server", "127.0.0.1:1")
    empty = tmp_path / "password"
    empty.write_text("\n")
    assert "is empty" in refused("--password-file", str(empty))
    assert "cannot be read" in refused("--password-file", str(tmp_path / "none"))


def test_a_certificate_that_is_none_and_a_port_that_is_taken_are_refused(kafka: Kafka, tmp_path: Path) -> None:
    pem = tmp_path / "a.pem"
    pem.write_text("no certificate\n")
    files = ["--ssl-certificate", str(pem), "--ssl-key", str(pem)]
    assert "--ssl-certificate" in refused("--bootstrap-server", kafka.bootstrap, "--port", "0", *files)
    port = kafka.bootstrap.split(",")[0].partition(":")[2]
    assert "cannot listen" in refused("--bootstrap-server", kafka.bootstrap, "--port", port)


def test_the_registry_of_the_command_decodes_what_the_pages_show(kafka: Kafka, tmp_path: Path) -> None:
    from schema_registry import framed, schema_registry

    with schema_registry(tmp_path, authorization="ann:secret") as registry:
        kafka.write("payments", framed(registry.register("payments-value", '"long"'), b"\x0e"))
        password = tmp_path / "password"
        password.write_text("secret\n")
        options = ["--bootstrap-server", kafka.bootstrap, "--port", "0", "--json", "--schema-registry", registry.url]
        options += ["--schema-registry-user", "ann", "--schema-registry-password-file", str(password)]
        process = subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            with urllib.request.urlopen(url + "topics/payments/messages?count=1", timeout=60) as answer:
                assert "Avro long" in answer.read().decode()
        finally:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
    assert process.returncode == 143 and "Traceback" not in errors, errors
