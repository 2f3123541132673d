"""``raylog certificates``: what it makes for nodes and clients, keeps and makes anew."""

from __future__ import annotations

import datetime
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from typer.testing import CliRunner

from raylog.cli.main import app
from raylog.configs.properties import read_properties
from raylog.configs.server_properties import server_properties
from raylog.disks.link_file import wanted_links
from raylog.disks.node_certificates import AUTHORITY_DAYS, DAYS, RENEWED_DAYS, CertificateFolder, HeldCertificate
from raylog.disks.node_links import links_of
from raylog.errors import ConfigError
from raylog.wire.internal_tls import check_links
from raylog.wire.tls import TlsConfig

pytestmark = pytest.mark.core

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
NODES = [["10.0.0.7", "node7.example"], ["fd00::8"]]


@pytest.fixture
def made(tmp_path: Path) -> CertificateFolder:
    found = CertificateFolder(tmp_path / "certificates")
    found.make(NODES, ["alice"], NOW)
    return found


def links(held: HeldCertificate, **others: str) -> tuple[tuple[str, str], ...]:
    """Of a node that has that server.properties."""
    named = {name.replace("_", "."): value for name, value in others.items()}
    found = wanted_links(server_properties(read_properties(held.properties) | named), None)
    assert found is not None
    return found


