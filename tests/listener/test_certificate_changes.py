"""Certificates of a listener that are changed while its broker runs (KIP-226), as TLS clients see them on new connections."""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, common_name, settings
from kio.schema.errors import ErrorCode
from outside import Client, listener, request
from raw_requests import eventually
from typer.testing import CliRunner

import raylog
from raylog.cli.main import app
from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.errors import RaylogError
from raylog.metadata.records import BrokerConfigChanged
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import BROKER_SLOT, node_id
from raylog.wire.connection import Connection
from raylog.wire.listeners import listeners_of

pytestmark = pytest.mark.core

BROKER, TOPIC = 4, 2
SET, DELETE = 0, 1
CORRELATION_ID = b"\0\0\0\7"
API_VERSIONS = b"\0\0\0\x0a\0\x12\0\0" + CORRELATION_ID + b"\xff\xff"
KEYSTORE = "listener.name.out.ssl.keystore.location"
TRUSTSTORE = "listener.name.out.ssl.truststore.location"
CHAIN, KEY = ("listener.name.out.ssl.keystore." + each for each in ("certificate.chain", "key"))


class Site:
    """Two brokers with a listener OUT, whose clients show certificates, beside PLAINTEXT."""

    def __init__(self, folder: Path, authority: Authority, running: InProcessCluster) -> None:
        self.folder = folder
        self.authority = authority
        self.running = running

    def connect(self, broker: int = 0, own: Path | None = None) -> ssl.SSLSocket:
        server = self.running.launcher.servers[node_id(broker, BROKER_SLOT)]
        (at,) = (each.endpoint for each in server.advertised_listeners if each.name == "OUT")
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        context.load_cert_chain(own or self.folder / "client.pem")
        plain = socket.create_connection((at.host, at.port), timeout=60)
        return context.wrap_socket(plain, server_hostname=at.host)

    def shown(self, broker: int = 0) -> str:
        """Whose certificate a new connection gets."""
        with self.connect(broker) as connection:
            return name_of(connection)

    def altered(self, changes: dict[str, Any], *, broker: str = "0", at: int = 0) -> tuple[ErrorCode, str | None]:
        """The answer of broker ``at`` to changes of a broker; None takes one away."""
        configs = [(name, DELETE if value is None else SET, value) for name, value in changes.items()]
        (found,) = self.ask(((BROKER, broker, configs),), at)
        return found.error_code, found.error_message

    def ask(self, resources: Any, at: int = 0) -> Any:
        client = Client(self.running, at)
        try:
            return client.ask(alteration(resources)).responses
        finally:
            client.close()

    def own(self, broker: int = 0) -> dict[str, str]:
        """What is set for that broker."""
        return dict(self.running.controller._controller.image.broker_values.dynamic.get(broker, {}))


def alteration(resources: Any) -> Any:
    def each(module: Any) -> Any:
        return tuple(
            module.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=tuple(
                    module.AlterableConfig(name=config, config_operation=operation, value=value)
                    for config, operation, value in configs
                ),
            )
            for kind, name, configs in resources
        )

    return request(44, 1, resources=each, validate_only=False)


def name_of(connection: ssl.SSLSocket) -> str:
    certificate: Any = connection.getpeercert()
    return dict(each[0] for each in certificate["subject"])["commonName"]


def answers(connection: ssl.SSLSocket) -> bool:
    connection.sendall(API_VERSIONS)
    return connection.recv(8)[4:] == CORRELATION_ID


