"""What a start takes by Kafka's names: files, single values, and what each error says."""

from __future__ import annotations

from pathlib import Path

import pytest

import raylog.testing
from raylog.cli.configs import started_with
from raylog.configs.properties import resolved
from raylog.configs.refused_broker_configs import reason_for
from raylog.configs.server_properties import (
    AS_IT_IS,
    WITHOUT_EFFECT,
    ServerProperties,
    merged,
    server_properties,
    without_effect,
)
from raylog.errors import ConfigError

KAFKA_4 = """\
# config/server.properties of Apache Kafka 4
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""

PRODUCTION = """\
# the manual's production configuration
zookeeper.connect=[list of ZooKeeper servers]
num.partitions=8
default.replication.factor=3
log.dir=/data/kafka
broker.id=0
listeners=PLAINTEXT://:9092
auto.create.topics.enable=false
min.insync.replicas=2
queued.max.request.bytes=268435456
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "server.properties"


def test_the_server_properties_that_kafka_ships_are_taken_as_they_stand(file: Path) -> None:
    file.write_text(KAFKA_4)
    told = server_properties(file)
    assert told.configs == {
        "num.partitions": "1",
        "log.retention.ms": "604800000",
        "log.segment.bytes": "1073741824",
        "log.retention.check.interval.ms": "300000",
        "socket.request.max.bytes": "104857600",
    }
    assert (told.listeners, told.advertised_listeners) == (
        ("PLAINTEXT://:9092",),
        ("PLAINTEXT://localhost:9092",),
    )
    without = {line.partition(" ")[0] for line in told.notices}
    assert without == {
        line.partition("=")[0] for line in KAFKA_4.splitlines() if not line.startswith(("#", "listeners", "adv"))
    } - (told.configs.keys() | told.listener_configs.keys() | {"log.retention.hours"})
    assert list(told.listener_configs) == ["listener.security.protocol.map"]


def test_the_manuals_production_configuration_starts_a_cluster(file: Path) -> None:
    file.write_text(PRODUCTION)
    with raylog.testing.broker(brokers=3, topics=["first"], configs=file) as kafka:
        kafka.write("first", b"x", partition=7)
        assert [record.value for record in kafka.records("first", count=1)] == [b"x"]


def test_one_config_given_three_ways_is_the_same(file: Path) -> None:
    file.write_text("log.retention.hours=2\nnum.partitions: 4\n")
    by_file = started_with([str(file)])
    by_values = started_with(["log.retention.minutes=120", "num.partitions=4"])
    by_mapping = server_properties({"log_retention_hours": 2, "num.partitions": 4})
    assert by_file == by_values == by_mapping == server_properties(str(file))
    assert by_file == ServerProperties({"log.retention.ms": "7200000", "num.partitions": "4"})


def test_a_single_value_goes_before_a_files_and_two_files_may_not_say_the_same(file: Path, tmp_path: Path) -> None:
    file.write_text("num.partitions=4\n")
    other = tmp_path / "other.properties"
    other.write_text("num.partitions=4\n")
    assert started_with(["num.partitions=9", str(file)]).configs == {"num.partitions": "9"}
    with pytest.raises(ConfigError, match=rf"num\.partitions is in {file} and in {other}: keep one"):
        started_with([str(file), str(other)])
    with pytest.raises(ConfigError, match=r"--config num\.partitions is neither NAME=VALUE nor a file"):
        started_with(["num.partitions"])


@pytest.mark.parametrize(
    ("values", "milliseconds"),
    [
        ({"log.retention.hours": "3", "log.retention.minutes": "2", "log.retention.ms": "1"}, "1"),
        ({"log.retention.hours": "3", "log.retention.minutes": "2"}, "120000"),
        ({"log.retention.hours": "3"}, "10800000"),
        ({"log.retention.hours": "-1"}, "-1"),
    ],
)
def test_of_three_units_the_smallest_counts(values: dict[str, str], milliseconds: str) -> None:
    assert merged((), values).configs == {"log.retention.ms": milliseconds}
    assert merged((), {"log.roll.hours": "2", "log.roll.jitter.hours": "1"}).configs == {
        "log.roll.ms": "7200000",
        "log.roll.jitter.ms": "3600000",
    }


