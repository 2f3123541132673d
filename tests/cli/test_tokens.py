"""``raylog tokens``: what its commands print, what they write, and that an HMAC is never an argument."""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raylog.cli import metadata_files
from raylog.cli.main import app
from raylog.client.sync import AdminClient
from raylog.configs.token_configs import SECRET_KEY
from raylog.errors import ConfigError, KafkaError
from raylog.metadata.records import StaticConfigsChanged, StaticSource
from raylog.server.start_configs import set_static
from raylog.testing.in_process import InProcessCluster, cluster

pytestmark = pytest.mark.core

KEY = "the key of tokens"
DAY_MS, WEEK_MS = 86_400_000, 604_800_000


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    with cluster(brokers=1, folder=tmp_path_factory.mktemp("cluster")) as found:
        set_static(found.address, {SECRET_KEY: KEY}, timeout_s=60)
        yield found


def said(running: InProcessCluster, *arguments: str, stdin: str | None = None) -> str:
    result = CliRunner().invoke(app, ["tokens", *arguments, "--folder", str(running.folder)], input=stdin)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_tokens_are_created_listed_renewed_and_expired(running: InProcessCluster) -> None:
    created = json.loads(
        said(running, "create", "--owner-principal", "User:alice", "--renewer-principal", "bob", "--json")
    )
    mac = hmac.new(KEY.encode(), created["token_id"].encode(), hashlib.sha512).digest()
    assert b64decode(created["hmac"]) == mac
    assert (created["owner"], created["requester"], created["renewers"]) == (
        "User:alice",
        "Cluster:client",
        ["User:bob"],
    )
    assert created["expires_at_ms"] - created["issued_at_ms"] == DAY_MS
    assert created["ends_at_ms"] - created["issued_at_ms"] == WEEK_MS
    header, row = (line.split() for line in said(running, "list").splitlines())
    assert header == ["TOKENID", "HMAC", "OWNER", "REQUESTER", "RENEWERS", "ISSUEDATE", "EXPIRYDATE", "MAXDATE"]
    assert row[:5] == [created["token_id"], created["hmac"], "User:alice", "Cluster:client", "User:bob"]
    assert json.loads(said(running, "list", "--json", "--owner-principal", "User:bob")) == [created]
    assert json.loads(said(running, "list", "--json", "--owner-principal", "carol")) == []
    until = json.loads(said(running, "renew", "--hmac-file", "-", "--json", stdin=created["hmac"] + "\n"))
    assert created["expires_at_ms"] <= until["expires_at_ms"] <= created["ends_at_ms"]
    sooner = said(running, "expire", "--hmac-file", "-", "--expiry-time-period", "60000", stdin=created["hmac"])
    assert sooner.startswith("Completed expiry operation. The token expires at 20")
    said(running, "expire", "--hmac-file", "-", stdin=created["hmac"])
    with pytest.raises(KafkaError, match="no token has that HMAC"):
        said(running, "renew", "--hmac-file", "-", stdin=created["hmac"])
    assert json.loads(said(running, "list", "--json")) == []


def test_a_token_is_written_to_a_file_that_only_its_owner_reads(running: InProcessCluster, tmp_path: Path) -> None:
    file = tmp_path / "token"
    printed = said(running, "create", "--owner-principal", "alice", "--to", str(file), "--max-life-time-period", "9000")
    kept = json.loads(file.read_text())
    assert file.stat().st_mode & 0o777 == 0o600
    assert kept["ends_at_ms"] - kept["issued_at_ms"] == 9_000
    assert kept["token_id"] in printed and kept["hmac"] not in printed
    with pytest.raises(ConfigError, match="exists"):
        said(running, "create", "--owner-principal", "alice", "--to", str(file))
    assert len(json.loads(said(running, "list", "--json"))) == 1, "it is not made for nothing"
    lost = tmp_path / "no" / "token"
    with pytest.raises(ConfigError, match="is not written"):
        said(running, "create", "--owner-principal", "alice", "--to", str(lost))
    said(running, "expire", "--hmac-file", str(file))


def test_what_is_no_hmac_is_an_error_before_anything_is_asked(running: InProcessCluster, tmp_path: Path) -> None:
    file = tmp_path / "token"
    for text, match in (("{}", "has no token"), ("{", "has no token"), ("?", "base64")):
        file.write_text(text)
        with pytest.raises(ConfigError, match=match):
            said(running, "renew", "--hmac-file", str(file))
    with pytest.raises(ConfigError, match="cannot read"):
        said(running, "expire", "--hmac-file", str(tmp_path / "nothing"))
    forged = b64encode(bytes(64)).decode()
    with pytest.raises(KafkaError, match="no token has that HMAC"):
        said(running, "expire", "--hmac-file", "-", stdin=forged)


def test_a_token_needs_an_owner_who_can_authenticate(running: InProcessCluster) -> None:
    for owner in ((), ("--owner-principal", "Group:g")):
        with pytest.raises(KafkaError, match="name an owner"):
            said(running, "create", *owner)


def test_a_dump_of_the_metadata_log_does_not_show_the_key() -> None:
    record = StaticConfigsChanged(StaticSource.START, ((SECRET_KEY, KEY), ("num.partitions", "2")))
    (shown,) = metadata_files._records([record])
    assert shown["configs"] == [[SECRET_KEY, "(redacted)"], ["num.partitions", "2"]]


def test_a_cluster_without_a_key_has_no_tokens() -> None:
    with cluster(brokers=1) as without, AdminClient(without.address) as admin:
        with pytest.raises(KafkaError, match=r"delegation\.token\.secret\.key"):
            admin.create_delegation_token(owner="User:alice")
        with pytest.raises(KafkaError, match=r"delegation\.token\.secret\.key"):
            admin.describe_delegation_tokens()
