"""raylog's own clients and commands at listeners with TLS and SASL: two brokers, users with passwords, certificates of clients."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, settings
from raw_requests import eventually, isr_is_whole
from typer.testing import CliRunner

import raylog
from raylog import TopicPartition
from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.errors import RaylogError, SslAuthenticationError
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.wire.client_security import SaslAuthenticationFailedError
from raylog.wire.listeners import listeners_of

pytestmark = pytest.mark.core

USER, PASSWORD = "alice", 'a "secret", = ü'
VALUES = [b"%d" % number for number in range(500)]
TIMEOUT_S = 20
MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")


class Site:
    """The cluster, and what clients need."""

    def __init__(self, running: InProcessCluster, authority: Authority, folder: Path) -> None:
        self.running, self.authority, self.folder = running, authority, folder
        self.trusted, self.own = str(authority.certificate), str(authority.signed("client"))

    def at(self, listener: str, **options: Any) -> dict[str, Any]:
        """The keywords of ``connect`` for one of the listeners."""
        found = {"bootstrap_servers": self.running.bootstrap_servers(listener)}
        if listener != "SASL_PLAINTEXT":
            found |= {"ssl_truststore_location": self.trusted, "ssl_truststore_type": "PEM"}
        if listener in ("SASL_SSL", "SASL_PLAINTEXT"):
            found |= {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": USER, "sasl_password": PASSWORD}
        if listener == "SSL":
            found |= {"ssl_keystore_location": self.own}
        protocol = "SSL" if listener in ("EXPIRED", "OTHER") else listener
        return {"security_protocol": protocol, "timeout_s": TIMEOUT_S, **found, **options}

    def new_topic(self, name: str) -> str:
        with AdminClient(self.running.address) as admin:
            admin.create_topics([NewTopic(name, 3, replication_factor=2)])
        eventually(lambda: isr_is_whole(self.running, name, 2), f"all replicas of {name} in sync")
        return name

    def properties(self, listener: str) -> Path:
        """The file of ``--command-config``, as Java's clients read it."""
        written = self.at(listener)
        del written["timeout_s"]
        user, password = written.pop("sasl_username", None), written.pop("sasl_password", None)
        lines = [f"{name.replace('_', '.')}={value}" for name, value in written.items()]
        if user is not None:
            quoted = password.replace('"', '\\\\"')
            module = "org.apache.kafka.common.security.scram.ScramLoginModule"
            lines.append(f'sasl.jaas.config={module} required username="{user}" password="{quoted}";')
        path = self.folder / f"{listener}.properties"
        path.write_text("\n".join(lines), encoding="utf-8")
        return path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    authority = Authority(folder / "authority")
    configs = settings(authority.signed("broker"), authority.certificate) | {
        "listener.security.protocol.map": "SASL_SSL:SASL_SSL,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,EXPIRED:SSL,OTHER:SSL,"
        "BOTH:SASL_SSL",
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.both.ssl.client.auth": "required",
        "listener.name.expired.ssl.keystore.location": str(authority.signed("late", expired=True)),
        "listener.name.other.ssl.keystore.location": str(authority.signed("other", hosts=("elsewhere.example",))),
    }
    names = ("SASL_SSL", "SSL", "SASL_PLAINTEXT", "EXPIRED", "OTHER", "BOTH")
    listeners = listeners_of(",".join(f"{name}://127.0.0.1:0" for name in names), None, configs)
    with cluster(brokers=2, listeners=listeners) as running:
        with AdminClient(running.address) as admin:
            admin.alter_configs(broker="all", set={"sasl.enabled.mechanisms": ",".join(MECHANISMS)})
            admin.set_user(USER, PASSWORD)
        eventually(
            lambda: all("PLAIN" in each._sasl.mechanisms and each._sasl._credentials() for each in routers(running)),
            "set",
        )
        yield Site(running, authority, folder)


def routers(running: InProcessCluster) -> list[Any]:
    return [running.launcher.servers[broker << 16].router for broker in range(2)]