def test_values_come_from_the_environment_and_from_files(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("parts=6\n")
    monkeypatch.setenv("ROLL_MS", "5000")
    given = {"num.partitions": f"${{file:{file}:parts}}", "log.roll.ms": "${env:ROLL_MS}"}
    assert merged((), given).configs == {"num.partitions": "6", "log.roll.ms": "5000"}
    assert resolved("x", "a${env:ROLL_MS}b") == "a5000b"


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("env:NOT_THERE_AT_ALL", "the environment variable 'NOT_THERE_AT_ALL' is not set"),
        ("file:/nowhere/at/all:x", "cannot read /nowhere/at/all: No such file"),
        ("file:x", "NAME of an entry"),
        ("vault:x", "not from 'vault'"),
    ],
)
def test_a_reference_that_leads_nowhere_is_named(reference: str, why: str) -> None:
    with pytest.raises(ConfigError) as raised:
        merged((), {"num.partitions": f"${{{reference}}}"})
    assert str(raised.value).startswith(f"num.partitions=${{{reference}}}: ") and why in str(raised.value)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("num.partition=3", "did you mean 'num.partitions'?"),
        ("num.partitions=0", "num.partitions=0: must be from 1 to 10000"),
        ("log.retention.hours=0", "must be at least 1, or -1 for no limit"),
        ("log.roll.hours=0", "must be at least 1"),
        ("authorizer.class.name=org.Acl", "choose from "),
        ("remote.log.storage.system.enable=true", "no remote storage"),
        ("sasl.enabled.mechanisms=GSSAPI,PLAIN", "Kerberos is not spoken: use SCRAM-SHA-512"),
        ("sasl.enabled.mechanisms=SCRAM-SHA-1", "choose from SCRAM-SHA-256, SCRAM-SHA-512, PLAIN, OAUTHBEARER"),
        ("sasl.jaas.config=x", "those of `raylog users`"),
        ("sasl.kerberos.service.name=kafka", "Kerberos is not spoken"),
        ("sasl.oauthbearer.token.endpoint.url=https://issuer/token", "clients fetch tokens"),
        ("sasl.oauthbearer.jwt.validator.class=org.Validator", "no classes of that kind"),
        ("offsets.topic.num.partitions=7", "it is 50 here"),
        ("broker.rack=a", "--rack"),
        ("listener.name.ssl.sasl.enabled.mechanisms=PLAIN", "holds for all listeners alike"),
        ("listener.name.ssl.oauthbearer.sasl.jaas.config=x", "a listener verifies tokens by sasl.oauthbearer.*"),
        (
            "listener.name.ssl.oauthbearer.sasl.server.callback.handler.class=x",
            "there are no such classes: a listener verifies",
        ),
        (
            "listener.name.ssl.plain.sasl.server.callback.handler.class=x",
            "or those of listener.name.NAME.plain.sasl.jaas.config",
        ),
        ("listener.name.ssl.scram-sha-512.sasl.jaas.config=x", "users of SCRAM are those of `raylog users`"),
        ("listener.name.ssl.gssapi.sasl.jaas.config=x", "Kerberos is not spoken"),
        ("ssl.provider=BC", "TLS is Python's and OpenSSL's"),
    ],
)
def test_bad_lines_are_errors_that_name_the_file_and_the_reason(file: Path, line: str, why: str) -> None:
    file.write_text(line + "\n")
    with pytest.raises(ConfigError) as raised:
        server_properties(file)
    message = str(raised.value)
    assert message.startswith(f"{file}: ") and why in message and line.partition("=")[0] in message


def test_listeners_keep_their_names_and_have_their_settings() -> None:
    settings = {
        "listener.security.protocol.map": "IN:PLAINTEXT,OUT:SSL",
        "listener.name.out.ssl.client.auth": "required",
        "ssl.key.password": "hidden-42",
    }
    told = merged((), {"listeners": "IN://:9091, OUT://:9092", "ssl.endpoint.identification.algorithm": "", **settings})
    assert (told.listeners, told.listener_configs, told.configs) == (("IN://:9091,OUT://:9092",), settings, {})
    assert "hidden-42" not in repr(told)


def test_whatever_is_ignored_has_a_reason() -> None:
    for name in WITHOUT_EFFECT:
        reason = without_effect(name.replace("*", "x"))
        assert reason, name
    for name in AS_IT_IS:
        assert merged((), {name: AS_IT_IS[name]}) == ServerProperties({})
    assert reason_for("log.retention.hours") is not None


def test_names_have_underscores_for_dots_only_where_they_have_no_dots() -> None:
    name = "listener.name.sasl_ssl.ssl.keystore.location"
    assert server_properties({name: "/a.pem", "log_retention_ms": 7}) == ServerProperties(
        {"log.retention.ms": "7"}, listener_configs={name: "/a.pem"}, is_given=True
    )