def accepts(site: Site, own: Path) -> bool:
    """Whether a client with that certificate is served: TLS 1.3 refuses it after its handshake."""
    try:
        with site.connect(own=own) as connection:
            return answers(connection)
    except (ssl.SSLError, ConnectionError):
        return False


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority(folder)
    authority.signed("client")
    mapped = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUT:SSL,STRICT:SSL",
        "listener.name.out.ssl.allow.dn.changes": "true",
    }
    trusting = settings(authority.signed("first"), authority.certificate, ssl_client_auth="required")
    listeners = listeners_of("PLAINTEXT://127.0.0.1:0,OUT://127.0.0.1:0,STRICT://127.0.0.1:0", None, mapped | trusting)
    with cluster(brokers=2, listeners=listeners) as running:
        with AdminClient(running.address) as admin:
            admin.create_topics([NewTopic("t", 1, 1)])
        yield Site(folder, authority, running)


@pytest.fixture
def site(together: Site) -> Iterator[Site]:
    """With the certificates of the start, again at its end."""
    yield together
    if names := [*together.own()]:
        assert together.altered(dict.fromkeys(names))[0] is ErrorCode.none
    eventually(lambda: together.shown() == "first", "the certificate of the start")


def test_a_certificate_that_is_set_is_that_of_new_connections_and_open_ones_stay(site: Site) -> None:
    with site.connect() as before:
        assert site.altered({KEYSTORE: str(site.authority.signed("second"))}) == (ErrorCode.none, None)
        eventually(lambda: site.shown() == "second", "the new certificate")
        assert site.shown(broker=1) == "first", "it is one broker's"
        assert name_of(before) == "first"
        assert answers(before)
    assert site.altered({KEYSTORE: None}) == (ErrorCode.none, None)
    eventually(lambda: site.shown() == "first", "the certificate of the start")


def test_a_key_that_is_not_the_certificates_is_refused_and_nothing_changes(site: Site) -> None:
    texts = [site.authority.signed(each).read_text() for each in ("third", "fourth")]
    (key, _), (_, chain) = ((text[: (at := text.index("-----BEGIN CERT"))], text[at:]) for text in texts)
    changes = {"listener.name.out.ssl.keystore.location": "", KEY: key, CHAIN: chain}
    resources = (
        (BROKER, "0", [(name, SET, value) for name, value in changes.items()]),
        (TOPIC, "t", [("retention.ms", SET, "7")]),
    )
    bad, good = site.ask(resources)
    assert (bad.error_code, bad.resource_type, bad.resource_name) == (ErrorCode.invalid_request, BROKER, "0")
    assert "the private key is not that of the certificate" in bad.error_message and key not in bad.error_message
    assert (good.error_code, good.resource_type, good.resource_name) == (ErrorCode.none, TOPIC, "t")
    assert not site.own() and site.shown() == "first"
    missing = site.altered({KEYSTORE: "/nowhere/broker.pem"})
    assert missing[0] is ErrorCode.invalid_request and "/nowhere/broker.pem cannot be read" in str(missing[1])
    assert not site.own() and site.shown() == "first"


def test_another_subject_and_fewer_names_are_refused_unless_the_start_allows_them(site: Site, tmp_path: Path) -> None:
    strict = KEYSTORE.replace(".out.", ".strict.")
    first = common_name("first")
    other = site.altered({strict: str(site.authority.signed("eighth"))})
    assert other[0] is ErrorCode.invalid_request
    assert "DistinguishedName does not match: existing=CN=first, new=CN=eighth" in str(other[1])
    fewer = str(site.authority.signed("ninth", first, hosts=["localhost"]))
    lacking = site.altered({strict: fewer})
    assert lacking[0] is ErrorCode.invalid_request and "SubjectAltNames do not match" in str(lacking[1])
    lacking = site.altered({KEYSTORE: fewer})
    assert lacking[0] is ErrorCode.invalid_request, "OUT allows another subject, and names no fewer"
    assert not site.own()
    same = site.altered({strict: str(Authority(tmp_path, "another").signed("tenth", first))})
    assert same == (ErrorCode.none, None), "who signed it is not compared, as in Kafka"