@pytest.mark.parametrize("listener", ["SASL_SSL", "SSL", "SASL_PLAINTEXT"])
def test_producers_groups_transactions_and_admin_clients_work(site: Site, listener: str) -> None:
    topic = site.new_topic(f"all-{listener}")
    found = raylog.connect(**site.at(listener))
    with found.producer() as producer:
        producer.send_batch(topic, VALUES, keys=VALUES).result(TIMEOUT_S)
        producer.send(topic, b"x" * 900_000, partition=0).result(TIMEOUT_S)
    with found.producer(transactional_id=topic) as producer, producer.transaction():
        producer.send(topic, b"committed")
    wanted = sorted([*VALUES, b"x" * 900_000, b"committed"])
    reading = {"group_id": topic, "auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    with found.consumer(**reading) as consumer:
        consumer.subscribe([topic])
        read: list[bytes] = []
        while len(read) < len(wanted):
            taken = consumer.consume(len(wanted), timeout=TIMEOUT_S)
            assert taken, f"{len(read)} records, and then nothing"
            read += [each.value or b"" for each in taken]
        consumer.commit()
    assert sorted(read) == wanted
    with found.admin() as admin:
        assert sum(each.offset for each in admin.list_group_offsets(topic).values()) >= len(wanted)
        admin.create_topics([NewTopic(f"{topic}-made", 1, replication_factor=2)])
        assert f"{topic}-made" in admin.list_topics()
    assert sorted(found.bootstrap_servers().split(",")) == sorted(site.running.bootstrap_servers(listener).split(","))


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("listener", ["SASL_SSL", "SASL_PLAINTEXT"])
def test_each_mechanism_authenticates(site: Site, listener: str, mechanism: str) -> None:
    with raylog.connect(**site.at(listener, sasl_mechanism=mechanism)).admin() as admin:
        assert len(admin.describe_cluster().brokers) == 2


def test_a_handle_travels_without_its_files_and_shows_no_secret(site: Site, tmp_path: Path) -> None:
    topic = site.new_topic("travels")
    own = Path(tmp_path / "own.pem")
    own.write_bytes(site.authority.signed("encrypted", password="of the key").read_bytes())
    options = site.at("SASL_SSL", ssl_keystore_location=str(own), ssl_key_password="of the key")
    found = raylog.connect(**options)
    own.unlink()
    copied: raylog.Cluster = pickle.loads(pickle.dumps(found))
    assert copied.address.security == found.address.security
    with copied.producer() as producer:
        producer.send(topic, b"x").result(TIMEOUT_S)
        for shown in (found, found.address, found.address.security, producer, copied.options, vars(found)):
            for secret in (PASSWORD, "of the key", "PRIVATE KEY", "BEGIN"):
                assert secret not in repr(shown) and secret not in str(shown)


def test_commands_take_the_file_of_a_java_client(site: Site) -> None:
    from raylog.cli.main import app

    topic = site.new_topic("commands")
    for listener in ("SASL_SSL", "SSL"):
        where = ("--command-config", str(site.properties(listener)))

        def run(*arguments: str, where: tuple[str, ...] = where, text: str | None = None) -> str:
            done = CliRunner().invoke(app, [*arguments, *where], input=text)
            assert done.exit_code == 0, (done.output, done.exception)
            return done.stdout

        assert topic in run("topics", "list")
        run("produce", topic, text=f"{listener}\n")
        assert listener in run("consume", topic, "--from-beginning", "--until-end")
        assert "2 of" in run("status") or topic in run("status")
        run("producer-perf", "--topic", topic, "--num-records", "10", "--record-size", "10", "--throughput", "-1")


def failure(site: Site, listener: str, **options: Any) -> RaylogError:
    started = time.monotonic()
    with pytest.raises(RaylogError) as raised:
        raylog.connect(**site.at(listener, **options))
    text = str(raised.value)
    assert "\n" not in text and PASSWORD not in text and "wrong!" not in text
    assert time.monotonic() - started < TIMEOUT_S, "it was tried again and again"
    return raised.value


def test_what_cannot_be_mended_by_trying_again_is_said_at_once(site: Site) -> None:
    stranger = Authority(site.folder / "stranger", "a stranger")
    unknown = failure(site, "SASL_SSL", ssl_truststore_location=str(stranger.certificate))
    assert isinstance(
        unknown, SslAuthenticationError
    ) and "set ssl.truststore.location to the certificate of the" in str(unknown)
    late = failure(site, "EXPIRED")
    assert isinstance(late, SslAuthenticationError) and "has expired: give the broker a new one" in str(late)
    other = failure(site, "OTHER")
    assert isinstance(other, SslAuthenticationError) and "does not name 127.0.0.1" in str(other)
    for options in (
        {"sasl_password": "wrong!"},
        {"sasl_username": "nobody"},
        {"sasl_password": "wrong!", "sasl_mechanism": "PLAIN"},
    ):
        wrong = failure(site, "SASL_SSL", **options)
        assert isinstance(wrong, SaslAuthenticationFailedError) and "check the user's name and password" in str(wrong)
    no_sasl = failure(
        site,
        "SASL_SSL",
        bootstrap_servers=site.running.bootstrap_servers("OTHER"),
        ssl_endpoint_identification_algorithm="",
    )
    assert isinstance(no_sasl, SaslAuthenticationFailedError) and "set security.protocol=SSL" in str(no_sasl)


def test_the_host_name_is_not_checked_where_that_is_switched_off(site: Site) -> None:
    with raylog.connect(**site.at("OTHER", ssl_endpoint_identification_algorithm="")).admin() as admin:
        assert len(admin.describe_cluster().brokers) == 2


@pytest.mark.parametrize("listener", ["SASL_SSL", "SSL", "SASL_PLAINTEXT"])
def test_a_client_without_security_is_told_what_may_be_missing(site: Site, listener: str) -> None:
    with pytest.raises(RaylogError, match=r"set security\.protocol and what goes with it"):
        raylog.connect(bootstrap_servers=site.running.bootstrap_servers(listener), timeout_s=1)


def test_a_client_whose_certificate_is_not_accepted_is_told_what_to_set(site: Site) -> None:
    stranger = Authority(site.folder / "another stranger")
    for keystore in (None, str(stranger.signed("somebody"))):
        said = r"does not accept this client's certificate \(\w+\): set ssl\.keystore\.location to one that its ssl\.truststore knows"
        with pytest.raises(RaylogError, match=said):
            raylog.connect(**site.at("SSL", ssl_keystore_location=keystore, timeout_s=1))
        with pytest.raises(RaylogError, match=said):
            both = site.running.bootstrap_servers("BOTH")
            raylog.connect(**site.at("SASL_SSL", bootstrap_servers=both, ssl_keystore_location=keystore, timeout_s=1))


def test_a_client_with_tls_is_told_that_the_listener_may_have_none(site: Site) -> None:
    at = site.running.bootstrap_servers("SASL_PLAINTEXT")
    with pytest.raises(RaylogError, match=r"if it does not speak TLS, give another port"):
        raylog.connect(**site.at("SASL_SSL", bootstrap_servers=at, timeout_s=1))


def test_a_mechanism_that_is_not_enabled_is_answered_with_those_that_are(site: Site) -> None:
    with AdminClient(site.running.address) as admin:
        admin.alter_configs(broker="all", set={"sasl.enabled.mechanisms": "SCRAM-SHA-256"})
    eventually(
        lambda: all(each._sasl.mechanisms == ("SCRAM-SHA-256",) for each in routers(site.running)), "the brokers know"
    )
    try:
        assert "set one of SCRAM-SHA-256" in str(failure(site, "SASL_SSL"))
    finally:
        with AdminClient(site.running.address) as admin:
            admin.alter_configs(broker="all", set={"sasl.enabled.mechanisms": ",".join(MECHANISMS)})
        eventually(lambda: all("PLAIN" in each._sasl.mechanisms for each in routers(site.running)), "the brokers know")


def test_sessions_are_begun_anew_and_nothing_is_sent_twice(site: Site) -> None:
    topic = site.new_topic("sessions")

    def set_session(milliseconds: int) -> None:
        with AdminClient(site.running.address) as admin:
            admin.alter_configs(broker="all", set={"connections.max.reauth.ms": milliseconds})
        eventually(
            lambda: all(each._sasl.reauth_ms == milliseconds for each in routers(site.running)), "the brokers know"
        )

    def times_again() -> int:
        """How many connections have authenticated for a third time; a session is three seconds long."""
        connections = [each for router in routers(site.running) for each in list(router.server.connections)]
        return sum(each._begun_at - each.opened_at > 4.5 for each in connections)

    set_session(3_000)
    try:
        found = raylog.connect(**site.at("SASL_SSL"))
        sent = 0
        with found.producer(enable_idempotence=False, acks=1, retries=0) as producer, found.consumer() as consumer:
            consumer.assign([TopicPartition(topic, number) for number in range(3)])
            consumer.seek_to_beginning()
            read = 0
            while times_again() < 2 or read < sent:
                producer.send(topic, b"x", partition=sent % 3).result(TIMEOUT_S)
                sent += 1
                read += len(consumer.consume(100, timeout=0.2))
        assert read == sent
    finally:
        set_session(0)


def test_an_address_with_the_secret_has_no_other_way_in(site: Site) -> None:
    secret = site.running.address.secret
    assert secret is not None
    inside = raylog.connect(**site.at("SASL_SSL"), secret=secret.decode())
    assert inside.address.security is None and not inside.address.is_outside
    with pytest.raises(AssertionError):
        replace(inside.address, security=raylog.connect(**site.at("SASL_SSL")).address.security)


def _knows(router: Any, user: str) -> bool:
    return any(name == user for name, _ in router._sasl._credentials())


def test_a_deleted_user_is_let_in_no_more(site: Site) -> None:
    with AdminClient(site.running.address) as admin:
        admin.set_user("carol", "hers")
        eventually(lambda: all(_knows(each, "carol") for each in routers(site.running)), "known")
        found = raylog.connect(**site.at("SASL_SSL", sasl_username="carol", sasl_password="hers"))
        with found.admin() as outside:
            outside.list_topics()
            admin.delete_user("carol")
            with pytest.raises(SaslAuthenticationFailedError):
                eventually(lambda: outside.list_topics() is None, "an end")


def test_a_member_without_partitions_is_told_that_its_user_is_gone(site: Site) -> None:
    topic = site.new_topic("idle")
    with AdminClient(site.running.address) as admin:
        admin.set_user("erna", "hers")
        eventually(lambda: all(_knows(each, "erna") for each in routers(site.running)), "known")
        found = raylog.connect(**site.at("SASL_SSL", sasl_username="erna", sasl_password="hers"))
        options = {"group_id": "idlers", "heartbeat_interval_ms": 200}
        with contextlib.ExitStack() as open_ones:
            members = [open_ones.enter_context(found.consumer(**options)) for _ in range(4)]
            for each in members:
                each.subscribe([topic])

            def shared_out() -> bool:
                for each in members:
                    each.consume(1, timeout=0.1)
                return sorted(len(each.assignment()) for each in members) == [0, 1, 1, 1]

            eventually(shared_out, "one of them has no partition")
            (idle,) = (each for each in members if not each.assignment())
            admin.delete_user("erna")
            with pytest.raises(SaslAuthenticationFailedError, match="check the user's name and password"):
                eventually(lambda: idle.consume(1, timeout=0.2) is None, "an end")
            with pytest.raises(SaslAuthenticationFailedError, match="check the user's name and password"):
                idle.committed([TopicPartition(topic, 0)])


def test_open_clients_are_told_that_their_user_is_gone(site: Site) -> None:
    topic = site.new_topic("gone")
    with AdminClient(site.running.address) as admin:
        admin.set_user("dora", "hers")
        eventually(lambda: all(_knows(each, "dora") for each in routers(site.running)), "known")
        found = raylog.connect(**site.at("SASL_SSL", sasl_username="dora", sasl_password="hers"))
        with found.producer() as producer, found.consumer() as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            consumer.seek_to_beginning()
            producer.send(topic, b"x", partition=0).result(TIMEOUT_S)
            eventually(lambda: consumer.consume(1, timeout=0.2), "a record")
            admin.delete_user("dora")
            with pytest.raises(SaslAuthenticationFailedError, match="check the user's name and password"):
                eventually(lambda: producer.send(topic, b"y", partition=0).result(TIMEOUT_S) is None, "an end")
            with pytest.raises(SaslAuthenticationFailedError, match="check the user's name and password"):
                eventually(lambda: consumer.consume(1, timeout=0.2) is None, "an end")
