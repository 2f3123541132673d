"""``raylog.init(secure=True)``: an embedded cluster that lets in its super user alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from ray_clusters import PATIENCE_S

import raylog
from raylog.errors import ConfigError, RaylogError

pytestmark = pytest.mark.ray


def test_init_starts_a_secure_cluster_and_its_file_lets_a_client_in(short_folder: Path) -> None:
    folder = short_folder / "data"
    with raylog.init(folder, brokers=1, secure=True, ray_address="local", timeout_s=PATIENCE_S) as cluster:
        cluster.admin().create_topics([raylog.NewTopic("orders", 1, 1)])
        (broker,) = cluster.status()["brokers"]
        (listener,) = broker["listeners"]
        assert listener.startswith("SASL_SSL://127.0.0.1:")
        file = folder / "security" / "client.properties"
        assert file.stat().st_mode & 0o777 == 0o600
        written = dict(line.split("=", 1) for line in file.read_text().splitlines())
        options = {
            "bootstrap.servers": written["bootstrap.servers"],
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(folder / "security" / "authority.pem"),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "admin",
            "sasl.password": (folder / "security" / "admin.password").read_text().strip(),
        }
        assert "orders" in AdminClient(options).list_topics(timeout=PATIENCE_S).topics
        with pytest.raises(KafkaException):
            AdminClient(options | {"sasl.password": "wrong"}).list_topics(timeout=3)
        cluster.admin().set_user("alice", "secret")
        alice = options | {"sasl.username": "alice", "sasl.password": "secret"}
        assert "orders" not in AdminClient(alice).list_topics(timeout=PATIENCE_S).topics, "the authorizer is on"
        del written["ssl.truststore.type"]
        servers = written.pop("bootstrap.servers")
        assert "orders" in raylog.connect(bootstrap_servers=servers, options=written).admin().list_topics()


def test_init_with_client_certificates_lets_in_who_shows_one_of_the_clusters_authority(short_folder: Path) -> None:
    folder = short_folder / "certificates"
    settings = {"brokers": 1, "secure": True, "client_certificates": True, "ray_address": "local"}
    with raylog.init(folder, **settings, timeout_s=PATIENCE_S) as cluster:
        cluster.admin().create_topics([raylog.NewTopic("orders", 1, 1)])
        (broker,) = cluster.status()["brokers"]
        (listener,) = broker["listeners"]
        assert listener.startswith("SSL://127.0.0.1:")
        security = folder / "security"
        assert not (security / "admin.password").exists()
        held = str(security / "clients" / "admin" / "client.pem")
        trusting = {
            "bootstrap.servers": listener.removeprefix("SSL://"),
            "security.protocol": "SSL",
            "ssl.ca.location": str(security / "authority.pem"),
        }
        options = trusting | {"ssl.certificate.location": held, "ssl.key.location": held}
        assert "orders" in AdminClient(options).list_topics(timeout=PATIENCE_S).topics
        with pytest.raises(KafkaException):
            AdminClient(trusting).list_topics(timeout=3)
        written = dict(line.split("=", 1) for line in (security / "client.properties").read_text().splitlines())
        servers = written.pop("bootstrap.servers")
        without = {name: value for name, value in written.items() if "keystore" not in name}
        with pytest.raises(RaylogError, match=r"set ssl\.keystore\.location"):
            raylog.connect(bootstrap_servers=servers, options=without).admin().list_topics()
        assert "orders" in raylog.connect(bootstrap_servers=servers, options=written).admin().list_topics()


def test_secure_and_insecure_and_nodes_disks_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="secure and insecure exclude each other"):
        raylog.init(tmp_path, secure=True, insecure=True)
    with pytest.raises(ConfigError, match="secure cannot be given with disks of nodes"):
        raylog.init(disks={"10.0.0.7": "/data"}, secure=True)
    with pytest.raises(ConfigError, match=r"secure=True starts SASL_SSL listeners only: 127\.0\.0\.1:9092 is none"):
        raylog.init(tmp_path, secure=True, listeners=["127.0.0.1:9092"])
    with pytest.raises(ConfigError, match="client_certificates says how secure=True lets clients in: give both"):
        raylog.init(tmp_path, client_certificates=True)
    with pytest.raises(ConfigError, match="client_certificates cannot be given with disks of nodes"):
        raylog.init(disks={"10.0.0.7": "/data"}, client_certificates=True)
    with pytest.raises(ConfigError, match=r"secure=True starts SSL listeners only: SASL_SSL://:1 is none"):
        raylog.init(tmp_path, secure=True, client_certificates=True, listeners=["SASL_SSL://:1"])
    assert not (tmp_path / "broker-0").exists()