def test_a_certificate_whose_texts_are_set_is_shown_and_its_key_is_not(site: Site) -> None:
    text = site.authority.signed("fifth").read_text()
    at = text.index("-----BEGIN CERT")
    changes = {"listener.name.out.ssl.keystore.location": "", KEY: text[:at], CHAIN: text[at:]}
    assert site.altered(changes) == (ErrorCode.none, None)
    eventually(lambda: site.shown() == "fifth", "the new certificate")
    described = request(32, 4, resources=(), include_synonyms=True, include_documentation=True)
    module = importlib.import_module(type(described).__module__)
    resource = module.DescribeConfigsResource(resource_type=BROKER, resource_name="0", configuration_keys=None)
    client = Client(site.running, 0)
    (result,) = client.ask(
        type(described)(resources=(resource,), include_synonyms=True, include_documentation=True)
    ).results
    client.close()
    shown = {each.name: each for each in result.configs}
    assert (shown[KEY].value, shown[KEY].is_sensitive) == (None, True)
    assert (shown[CHAIN].value, shown[CHAIN].is_sensitive, shown[CHAIN].read_only) == (text[at:].strip(), False, False)
    assert text[:at].strip() not in repr(result)


def test_a_dump_of_the_metadata_log_does_not_show_the_key() -> None:
    from raylog.cli import metadata_files

    records = [
        BrokerConfigChanged(0, each, "text") for each in (KEY, KEY.replace("keystore.key", "key.password"), CHAIN)
    ]
    assert [each["value"] for each in metadata_files._records(records)] == ["(redacted)", "(redacted)", "text"]
    (taken_away,) = metadata_files._records([BrokerConfigChanged(0, KEY, None)])
    assert taken_away["value"] is None


def test_a_truststore_that_is_set_lets_in_other_clients(site: Site, tmp_path: Path) -> None:
    others = Authority(tmp_path)
    stranger = others.signed("stranger")
    assert not accepts(site, stranger)
    assert site.altered({TRUSTSTORE: str(others.certificate)}) == (ErrorCode.none, None)
    eventually(lambda: accepts(site, stranger), "the new authority's client")
    assert not accepts(site, site.folder / "client.pem")


def test_a_broker_that_comes_back_has_what_was_set(site: Site) -> None:
    assert site.altered({KEYSTORE: str(site.authority.signed("sixth"))}) == (ErrorCode.none, None)
    eventually(lambda: site.shown() == "sixth", "the new certificate")
    launcher, node = site.running.launcher, node_id(0, BROKER_SLOT)
    before = launcher.servers[node]
    site.running.crash(node)
    site.running.await_true(lambda: launcher.servers.get(node, before) is not before)
    assert site.shown() == "sixth"


@pytest.mark.parametrize(
    ("name", "of", "at", "says"),
    [
        (KEYSTORE, "1", 0, "broker 1 reads these files and has to check them"),
        (KEYSTORE, "", 0, "set it for that one, not for all brokers"),
        ("ssl.keystore.location", "0", 0, "listener.name.NAME.ssl.keystore.location"),
        ("listener.name.in.ssl.keystore.location", "0", 0, "a listener with TLS that is not there: out"),
        ("listener.name.plaintext.ssl.keystore.location", "0", 0, "a listener with TLS that is not there: out"),
        ("listener.name.out.ssl.client.auth", "0", 0, "a start takes it"),
    ],
)
def test_what_cannot_be_changed_so_is_refused(site: Site, name: str, of: str, at: int, says: str) -> None:
    found = site.altered({name: str(site.folder / "first.pem")}, broker=of, at=at)
    assert found[0] is ErrorCode.invalid_request and says in str(found[1])
    assert not site.own(0) and not site.own(1)


