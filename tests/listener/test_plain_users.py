"""Users of PLAIN in a file, as a Kafka client meets them: they get in, others do not, and changes of the file count."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient as KafkaAdmin
from outside import listener
from raw_requests import eventually
from sasl_client import SaslClient

from raylog.client.sync import AdminClient
from raylog.configs.server_properties import merged
from raylog.disks.listener_file import wanted_listeners
from raylog.errors import ConfigError
from raylog.security.plain_users import PlainUsers
from raylog.testing.in_process import InProcessCluster, cluster

pytestmark = pytest.mark.core

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SETTING = "listener.name.sasl_plaintext.plain.sasl.jaas.config"


def write(file: Path, **users: str) -> None:
    """Replace the file."""
    text = " ".join([MODULE, *(f'user_{name}="{password}"' for name, password in users.items())])
    fresh = file.with_suffix(".new")
    fresh.write_text(f"users={text};\n")
    os.replace(fresh, file)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("users") / "plain.properties"


@pytest.fixture(scope="module")
def running(file: Path) -> Iterator[InProcessCluster]:
    write(file, alice="alice-secret", bob="bob-secret")
    values = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", SETTING: f"${{file:{file}:users}}"}
    (listeners,) = wanted_listeners(1, None, None, merged((), values))
    with cluster(brokers=1, listeners=listeners) as found:
        with AdminClient(found.address) as admin:
            admin.alter_configs(broker="all", set={"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256"})
            admin.set_user("carol", "carol-secret")
        sasl = found.launcher.servers[0].router._sasl
        eventually(lambda: "PLAIN" in sasl.mechanisms and sasl._credentials(), "the broker knows mechanisms and users")
        yield found


@pytest.fixture(autouse=True)
def users(running: InProcessCluster, file: Path) -> None:
    """Those of the beginning."""
    change(running, file, alice="alice-secret", bob="bob-secret")


def change(running: InProcessCluster, file: Path, **users: str) -> None:
    """Write others, and wait until they count."""
    write(file, **users)
    (port,) = running.launcher.servers[0].router.server.ports
    eventually(lambda: port.logins.users == PlainUsers(users), "the listener knows the users")


def brokers(
    running: InProcessCluster, user: str, password: str, mechanism: str = "PLAIN", *, wait_s: float = 20
) -> int:
    """How many confluent-kafka sees. Raises KafkaException, soon where it is refused."""
    errors: list[str] = []
    options = {
        "bootstrap.servers": running.bootstrap_servers("SASL_PLAINTEXT"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "error_cb": lambda error: errors.append(str(error)),
    }
    admin = KafkaAdmin(options, logger=logging.getLogger("quiet"))
    try:
        return len(admin.list_topics(timeout=wait_s).brokers)
    except KafkaException as error:
        admin.poll(0)
        raise KafkaException(f"{error} {errors}") from None


def principals(running: InProcessCluster) -> set[str]:
    return {each.principal for each in running.launcher.servers[0].router.server.connections}


def plain(running: InProcessCluster, user: str, password: str) -> SaslClient:
    client = SaslClient(listener(running, 0))
    client.handshake("PLAIN")
    client.token(f"\0{user}\0{password}".encode())
    return client


def test_confluent_kafka_gets_in_with_a_password_of_the_file(running: InProcessCluster) -> None:
    assert brokers(running, "alice", "alice-secret") == 1
    assert brokers(running, "carol", "carol-secret", "SCRAM-SHA-256") == 1, "SCRAM has the cluster's users"


def test_confluent_kafka_does_not_get_in_with_another_one(
    running: InProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "raylog")
    for user, password in (("alice", "wrong-42"), ("nobody", "wrong-42"), ("carol", "carol-secret!")):
        with pytest.raises(KafkaException, match="invalid credentials with SASL mechanism PLAIN"):
            brokers(running, user, password, wait_s=3)
    assert "a wrong password of user 'alice'" in caplog.text and "wrong-42" not in caplog.text


def test_changes_of_the_file_count_and_a_removed_users_connections_end(running: InProcessCluster, file: Path) -> None:
    alice, bob = plain(running, "alice", "alice-secret"), plain(running, "bob", "bob-secret")
    eventually(lambda: {"User:alice", "User:bob"} <= principals(running), "both are in")
    change(running, file, bob="another-secret", dora="dora-secret")
    assert alice.is_closed(), "alice is gone"
    alice.socket.close()
    assert "User:bob" in principals(running), "a new password leaves open connections alone"
    bob.socket.close()
    assert brokers(running, "dora", "dora-secret") == 1
    assert brokers(running, "bob", "another-secret") == 1
    with pytest.raises(KafkaException, match="invalid credentials"):
        brokers(running, "alice", "alice-secret", wait_s=3)
    eventually(lambda: "User:bob" not in principals(running), "nobody is left")
    (port,) = running.launcher.servers[0].router.server.ports
    assert not port.logins._connections


def test_a_file_that_does_not_fit_changes_nothing_and_is_told_once(
    running: InProcessCluster, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_text("users=hidden-42\n")
    eventually(lambda: "keeps its users of PLAIN" in caplog.text, "the log tells")
    assert brokers(running, "alice", "alice-secret") == 1
    assert "hidden-42" not in caplog.text and SETTING in caplog.text
    file.unlink()
    eventually(lambda: "No such file" in caplog.text, "the log tells")
    assert caplog.text.count("does not end with ;") == 1


def test_the_text_is_shown_nowhere(running: InProcessCluster, file: Path, tmp_path: Path) -> None:
    inline = f'{MODULE} user_alice="hidden-42";'
    told = merged((), {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", SETTING: inline})
    (listeners,) = wanted_listeners(1, None, None, told)
    assert "hidden-42" not in repr(told) + repr(listeners) + str(listeners)
    with AdminClient(running.address) as admin:
        assert "jaas" not in str(admin.describe_configs(broker=0))
    with pytest.raises(ConfigError) as raised:
        wanted_listeners(1, None, None, merged((), {"listeners": "SASL_PLAINTEXT://:0", SETTING: inline[:-1]}))
    assert "hidden-42" not in str(raised.value)


def test_references_to_files_are_kept_and_lead_somewhere(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(file, alice="alice-secret")
    monkeypatch.chdir(file.parent)
    monkeypatch.setenv("RAYLOG_USER", "dora")
    values = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", SETTING: f"${{file:{file.name}:users}}"}
    assert merged((), values).listener_configs[SETTING] == f"${{file:{file}:users}}", "a broker has another folder"
    values[SETTING] = MODULE + ' user_${env:RAYLOG_USER}="x";'
    assert merged((), values).listener_configs[SETTING] == MODULE + ' user_dora="x";'
    values[SETTING] = f"${{file:{file}:nobody}}"
    with pytest.raises(ConfigError, match="has no nobody"):
        merged((), values)
    with pytest.raises(ConfigError, match="is for listeners with SASL"):
        wanted_listeners(
            1, None, None, merged((), {"listeners": "PLAINTEXT://:0", "plain.sasl.jaas.config": MODULE + " user_a=b;"})
        )
