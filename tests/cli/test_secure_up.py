"""``raylog up --secure``: files that only their owner reads, and what it prints works as it stands."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from raylog import secure_up
from raylog.configs.server_properties import server_properties
from raylog.disks.link_file import wanted_links
from raylog.disks.secure_files import SecureFiles
from raylog.errors import ConfigError
from raylog.extras import is_installed
from raylog.secure_up import make_secure
from raylog.security.principal_mapping import PrincipalMapping
from raylog.wire.listeners import checked, listeners_of

NOTHING_SAID = server_properties(None)
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
ours = pytest.mark.core


def settings(folder: Path, *, is_mutual: bool = False, **given: Any) -> tuple[SecureFiles, list[str], Any]:
    usual = {
        "configs": NOTHING_SAID,
        "brokers": 1,
        "listeners": None,
        "advertised_listeners": None,
        "host": "127.0.0.1",
    }
    of_start = usual | given
    return make_secure(folder, of_start, is_mutual=is_mutual), of_start["listeners"], of_start["configs"]


@ours
def test_only_their_owner_reads_the_files_and_they_are_kept(tmp_path: Path) -> None:
    files, texts, told = settings(tmp_path)
    files.write_client("127.0.0.1:9092")
    assert texts == ["SASL_SSL://127.0.0.1:9092"]
    assert dict(told.configs) == {"authorizer.class.name": "raylog", "super.users": "User:admin"} and told.is_given
    assert files.folder.stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in files.folder.iterdir()}
    assert modes.pop("authority.pem") == 0o644 and set(modes.values()) == {0o600} and len(modes) == 4
    before = {path.name: path.read_bytes() for path in files.folder.iterdir()}
    files.folder.chmod(0o755)
    settings(tmp_path)
    assert files.folder.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.read_bytes() for path in files.folder.iterdir()} == before
    other, _, _ = settings(tmp_path / "other")
    assert other.read_password() != files.read_password() and len(files.read_password()) >= 32


@ours
def test_the_brokers_certificate_is_one_that_a_listener_takes_and_names_its_hosts(tmp_path: Path) -> None:
    files, texts, told = settings(
        tmp_path, listeners=["SASL_SSL://:9093"], advertised_listeners=["SASL_SSL://kafka.example:9093"]
    )
    checked([listeners_of(texts[0], "SASL_SSL://kafka.example:9093", told.listener_configs)])
    text = subprocess.run(
        ["openssl", "x509", "-in", files.broker, "-noout", "-text"], capture_output=True, text=True, check=True
    ).stdout
    assert "DNS:kafka.example" in text and "DNS:localhost" in text and "IP Address:127.0.0.1" in text
    addresses = {
        each.address for found in psutil.net_if_addrs().values() for each in found if each.family.name == "AF_INET"
    }
    assert all(f"IP Address:{each}" in text for each in addresses), "a wildcard stands for every address"
    assert "0.0.0.0" not in text
    verified = ["openssl", "verify", "-x509_strict", "-CAfile", files.authority, files.broker]
    assert subprocess.run(verified, capture_output=True, text=True).returncode == 0


@ours
def test_links_inside_have_tls_by_the_same_certificate(tmp_path: Path) -> None:
    files, _, told = settings(tmp_path)
    assert told.link_configs["ssl.keystore.location"] == str(files.broker)
    assert told.link_configs["ssl.truststore.location"] == str(files.authority)
    assert wanted_links(told, "127.0.0.1") == tuple(sorted(told.link_configs.items()))
    with pytest.raises(ConfigError, match=r"name 10\.0\.0\.7"):
        wanted_links(told, "10.0.0.7")
    plain = server_properties({"security.inter.broker.protocol": "PLAINTEXT"})
    with pytest.raises(ConfigError, match=r"leave security\.inter\.broker\.protocol out, or --secure"):
        settings(tmp_path, configs=plain)


@ours
def test_it_is_made_anew_for_another_host_and_before_it_ends(tmp_path: Path) -> None:
    files = SecureFiles(tmp_path / "security")
    files.make(["localhost"], NOW)
    first, authority = files.broker.read_bytes(), files.authority.read_bytes()
    files.make(["localhost"], NOW + datetime.timedelta(days=300))
    assert files.broker.read_bytes() == first
    files.make(["localhost"], NOW + datetime.timedelta(days=310))
    second = files.broker.read_bytes()
    assert second != first
    files.make(["localhost", "kafka.example"], NOW + datetime.timedelta(days=310))
    assert files.broker.read_bytes() != second and files.authority.read_bytes() == authority
    files.authority.unlink()
    files.make(["localhost", "kafka.example"], NOW)
    assert (
        subprocess.run(
            ["openssl", "verify", "-partial_chain", "-no_check_time", "-CAfile", files.authority, files.broker]
        ).returncode
        == 0
    )


@ours
def test_what_would_make_it_less_secure_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--secure starts SASL_SSL listeners only: 127\.0\.0\.1:9092 is none"):
        settings(tmp_path, listeners=["SASL_SSL://127.0.0.1:9093,127.0.0.1:9092"])
    mine = replace(NOTHING_SAID, listener_configs={"ssl.keystore.location": "/mine.pem"})
    with pytest.raises(ConfigError, match=r"leave ssl\.keystore\.location out, or --secure"):
        settings(tmp_path, configs=mine)
    files = SecureFiles(tmp_path / "broken")
    files.folder.mkdir()
    files.authority.write_text("x")
    files.authority_key.write_text("y")
    files.broker.write_text("z")
    with pytest.raises(ConfigError, match="remove what is damaged"):
        files.make(["localhost"], NOW)


@ours
def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from raylog import extras

    monkeypatch.setattr(extras, "is_installed", lambda package: package != "cryptography" and is_installed(package))
    with pytest.raises(ImportError, match=r"raylog up --secure needs cryptography, .* pip install 'raylog\[secure\]'"):
        settings(tmp_path)
    assert not list(tmp_path.iterdir())


@ours
def test_no_text_to_paste_holds_the_password(tmp_path: Path) -> None:
    files, _, _ = settings(tmp_path)
    security = {
        "bootstrap_servers": "127.0.0.1:9092",
        "user": "admin",
        "password_file": str(files.password),
        "truststore": str(files.authority),
        "client_properties": str(files.client),
    }
    assert files.read_password() not in "\n".join(secure_up.lines_of(security)) + repr(files)


@ours
def test_clients_with_certificates_need_no_password_and_the_listener_asks_for_one(tmp_path: Path) -> None:
    files, texts, told = settings(tmp_path, is_mutual=True)
    assert texts == ["SSL://127.0.0.1:9092"] and not files.password.exists()
    assert told.listener_configs["ssl.client.auth"] == "required"
    assert told.listener_configs["ssl.truststore.location"] == str(files.authority)
    checked([listeners_of(texts[0], None, told.listener_configs)])
    rules = PrincipalMapping(told.listener_configs["ssl.principal.mapping.rules"])
    assert rules.name_of("CN=admin") == "admin"
    assert rules.name_of("CN=admin,O=Elsewhere") == "CN=admin,O=Elsewhere"
    assert rules.name_of("CN=raylog broker") == "CN=raylog broker"
    assert files.client_certificate.stat().st_mode & 0o777 == 0o600
    files.write_client("127.0.0.1:9092")
    written = files.client.read_text()
    assert f"ssl.keystore.location={files.client_certificate}\n" in written and "sasl" not in written
    before = files.client_certificate.read_bytes()
    settings(tmp_path, is_mutual=True)
    assert files.client_certificate.read_bytes() == before
    with pytest.raises(ConfigError, match=r"--secure starts SSL listeners only: SASL_SSL://:1 is none"):
        settings(tmp_path, is_mutual=True, listeners=["SASL_SSL://:1"])


# ------------------------------------------------------------------ the whole command


class Secured:
    """What the command printed."""

    def __init__(self, environment: dict[str, str], folder: Path, printed: str) -> None:
        self.environment, self.folder, self.printed = environment, folder, printed
        self.said = ""  # with what went to standard error

    def pasted(self, client: str) -> str:
        """The text that is printed for a client."""
        found = re.search(rf"^# {re.escape(client)}\n(.*?)\n(\n# |\n*\Z)", self.printed, re.MULTILINE | re.DOTALL)
        assert found is not None, self.printed
        return found[1]

    def raylog(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "raylog.cli.main", *arguments]
        return subprocess.run(command, env=self.environment, input=text, capture_output=True, text=True, timeout=280)


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    with _started("--listeners", "SASL_SSL://127.0.0.1:0") as started:
        password = (started.folder / "security" / "admin.password").read_text().strip()
        assert password not in started.said
        yield started


@contextmanager
def _started(*options: str) -> Iterator[Secured]:
    scratch = Path(tempfile.mkdtemp(prefix="rl-"))
    kept = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAYLOG_FOLDER")}
    environment = kept | {"RAY_TMPDIR": str(scratch)}
    folder = scratch / "data"
    started = Secured(environment, folder, "")
    done = started.raylog("up", str(folder), "--brokers", "1", "--secure", *options)
    try:
        assert done.returncode == 0, done.stderr
        started.printed, started.said = done.stdout, done.stdout + done.stderr
        assert "PRIVATE KEY" not in started.said
        yield started
    finally:
        started.raylog("down", str(folder))
        shutil.rmtree(scratch, ignore_errors=True)


@pytest.mark.ray
def test_what_it_prints_works_when_it_is_pasted(secured: Secured, tmp_path: Path) -> None:
    from raw_requests import eventually

    command = secured.pasted("raylog").split()
    assert command[0] == "raylog"
    eventually(lambda: secured.raylog(*command[1:]).returncode == 0, "raylog's own command lists topics")
    made = secured.raylog("topics", "create", "events", *command[3:])
    assert made.returncode == 0, made.stderr
    names: dict[str, Any] = {}
    exec(secured.pasted("confluent-kafka"), names)
    names["producer"].produce("events", b"pasted")
    assert names["producer"].flush(60) == 0
    read = secured.raylog("consume", "events", "--from-beginning", "--until-end", *command[3:])
    assert "pasted" in read.stdout, read.stderr


@pytest.mark.conformance
def test_javas_console_producer_writes_when_it_is_pasted(secured: Secured) -> None:
    from kafka_peer import apache_kafka

    kafka = apache_kafka()
    command, *options = secured.pasted("Java").splitlines()[0].split()
    assert command == "kafka-console-producer.sh"
    made = secured.raylog("topics", "create", "from-java", *secured.pasted("raylog").split()[3:])
    assert made.returncode == 0, made.stderr
    options[options.index("events")] = "from-java"
    writing = kafka.java_command("kafka.tools.ConsoleProducer", *options)
    done = subprocess.run(writing, input="one\ntwo\n", capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    reading = ("--from-beginning", "--until-end", *secured.pasted("raylog").split()[3:])
    read = secured.raylog("consume", "from-java", *reading)
    assert sorted(read.stdout.split()) == ["one", "two"], read.stderr


@pytest.mark.ray
def test_nobody_comes_in_without_the_password(secured: Secured) -> None:
    options = json.loads(secured.raylog("status", "--folder", str(secured.folder), "--json").stdout)
    (listener,) = options["brokers"][0]["listeners"]
    address = listener.removeprefix("SASL_SSL://")
    refused = secured.raylog("topics", "list", "--bootstrap-server", address)
    assert refused.returncode != 0 and "security.protocol" in refused.stderr
    user = secured.raylog("users", "set", "eve", "--password-file", "-", "--folder", str(secured.folder), text="hers\n")
    assert user.returncode == 0, user.stderr
    file = secured.folder / "eve.properties"
    client = (secured.folder / "security" / "client.properties").read_text()
    password = (secured.folder / "security" / "admin.password").read_text().strip()
    file.write_text(client.replace('"admin"', '"eve"').replace(password, "hers"))
    listed = secured.raylog("topics", "list", "--command-config", str(file))
    assert listed.returncode == 0 and listed.stdout.strip() == "", "what she may not describe is left out"
    denied = secured.raylog("topics", "create", "hers", "--command-config", str(file))
    assert denied.returncode != 0 and "AUTHORIZATION_FAILED" in denied.stderr.upper().replace(" ", "_")


@pytest.mark.ray
def test_links_inside_have_tls_and_whoever_trusts_the_authority_comes_in(secured: Secured) -> None:
    disk = secured.folder / "broker-0"
    controllers = next(
        line.partition("=")[2]
        for line in (disk / "meta.properties").read_text().splitlines()
        if line.startswith("controllers=")
    )
    host, _, port = controllers.split(",")[0].rpartition(":")
    trusting = ssl.create_default_context(cafile=str(secured.folder / "security" / "authority.pem"))
    with (
        socket.create_connection((host, int(port)), timeout=60) as plain,
        trusting.wrap_socket(plain, server_hostname=host) as spoken,
    ):
        assert spoken.version() in ("TLSv1.2", "TLSv1.3")
    file = secured.folder / "inside.properties"
    client = (secured.folder / "security" / "client.properties").read_text()
    file.write_text(client + f"cluster.secret={(disk / 'cluster.secret').read_text()}")
    listed = secured.raylog("topics", "list", "--command-config", str(file))
    assert listed.returncode == 0 and "Going to the cluster's processes directly" in listed.stderr, listed.stderr


@pytest.mark.ray
def test_the_second_time_it_says_the_same(secured: Secured) -> None:
    where = ("--brokers", "1", "--secure", "--listeners", "SASL_SSL://127.0.0.1:0")
    again = secured.raylog("up", str(secured.folder), *where)
    assert again.returncode == 0, again.stderr
    assert (
        re.search(r"^# Java.*", again.stdout, re.M | re.S)[0]
        == re.search(r"^# Java.*", secured.printed, re.M | re.S)[0]
    )


@pytest.fixture(scope="module")
def mutual() -> Iterator[Secured]:
    with _started("--client-certificates", "--listeners", "SSL://127.0.0.1:0") as started:
        yield started


@pytest.mark.ray
def test_clients_come_in_by_certificates_that_the_authority_signs(mutual: Secured, tmp_path: Path) -> None:
    from confluent_kafka import Producer
    from raw_requests import eventually

    security = mutual.folder / "security"
    options = mutual.pasted("raylog").split()[3:]
    eventually(lambda: mutual.raylog("topics", "list", *options).returncode == 0, "the super user's certificate")
    made = mutual.raylog("topics", "create", "events", *options)
    assert made.returncode == 0, made.stderr
    names: dict[str, Any] = {}
    exec(mutual.pasted("confluent-kafka"), names)
    names["producer"].produce("events", b"pasted")
    assert names["producer"].flush(60) == 0

    signed = mutual.raylog("certificates", str(security), "--client", "alice")
    assert signed.returncode == 0, signed.stderr
    held = str(security / "clients" / "alice" / "client.pem")
    server = re.search(r'"bootstrap.servers": "(.*)"', mutual.printed)[1]
    trusting = {
        "bootstrap.servers": server,
        "security.protocol": "SSL",
        "ssl.ca.location": str(security / "authority.pem"),
    }
    alices = trusting | {"ssl.certificate.location": held, "ssl.key.location": held, "message.timeout.ms": 60_000}

    def produced(configs: dict[str, Any]) -> str:
        outcome: list[str] = []
        producer = Producer(configs)
        producer.produce("events", b"hers", on_delivery=lambda error, _: outcome.append(error.name() if error else ""))
        producer.flush(90)
        return outcome[0]

    assert produced(alices) == "TOPIC_AUTHORIZATION_FAILED"
    granted = mutual.raylog(
        "acls", "add", "--allow-principal", "User:alice", "--producer", "--topic", "events", *options
    )
    assert granted.returncode == 0, granted.stderr
    eventually(lambda: produced(alices) == "", "the ACL of User:alice")
    assert produced(trusting | {"message.timeout.ms": 3_000}) == "_MSG_TIMED_OUT", "nobody comes in without one"
    read = mutual.raylog("consume", "events", "--from-beginning", "--until-end", *options)
    assert "pasted" in read.stdout and "hers" in read.stdout, read.stderr


@ours
def test_client_certificates_without_secure_are_refused() -> None:
    from typer.testing import CliRunner

    from raylog.cli.main import app

    done = CliRunner().invoke(app, ["up", "--client-certificates"])
    assert done.exit_code == 2 and "give both" in " ".join(done.output.replace("│", "").split())
