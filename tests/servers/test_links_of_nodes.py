"""The provisioner and TLS on links inside: what each node says by its own files, and nodes that are not alike."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from provisioned_machines import Machines

from raylog.client.links.address import ClusterAddress
from raylog.disks.certificate_authority import CertificateAuthority
from raylog.disks.disk import read_disk
from raylog.disks.node_links import links_of, note_links
from raylog.server.provisioner import LOOK_AGAIN_ROUNDS, Provisioner, QuorumSeen
from raylog.wire.internal_tls import SecretInsideTls


class Nodes(Machines):
    """Each with a certificate for its own address alone, which only its own folder has."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.authority = _authority()
        self.asked: list[ClusterAddress] = []

    def join_with_tls(self, name: str, host: str) -> Path:
        path = self.join(name, host)
        self.certify(name, host)
        stores = {"ssl.keystore.location": path / "node.pem", "ssl.truststore.location": path / "authorities.pem"}
        stores = {place: self.folder / f"{name}-{file.name}" for place, file in stores.items()}
        types = {"ssl.keystore.type": "PEM", "ssl.truststore.type": "PEM"}
        note_links(path, tuple(sorted({**types, **{place: str(file) for place, file in stores.items()}}.items())))
        return path

    def certify(self, name: str, host: str) -> None:
        import datetime

        made = self.authority.server(name, [host], datetime.datetime.now(datetime.UTC), days=1)
        (self.folder / f"{name}-node.pem").write_text(made.key + made.certificate)
        (self.folder / f"{name}-authorities.pem").write_text(self.authority.certificate)

    def quorum(self, address: ClusterAddress) -> QuorumSeen | None:
        self.asked.append(address)
        return super().quorum(address)

    def trusted(self) -> str | None:
        """By what the provisioner goes now."""
        secret = self.asked[-1].secret
        assert isinstance(secret, SecretInsideTls) and secret.configs == (), "it has none of the nodes' files"
        return secret.security().trusted


def _authority() -> CertificateAuthority:
    import datetime

    return CertificateAuthority.new(datetime.datetime.now(datetime.UTC), days=1)


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


def three(nodes: Nodes) -> Provisioner:
    for number in (1, 2, 3):
        nodes.join_with_tls(f"m{number}", f"10.0.0.{number}")
    return Provisioner(nodes, expected=3)


def has_joined(nodes: Nodes, name: str) -> bool:
    return read_disk(nodes.folder / name) is not None


def test_a_cluster_of_nodes_with_tls_is_asked_by_what_they_trust_and_without_their_files(nodes: Nodes) -> None:
    provisioner = three(nodes)
    provisioner.round()
    assert provisioner.status()["missing"] is None and len(nodes.registered) == 3
    for number in (1, 2, 3):
        assert str(nodes.folder / f"m{number}-node.pem") in dict(links_of(nodes.folder / f"m{number}")).values()
    assert nodes.trusted() == nodes.authority.certificate
    nodes.join_with_tls("m4", "10.0.0.4")
    provisioner.round()
    assert has_joined(nodes, "m4") and provisioner.status()["missing"] is None


def test_blank_disks_that_are_not_alike_become_no_cluster(nodes: Nodes) -> None:
    nodes.join_with_tls("m1", "10.0.0.1")
    nodes.join("m2", "10.0.0.2")
    provisioner = Provisioner(nodes, expected=2)
    provisioner.round()
    assert "m2 on 10.0.0.2 has no TLS on links inside, and" in provisioner.status()["missing"]
    assert not has_joined(nodes, "m1") and not has_joined(nodes, "m2")
    nodes.join_with_tls("m2", "10.0.0.2")
    for _ in range(LOOK_AGAIN_ROUNDS + 1):
        provisioner.round()
    assert provisioner.status()["missing"] is None and has_joined(nodes, "m2")


def test_a_disk_without_tls_is_left_out_of_a_cluster_with_it_and_the_others_serve(nodes: Nodes) -> None:
    provisioner = three(nodes)
    provisioner.round()
    nodes.join("m4", "10.0.0.4")
    provisioner.round()
    assert "m4 on 10.0.0.4 has no TLS on links inside" in provisioner.status()["missing"]
    assert not has_joined(nodes, "m4") and nodes.running == ["m1", "m2", "m3"]


def test_a_disk_with_tls_is_left_out_of_a_cluster_without_it(nodes: Nodes) -> None:
    for number in (1, 2, 3):
        nodes.join(f"m{number}", f"10.0.0.{number}")
    provisioner = Provisioner(nodes, expected=3)
    provisioner.round()
    nodes.join_with_tls("m4", "10.0.0.4")
    provisioner.round()
    assert "m4 on 10.0.0.4 has TLS on links inside, and" in provisioner.status()["missing"]
    assert not has_joined(nodes, "m4") and nodes.running == ["m1", "m2", "m3"]


def test_a_certificate_that_names_another_host_is_said_with_its_disk(nodes: Nodes) -> None:
    provisioner = three(nodes)
    shutil.copy(nodes.folder / "m1-node.pem", nodes.folder / "m2-node.pem")
    provisioner.round()
    missing = provisioner.status()["missing"]
    assert "m2 on 10.0.0.2 can't be used: links inside the cluster would fail at 10.0.0.2" in missing
    assert not has_joined(nodes, "m1"), "the cluster is made when all can"


def test_a_provisioner_that_no_controller_hears_asks_the_nodes_for_their_new_authority(nodes: Nodes) -> None:
    provisioner = three(nodes)
    provisioner.round()
    nodes.authority = _authority()
    for number in (1, 2, 3):
        nodes.certify(f"m{number}", f"10.0.0.{number}")
    nodes.work.clear()
    provisioner.round()
    assert nodes.work == [], "as long as it is heard"
    nodes.has_majority = False
    provisioner.round()
    nodes.has_majority = True
    provisioner.round()
    assert nodes.trusted() == nodes.authority.certificate and provisioner.status()["missing"] is None
    assert len(nodes.registered) == 3