def certificate(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def texts(folder: Path, pattern: str = "*") -> dict[str, str]:
    return {str(each.relative_to(folder)): each.read_text() for each in folder.rglob(pattern) if each.is_file()}


def test_links_between_nodes_work_by_what_is_made_also_where_they_ask_for_certificates(made: CertificateFolder) -> None:
    nodes, _ = made.make([], [], NOW)
    assert [each.names for each in nodes] == [("10.0.0.7", "node7.example"), ("fd00::8",)]
    for each in nodes:
        for host in each.names:
            check_links(links(each), host)
            check_links(links(each, ssl_client_auth="required"), host)
        with pytest.raises(ConfigError, match=r"that certificate has to name 10\.0\.0\.9"):
            check_links(links(each), "10.0.0.9")
    other = CertificateFolder(made.folder.parent / "others")
    stranger = other.make([["10.0.0.7"]], [], NOW)[0][0]
    with pytest.raises(ConfigError, match="has to hold the authority"):
        links(nodes[0], ssl_truststore_location=str(other.authority))
    check_links(links(stranger), "10.0.0.7")


def test_only_their_owner_reads_keys_and_no_node_has_anothers(made: CertificateFolder) -> None:
    folders = [made.folder, *(each for each in made.folder.rglob("*") if each.is_dir())]
    assert {each.stat().st_mode & 0o777 for each in folders} == {0o700} and len(folders) == 6
    modes = {str(each): each.stat().st_mode & 0o777 for each in made.folder.rglob("*") if each.is_file()}
    assert {mode for file, mode in modes.items() if file.endswith("authority.pem")} == {0o644}
    assert {mode for file, mode in modes.items() if not file.endswith("authority.pem")} == {0o600}
    keys = [file for file, text in texts(made.folder).items() if "PRIVATE KEY" in text]
    assert sorted(keys) == [
        "authority.key",
        "clients/alice/client.pem",
        "nodes/10.0.0.7/node.pem",
        "nodes/fd00::8/node.pem",
    ]


def test_certificates_are_made_anew_only_in_their_last_days_and_the_authoritys_key_stays(
    made: CertificateFolder,
) -> None:
    before = texts(made.folder)
    nodes, clients = made.make([], [], NOW + (DAYS - RENEWED_DAYS - 1) * DAY)
    assert {each.change for each in [*nodes, *clients]} == {"kept"} and texts(made.folder) == before
    nodes[0].properties.write_text(nodes[0].properties.read_text() + "num.partitions=4\n")
    late = NOW + (DAYS - RENEWED_DAYS) * DAY + DAY / 24
    nodes, clients = made.make([], [], late)
    assert {each.change for each in [*nodes, *clients]} == {"renewed"}
    assert {each.ends - late for each in [*nodes, *clients]} == {
        DAYS * DAY - datetime.timedelta(microseconds=late.microsecond)
    }
    changed = {file for file, text in texts(made.folder).items() if text != before.get(file)}
    assert changed == {
        "clients/alice/client.pem",
        "nodes/10.0.0.7/node.pem",
        "nodes/10.0.0.7/server.properties",
        "nodes/fd00::8/node.pem",
    }
    assert "num.partitions=4" in nodes[0].properties.read_text(), "what somebody has added"
    assert [each.names for each in nodes] == [("10.0.0.7", "node7.example"), ("fd00::8",)]
    for each in nodes:
        check_chain(each.pem, made.authority.read_text())


def check_chain(pem: Path, trusted: str) -> None:
    """That whoever trusts these authorities trusts the certificate."""
    certificate(pem).verify_directly_issued_by(x509.load_pem_x509_certificate(trusted.encode()))


def test_an_authority_that_would_end_before_what_it_signs_is_made_anew_by_its_own_key(made: CertificateFolder) -> None:
    key, old = made.authority_key.read_bytes(), made.authority.read_text()
    node = certificate(made.folder / "nodes" / "10.0.0.7" / "node.pem")
    made.make([["10.0.0.9"]], [], NOW + (AUTHORITY_DAYS - DAYS - RENEWED_DAYS) * DAY - DAY)
    assert made.authority.read_text() == old
    made.make([], [], NOW + (AUTHORITY_DAYS - DAYS - RENEWED_DAYS) * DAY + DAY)
    new = made.authority.read_text()
    assert new != old and made.authority_key.read_bytes() == key
    assert set(texts(made.folder, "authority.pem").values()) == {new}, "each node gets it"
    for trusted in (old, new):
        node.verify_directly_issued_by(x509.load_pem_x509_certificate(trusted.encode()))
        check_chain(made.folder / "nodes" / "10.0.0.7" / "node.pem", trusted)


def test_a_node_that_gets_another_name_gets_another_certificate(made: CertificateFolder) -> None:
    nodes, _ = made.make([["10.0.0.7", "other.example"]], [], NOW)
    assert [(each.names, each.change) for each in nodes] == [
        (("10.0.0.7", "other.example"), "renewed"),
        (("fd00::8",), "kept"),
    ]
    check_links(links(nodes[0]), "other.example")
    assert made.make([["10.0.0.7", "other.example"]], [], NOW)[0][0].change == "kept"


def test_a_certificate_that_another_authority_signed_is_made_anew(made: CertificateFolder) -> None:
    other = CertificateFolder(made.folder.parent / "others")
    stranger = other.make([["fd00::8"]], [], NOW)[0][0]
    (made.folder / "nodes" / "fd00::8" / "node.pem").write_bytes(stranger.pem.read_bytes())
    nodes, _ = made.make([], [], NOW)
    assert [each.change for each in nodes] == ["kept", "renewed"]
    check_links(links(nodes[1]), "fd00::8")


@pytest.mark.parametrize("lost", ["authority.key", "authority.pem"])
def test_without_its_authority_nothing_is_made(made: CertificateFolder, lost: str) -> None:
    (made.folder / lost).unlink()
    before = texts(made.folder)
    with pytest.raises(ConfigError, match=rf"{lost} is missing: put it back"):
        made.make([["10.0.0.9"]], [], NOW)
    assert texts(made.folder) == before


def test_a_damaged_file_is_named(made: CertificateFolder) -> None:
    (made.folder / "nodes" / "10.0.0.7" / "node.pem").write_text("nothing")
    with pytest.raises(ConfigError, match=r"10\.0\.0\.7/node\.pem cannot be read: say by --node"):
        made.make([], [], NOW)
    with pytest.raises(ConfigError, match="remove the file that is damaged"):
        made.make([["10.0.0.7"]], [], NOW)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (["../up"], "no name and no address"),
        (["a/b"], "no name and no address"),
        (["-rf"], "no name and no address"),
        ([".."], "no name and no address"),
        (["0.0.0.0"], "every address"),
        (["10.0.0.7", "::"], "every address"),
        ([], "by one or more hosts"),
    ],
)
def test_a_host_that_no_certificate_can_name_is_refused(tmp_path: Path, node: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        CertificateFolder(tmp_path / "c").make([node], [], NOW)
    assert not list(tmp_path.iterdir())


def test_a_clients_name_is_no_path_and_an_empty_folder_needs_a_node(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no name of a client"):
        CertificateFolder(tmp_path / "c").make([], ["a/b"], NOW)
    with pytest.raises(ConfigError, match="name its nodes by --node"):
        CertificateFolder(tmp_path / "c").make([], [], NOW)
    assert not list(tmp_path.iterdir())


def test_a_listener_that_asks_for_certificates_takes_a_clients_and_refuses_one_of_a_stranger(
    made: CertificateFolder,
) -> None:
    node = made.make([], [], NOW)[0][0]
    named = read_properties(node.properties) | {"ssl.client.auth": "required"}
    del named["security.inter.broker.protocol"]
    listener = TlsConfig.of(named, "SSL")
    client = made.folder / "clients" / "alice"
    told = read_properties(client / "client.properties")
    assert told["security.protocol"] == "SSL" and told["ssl.keystore.location"] == str(client / "client.pem")
    assert shaken(listener, client / "client.pem", client / "authority.pem") == "alice"
    stranger = CertificateFolder(made.folder.parent / "others")
    stranger.make([], ["alice"], NOW)
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(listener, stranger.folder / "clients" / "alice" / "client.pem", client / "authority.pem")


def shaken(listener: TlsConfig, keystore: Path, trusted: Path) -> str:
    """The common name that the listener knows after a handshake."""
    context = ssl.create_default_context(cafile=str(trusted))
    context.load_cert_chain(keystore)
    answers, questions = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends: list[Any] = [
        context.wrap_bio(answers, questions, server_hostname="10.0.0.7"),
        listener.context().wrap_bio(questions, answers, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    shown = x509.load_der_x509_certificate(ends[1].getpeercert(True))
    (found,) = shown.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found.value)


# ------------------------------------------------------------------ the command


def command(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["certificates", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_node_takes_the_folder_that_the_command_made(tmp_path: Path) -> None:
    folder, disk = tmp_path / "certificates", tmp_path / "disk"
    disk.mkdir()
    told = json.loads(command(folder, "--node", "127.0.0.1,localhost", "--client", "alice", "--days", "40", "--json"))
    (node,), (client,) = told["nodes"], told["clients"]
    assert node["hosts"] == ["127.0.0.1", "localhost"] and client["names"] == ["alice"]
    assert {node["change"], client["change"]} == {"new"}
    assert datetime.datetime.fromisoformat(node["ends"]) - NOW < 41 * DAY
    assert told["authority"]["certificate"] == str(folder / "authority.pem")
    done = CliRunner().invoke(app, ["node", "resources", str(disk), "--config", node["server_properties"]])
    assert done.exit_code == 0, done.output
    assert dict(links_of(disk))["ssl.keystore.location"] == node["certificate"]
    again = json.loads(command(folder, "--json"))
    assert [each["change"] for each in again["nodes"]] == ["kept"]


def test_a_nodes_files_may_be_elsewhere_on_the_node(tmp_path: Path) -> None:
    said = command(tmp_path / "c", "--node", "10.0.0.7", "--placed-at", "/etc/raylog")
    assert "raylog node lend DISK --config /etc/raylog/server.properties" in said and "10.0.0.7" in said
    properties = tmp_path / "c" / "nodes" / "10.0.0.7" / "server.properties"
    told = read_properties(properties)
    assert told["ssl.keystore.location"] == "/etc/raylog/node.pem"
    assert told["ssl.truststore.location"] == "/etc/raylog/authority.pem"
    command(tmp_path / "c")
    assert read_properties(properties) == told, "it is kept"
    command(tmp_path / "c", "--placed-at", "/srv")
    assert read_properties(properties)["ssl.keystore.location"] == "/srv/node.pem"
    assert "PRIVATE KEY" not in said