def test_the_controller_takes_no_change_that_the_broker_has_not_checked(site: Site) -> None:
    path = str(site.authority.signed("seventh"))
    address = site.running.address

    async def at_controller(changes: list[tuple[str, int, str | None]]) -> str:
        secret, cluster_id = address.secret, address.cluster_id
        connection = await Connection.open(address.bootstrap[0], secret=secret, cluster_id=cluster_id)
        try:
            (found,) = (await connection.request(alteration(((BROKER, "0", changes),)), timeout_ms=60_000)).responses
        finally:
            connection.close()
        return str(found.error_message)

    assert "ask it, by a listener of its own" in asyncio.run(at_controller([(KEYSTORE, SET, path)]))
    assert site.altered({KEYSTORE: path}) == (ErrorCode.none, None)
    assert "ask it, by a listener of its own" in asyncio.run(at_controller([(KEYSTORE, DELETE, None)]))
    assert site.own() == {KEYSTORE: path}


@pytest.mark.parametrize("is_outside", [False, True])
def test_the_admin_client_asks_the_broker_itself_whose_certificates_it_sets(site: Site, is_outside: bool) -> None:
    path = str(site.authority.signed(f"eleventh-{is_outside}"))
    at = str(listener(site.running, 1))
    connected = raylog.connect(bootstrap_servers=at).admin() if is_outside else AdminClient(site.running.address)
    with connected as admin:
        admin.alter_configs(broker=0, set={KEYSTORE: path, "log.retention.ms": 3_600_000})
        eventually(lambda: site.shown() == f"eleventh-{is_outside}", "the new certificate")
        with pytest.raises(RaylogError, match=r"/nowhere\.pem cannot be read"):
            admin.alter_configs(broker=0, set={KEYSTORE: "/nowhere.pem"})
        with pytest.raises(RaylogError, match="a listener with TLS that is not there: out"):
            admin.alter_configs(broker=0, set={KEYSTORE.replace(".out.", ".with_it."): path})
        assert site.own() == {KEYSTORE: path, "log.retention.ms": "3600000"}
        admin.alter_configs(broker=0, delete=[KEYSTORE, "log.retention.ms"])
        assert site.own() == {}


def test_raylog_configs_sets_texts_and_never_shows_the_secret_ones(site: Site, tmp_path: Path) -> None:
    text = site.authority.signed("twelfth").read_text()
    at = text.index("-----BEGIN CERT")
    key, chain = text[:at].strip(), text[at:].strip()
    trusted = site.authority.certificate.read_text().strip()
    of_one = ("--entity-type", "brokers", "--entity-name", "0", "--bootstrap-server", str(listener(site.running, 1)))
    said: list[str] = []

    def configs(command: str, *arguments: str) -> str:
        result = CliRunner().invoke(app, ["configs", command, *of_one, *arguments])
        said.append(f"{result.stdout}{result.stderr}{result.exception}")
        return result.stdout

    file = tmp_path / "secret.properties"
    lines = key.replace("\n", "\\n")
    file.write_text(f"{KEY}={lines}\n")
    of_truststore = TRUSTSTORE.replace("location", "certificates")
    location = "listener.name.out.ssl.{}store.location".format
    added = f"{CHAIN}={chain},{of_truststore}={trusted},{location('key')}=,{location('trust')}="
    told = json.loads(configs("alter", "--add-config", added, "--add-config-file", str(file), "--json"))
    assert told["set"][KEY] is None and told["set"][CHAIN] == chain
    eventually(lambda: site.shown() == "twelfth", "the new certificate")
    assert accepts(site, site.folder / "client.pem")
    assert f"\n  {KEY}=None sensitive=true" in configs("describe")
    configs("describe", "--json")
    other = site.authority.signed("thirteenth").read_text()
    other = other[: other.index("-----BEGIN CERT")].strip()
    configs("alter", "--add-config", f"{KEY}={other}")
    assert "the private key is not that of the certificate" in said[-1]
    configs("alter", "--add-config", f"{KEY}={key},{key}")
    assert f"what follows {KEY}=… after its comma" in said[-1]
    body = [line for line in f"{key}\n{other}".splitlines() if "PRIVATE KEY" not in line]
    assert body and not any(line in each for each in said for line in body)
    assert site.shown() == "twelfth"
