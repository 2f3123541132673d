"""``raylog users`` and Kafka's APIs of users, through a test broker's listener. Passwords are read, never given as arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import raylog.testing
from raylog.cli import metadata_files
from raylog.cli.main import app
from raylog.errors import ConfigError, KafkaError
from raylog.metadata.records import UserScramCredentialSet
from raylog.security.scram import ScramCredential, ScramMechanism
from raylog.testing.kafka import Kafka

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with raylog.testing.broker() as running:
        yield running


def said(kafka: Kafka, *arguments: str, stdin: str | None = None) -> str:
    result = CliRunner().invoke(app, ["users", *arguments, "--bootstrap-server", kafka.bootstrap], input=stdin)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def rows(kafka: Kafka) -> list[list[str]]:
    return [line.split() for line in said(kafka, "list").splitlines()]


def test_users_are_set_listed_and_deleted(kafka: Kafka, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("a secret\n")
    told = said(kafka, "set", "alice", "--password-file", str(secret))
    assert told == "User alice can authenticate by SCRAM-SHA-256, SCRAM-SHA-512\n"
    bob = ("set", "bob", "--password-file", "-", "--mechanism", "SCRAM-SHA-512", "--iterations", "8192", "--json")
    assert json.loads(said(kafka, *bob, stdin="another")) == {"user": "bob", "iterations": {"SCRAM-SHA-512": 8192}}
    assert rows(kafka) == [
        ["User", "Mechanism", "Iterations"],
        ["alice", "SCRAM-SHA-256", "4096"],
        ["alice", "SCRAM-SHA-512", "4096"],
        ["bob", "SCRAM-SHA-512", "8192"],
    ]
    said(kafka, "delete", "alice", "--mechanism", "SCRAM-SHA-256")
    said(kafka, "delete", "bob")
    assert json.loads(said(kafka, "list", "--json")) == [{"user": "alice", "iterations": {"SCRAM-SHA-512": 4096}}]
    said(kafka, "delete", "alice")
    with pytest.raises(KafkaError, match="does not exist: alice"):
        said(kafka, "delete", "alice")


@pytest.mark.parametrize("text", ["", "\n"])
def test_a_user_has_no_empty_password(kafka: Kafka, text: str) -> None:
    with pytest.raises(ConfigError, match="not empty"):
        said(kafka, "set", "eve", "--password-file", "-", stdin=text)


def test_without_a_terminal_nobody_is_asked_for_a_password(kafka: Kafka) -> None:
    with pytest.raises(ConfigError, match="--password-file"):
        said(kafka, "set", "eve", stdin="x")
    with pytest.raises(ConfigError, match="choose from SCRAM-SHA-256, SCRAM-SHA-512"):
        said(kafka, "set", "eve", "--password-file", "-", "--mechanism", "PLAIN", stdin="x")


def test_a_dump_of_the_metadata_log_shows_no_keys() -> None:
    credential = ScramCredential(b"a salt", b"a stored key", b"a server key", 4_096)
    record = UserScramCredentialSet("alice", ScramMechanism.SCRAM_SHA_512, credential)
    assert list(metadata_files._records([record])) == [
        {
            "record": "UserScramCredentialSet",
            "user": "alice",
            "mechanism": 2,
            "credential": {
                "salt": "(redacted)",
                "stored_key": "(redacted)",
                "server_key": "(redacted)",
                "iterations": 4_096,
            },
        }
    ]
