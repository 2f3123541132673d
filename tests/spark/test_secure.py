"""Spark and Ray Data at a listener with TLS and SASL: the handle brings what workers need, and no plan shows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raylog
import raylog.data
import raylog.spark
from raylog import NewTopic, TopicPartition
from raylog.client.sync import AdminClient
from raylog.wire.listeners import listeners_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray Data warns of its own options
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
    ),  # pyspark's
]

PASSWORD = "the password of alice"
ROWS = 500
VALUES = sorted(b"%d" % number for number in range(ROWS))


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[raylog.Cluster]:
    from certificates import Authority, settings
    from raw_requests import eventually

    from raylog.testing.in_process import cluster

    authority = Authority(tmp_path_factory.mktemp("authority"))
    listeners = listeners_of("SASL_SSL://127.0.0.1:0", None, settings(authority.signed("broker")))
    with cluster(brokers=1, listeners=listeners) as running:
        with AdminClient(running.address) as admin:
            admin.set_user("alice", PASSWORD)
            admin.create_topics([NewTopic(name, 2, 1) for name in ("given", "written", "streamed", "from-ray")])
        router = running.launcher.servers[0].router
        eventually(lambda: router._sasl._credentials(), "the broker knows the user")
        trusted = Path(authority.certificate)
        found = raylog.connect(
            bootstrap_servers=running.bootstrap_servers("SASL_SSL"),
            security_protocol="SASL_SSL",
            ssl_truststore_location=str(trusted),
            sasl_mechanism="SCRAM-SHA-512",
            sasl_username="alice",
            sasl_password=PASSWORD,
        )
        trusted.unlink()  # a worker's machine does not have it
        with found.producer() as producer:
            producer.send_batch("given", VALUES, keys=VALUES).result(60)
        yield found


def held(cluster: raylog.Cluster, topic: str) -> list[bytes]:
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(2)])
        read: list[bytes] = []
        while len(read) < ROWS:
            taken = consumer.consume(ROWS, timeout=60)
            assert taken, f"{len(read)} records, and then nothing"
            read += [record.value or b"" for record in taken]
    return sorted(read)


def test_spark_reads_and_writes_and_shows_no_secret(
    spark: Any, outside: raylog.Cluster, tmp_path: Path, capsys: Any
) -> None:
    df = raylog.spark.read(spark, "given", cluster=outside)
    assert sorted(bytes(row.value) for row in df.select("value").collect()) == VALUES
    assert raylog.spark.write(df.select("value"), "written", cluster=outside).records == ROWS
    assert held(outside, "written") == VALUES
    stream = raylog.spark.read_stream(
        spark,
        "given",
        checkpoint=str(tmp_path / "checkpoint"),
        cluster=outside,
        starting_offsets="earliest",
        available_now=True,
    )
    checkpoint = str(tmp_path / "checkpoint")
    query = raylog.spark.write_stream(
        stream.select("value"), "streamed", cluster=outside, checkpoint=checkpoint, trigger={"availableNow": True}
    )
    assert query.awaitTermination(120)
    assert held(outside, "streamed") == VALUES
    df.explain(True)
    stream.explain(True)
    shown = capsys.readouterr().out + df._jdf.queryExecution().toString() + repr(df) + repr(stream)
    shown += "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    assert PASSWORD not in shown and "BEGIN CERT" not in shown


def test_ray_data_reads_and_writes_and_shows_no_secret(ray: Any, outside: raylog.Cluster) -> None:
    dataset = raylog.data.read_topic("given", cluster=outside, columns=["value"])
    assert sorted(row["value"] for row in dataset.take_all()) == VALUES
    raylog.data.write_topic(dataset, "from-ray", cluster=outside)
    assert held(outside, "from-ray") == VALUES
    assert PASSWORD not in repr(dataset) + str(dataset) + dataset.stats()


def test_what_up_secure_prints_for_spark_works_when_it_is_pasted(spark: Any, connector: Any, tmp_path: Path) -> None:
    import datetime

    from raw_requests import eventually

    from raylog.disks.secure_files import SecureFiles
    from raylog.secure_up import client_texts, finish
    from raylog.testing.in_process import cluster

    if connector.missing is not None:
        pytest.skip(connector.missing)
    files = SecureFiles(tmp_path / "security")
    files.make(["127.0.0.1"], datetime.datetime.now(datetime.UTC))
    ours = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(files.broker)}
    with cluster(brokers=1, listeners=listeners_of("SASL_SSL://127.0.0.1:0", None, ours)) as running:
        inside = raylog.Cluster(running.address)
        with inside.admin() as admin, inside.producer() as producer:
            admin.create_topics([NewTopic("events", 1, 1)])
            producer.send("events", b"pasted").result(60)
        security = finish(inside, files, inside.status()["brokers"])
        router = running.launcher.servers[0].router
        eventually(lambda: router._sasl._credentials(), "the broker knows the user")
        names = {"spark": spark}
        exec(client_texts(security)["Spark"], names)
        frame: Any = names["df"]
        assert [bytes(row.value) for row in frame.select("value").collect()] == [b"pasted"]
