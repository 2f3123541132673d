"""Commands from outside a cluster: ``--bootstrap-server`` and ``--command-config``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

import raylog.testing
from raylog.cli.connection import Address
from raylog.cli.main import app
from raylog.cli.remote import ClusterApp, outside
from raylog.client.admin.admin import ClusterDescription
from raylog.client.sync import AdminClient
from raylog.configs.properties import read_properties
from raylog.errors import ConfigError
from raylog.testing.kafka import Kafka

runner = CliRunner()


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with raylog.testing.broker(topics={"orders": 3}, brokers=2) as running:
        yield running


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without a cluster, as on a machine that has none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAYLOG_FOLDER", raising=False)


def raylog_at(kafka: Kafka, *arguments: str, text: str | None = None) -> Result:
    return runner.invoke(app, [*arguments, "--bootstrap-server", kafka.bootstrap], input=text)


def test_topics_and_records_are_reached_from_outside(kafka: Kafka) -> None:
    assert raylog_at(kafka, "topics", "list").stdout == "orders\n"
    assert raylog_at(kafka, "topics", "create", "made", "--partitions", "2").exit_code == 0
    produced = raylog_at(kafka, "produce", "made", text="one\ntwo\n")
    assert produced.exit_code == 0, produced.output
    consumed = raylog_at(kafka, "consume", "made", "--from-beginning", "--until-end")
    assert sorted(consumed.stdout.split()) == ["one", "two"]


def test_brokers_are_listed_as_far_as_kafkas_answers_go(kafka: Kafka) -> None:
    listed = json.loads(raylog_at(kafka, "brokers", "list", "--json").stdout)
    assert [(each["broker"], each["listener"], each["live"]) for each in listed] == [
        (number, listener, True) for number, listener in enumerate(kafka.bootstrap.split(","))
    ]
    assert sum(each["leads"] for each in listed) >= 3 and all(each["replicas"] >= 3 for each in listed)
    assert all(len(each["disks"]) == 1 for each in listed)
    assert {each["draining"] for each in listed} == {None} == {each["offline_disks"] for each in listed}
    assert " live " in raylog_at(kafka, "brokers", "list").stdout


def test_a_broker_that_is_gone_is_still_listed(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    describe = AdminClient.describe_cluster

    def without_the_second(admin: AdminClient, *, include_fenced: bool = False) -> ClusterDescription:
        first, second = describe(admin, include_fenced=include_fenced).brokers
        gone = [replace(second, is_fenced=True)] if include_fenced else []
        return ClusterDescription("c", 0, (first, *gone))

    monkeypatch.setattr(AdminClient, "describe_cluster", without_the_second)
    listed = json.loads(raylog_at(kafka, "brokers", "list", "--json").stdout)
    assert [each["live"] for each in listed] == [True, False]
    assert " away " in raylog_at(kafka, "brokers", "list").stdout


def test_the_status_is_told_as_far_as_kafkas_answers_go(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = raylog_at(kafka, "status")
    assert shown.exit_code == 0, shown.output
    assert f"Cluster {kafka.address.cluster_id}: the controller is broker 0's" in shown.stdout
    assert f"Kafka clients: bootstrap.servers={kafka.bootstrap}" in shown.stdout
    told = json.loads(raylog_at(kafka, "status", "--json").stdout)
    (orders,) = (each for each in told["topics"] if each["name"] == "orders")
    assert [set(each["replicas"]) for each in orders["partitions"]] == [{0, 1}] * 3
    assert [each["leader"] for each in orders["partitions"]] == [kafka.leader("orders", n) for n in range(3)]
    assert [(each["id"], each["live"], each["draining"]) for each in told["brokers"]] == [
        (0, True, None),
        (1, True, None),
    ]
    assert (told["leaderless"], told["under_replicated"]) == ([], [])
    answer = AdminClient.describe_cluster

    def one_away(self: AdminClient, **options: bool) -> ClusterDescription:
        told = answer(self, **options)
        return replace(told, brokers=(told.brokers[0], replace(told.brokers[1], is_fenced=True)))

    monkeypatch.setattr(AdminClient, "describe_cluster", one_away)
    assert raylog_at(kafka, "status").exit_code == 1, "a broker is away"


def test_the_quorum_is_told_as_far_as_kafkas_answer_goes(kafka: Kafka) -> None:
    asked = raylog_at(kafka, "quorum", "status", "--json")
    assert asked.exit_code == 0
    quorum = json.loads(asked.stdout)
    inside = raylog.Cluster(kafka.address).quorum()
    assert quorum["voters"][0]["log_end_offset"] <= inside["log_end_offset"]
    for name in ("cluster_id", "leader_id", "leader_epoch"):
        assert quorum[name] == inside[name]
    for name in ("broker", "directory_id", "endpoint"):
        assert [each[name] for each in quorum["voters"]] == [each[name] for each in inside["voters"]]
    assert quorum["max_follower_lag"] == 0 and {each["reachable"] for each in quorum["voters"]} == {None}
    status = raylog_at(kafka, "quorum", "describe", "--status").stdout
    assert "LeaderId:               0\n" in status and kafka.address.cluster_id in status
    header, row = raylog_at(kafka, "quorum", "describe", "--replication").stdout.splitlines()
    assert header.startswith("NodeId\tLogEndOffset\tLag") and row.endswith("\tLeader")
    assert " -  " in raylog_at(kafka, "quorum", "status").stdout
    told = json.loads(raylog_at(kafka, "quorum", "describe", "--status", "--json").stdout)
    assert (told["LeaderId"], told["CurrentVoters"]) == (0, [0])
    (member,) = json.loads(raylog_at(kafka, "quorum", "describe", "--replication", "--json").stdout)
    assert list(member) == header.split("\t") and member["Status"] == "Leader"


def test_a_file_gives_options_and_the_brokers(kafka: Kafka, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"# ours\nclient.id = report\nbootstrap.servers = {kafka.bootstrap}\n")
    assert "orders\n" in runner.invoke(app, ["topics", "list", "--command-config", str(file)]).stdout
    for line, said in [
        ("cluster.secret=guessed", "the secret is not that of cluster"),
        ("security.protocol=SASL_SSL", "SASL needs sasl.mechanism"),
        ("sasl.password=abc", "sasl.password needs security.protocol=SASL_SSL or SASL_PLAINTEXT, which is PLAINTEXT"),
        ("client.ids=x", "did you mean 'client.id'?"),
        ("linger.ms=5", "unknown client option 'linger.ms'"),
    ]:
        file.write_text(f"{line}\n")
        refused = raylog_at(kafka, "topics", "list", "--command-config", str(file))
        assert isinstance(refused.exception, ConfigError) and said in str(refused.exception)


def test_a_secret_without_brokers_is_not_ignored(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("cluster.secret=x\n")
    refused = runner.invoke(app, ["topics", "list", "--command-config", str(file)])
    assert isinstance(refused.exception, ConfigError) and "goes with bootstrap.servers" in str(refused.exception)


def test_one_way_to_a_cluster_is_enough(kafka: Kafka) -> None:
    refused = raylog_at(kafka, "topics", "list", "--folder", "x")
    assert refused.exit_code == 2 and "give one of them" in " ".join(refused.output.replace("│", "").split())


def test_only_what_reaches_a_cluster_has_the_options(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("client.id=report\n")
    group = ClusterApp()
    seen = []

    @group.command()
    def near() -> None: ...

    @group.command()
    def far(name: str, address: Address = None) -> None:
        seen.append((name, outside().bootstrap_servers, dict(outside().options)))

    asked = ["--bootstrap-server", "a:1", "--command-config", str(file)]
    assert runner.invoke(group, ["far", "x", *asked]).exit_code == 0
    assert runner.invoke(group, ["far", "y"]).exit_code == 0
    assert runner.invoke(group, ["near", *asked]).exit_code == 2
    assert seen == [("x", "a:1", {"client.id": "report"}), ("y", None, {})]
    assert outside().bootstrap_servers is None
    assert isinstance(group, typer.Typer)


def test_a_properties_file_is_read_as_java_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("! comment\na=1\nb : two words\nc=long\\\n   er\n\nd\\u0041 x\n")
    assert read_properties(file) == {"a": "1", "b": "two words", "c": "longer", "dA": "x"}
    file.write_text("a=1\na=2\n")
    with pytest.raises(ConfigError, match="has a twice"):
        read_properties(file)
    file.write_bytes(b"a=\xff\n")
    with pytest.raises(ConfigError, match=r"server\.properties is no properties file"):
        read_properties(file)
    with pytest.raises(ConfigError, match=r"cannot read .*: No such file"):
        read_properties(tmp_path / "missing")
