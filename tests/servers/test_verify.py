"""``raylog verify`` on a live cluster: finds what only a comparison of the replicas can find, and says what it could not compare."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from raw_requests import status
from typer.testing import CliRunner, Result

from raylog.cli import verify as verify_module
from raylog.cli.main import app
from raylog.client.sync import AdminClient, Producer
from raylog.records.batch import batches, write_crc
from raylog.types import broker_of

pytestmark = pytest.mark.core

Numbered = Callable[[int, int], list[bytes]]


@pytest.fixture
def verify(faulty: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command line against the test's cluster."""

    class Found:
        def admin(self) -> AdminClient:
            return AdminClient(faulty.running.address)

    monkeypatch.setattr(verify_module, "find_cluster", lambda *where: Found())
    return lambda *arguments: CliRunner().invoke(app, ["verify", *arguments])


def flip_a_byte(log: Path, offset: int) -> None:
    """Change a byte of the batch that holds the offset, and mend that batch's CRC: for itself the file is in order."""
    content = bytearray(log.read_bytes())
    found = next(each for each in batches(bytes(content)) if each.base_offset <= offset <= each.last_offset)
    altered = bytearray(found.data)
    altered[-2] ^= 0x01  # of the last value
    write_crc(altered)
    with log.open("r+b") as file:
        file.seek(found.position)
        file.write(altered)


def test_identical_replicas_are_told_in_words(faulty: Any, numbered: Numbered, verify: Callable[..., Result]) -> None:
    faulty.make_topic()
    faulty.make_topic("empty")
    faulty.produce(numbered(0, 500), batch_size=200)
    result = verify()
    assert result.exit_code == 0, result.output
    assert "Compared 6 replicas of 2 partitions of 2 topics" in result.output
    assert "500 offsets, 500 records in" in result.output and "All replicas are the same." in result.output
    size = (faulty.folder(0) / f"{0:020d}.log").stat().st_size
    assert f"{size:,} bytes on each replica" in result.output
    document = json.loads(verify("t", "--json").stdout)
    assert document["identical"] is True and document["first_difference"] is None
    (partition,) = document["partitions"]
    assert (partition["start_offset"], partition["end_offset"], partition["records"]) == (0, 500, 500)
    assert sorted(partition["compared_brokers"]) == [0, 1, 2] and partition["bytes"] == size


@pytest.mark.parametrize("whose", ["leader", "follower"])
def test_a_flipped_byte_under_a_mended_crc_is_found_and_named(
    faulty: Any, numbered: Numbered, verify: Callable[..., Result], whose: str
) -> None:
    faulty.make_topic()
    faulty.produce(numbered(0, 500), batch_size=200)
    leader = broker_of(faulty.leader())
    broker = leader if whose == "leader" else (leader + 1) % 3
    flip_a_byte(faulty.folder(broker) / f"{0:020d}.log", 250)
    assert faulty.values(500) is not None  # each batch is in order for itself
    result = verify("t")
    assert result.exit_code == 1
    assert "1 partitions DIFFER" in result.output and "t-0 at offset 2" in result.output
    told = f"broker {broker}: CRC" if whose == "follower" else f"broker {(leader + 1) % 3}: CRC"
    assert told in result.output
    document = json.loads(verify("t", "--json").stdout)
    differing = [each for each in range(3) if (each == broker) == (whose == "follower") and each != leader]
    assert document["identical"] is False and sorted(document["first_difference"]["brokers"]) == differing
    assert document["first_difference"]["offset"] <= 250


def test_a_replica_that_is_away_is_named_and_not_called_identical(
    faulty: Any, numbered: Numbered, verify: Callable[..., Result]
) -> None:
    faulty.make_topic()
    faulty.produce(numbered(0, 100))
    faulty.hold()
    gone = next(node for node in faulty.running.launcher.servers if broker_of(node) == 2 and node & 0xFFFF >= 2)
    faulty.running.crash(gone)
    result = verify("t", "--patience", "0.5")
    assert result.exit_code == 1
    assert "the replica on broker 2 was not compared" in result.output and "Compared 2 replicas" in result.output
    faulty.let_go()
    faulty.await_whole()
    assert verify("t").exit_code == 0


def test_epochs_and_deleted_records_are_followed(
    faulty: Any, numbered: Numbered, verify: Callable[..., Result]
) -> None:
    faulty.make_topic()
    for start in (0, 100, 200):
        faulty.produce(numbered(start, start + 100), batch_size=300)
        leader = faulty.leader()
        faulty.running.crash(leader)
        faulty.await_whole()
    with AdminClient(faulty.running.address) as admin:
        admin.delete_records({("t", 0): 55})
        (report,) = admin.verify_replicas("t").partitions
    assert report.holds, report.words()
    assert (report.start, report.end) == (55, 300) and len(report.compared) == 3
    assert verify("t").exit_code == 0


@pytest.mark.parametrize("whose", ["leader", "follower"])
def test_repair_mends_the_copy_that_differs_from_the_majority(
    faulty: Any, numbered: Numbered, verify: Callable[..., Result], whose: str
) -> None:
    faulty.make_topic()
    faulty.produce(numbered(0, 500), batch_size=200)
    leader = broker_of(faulty.leader())
    broker = leader if whose == "leader" else (leader + 1) % 3
    for offset in (250, 400):
        flip_a_byte(faulty.folder(broker) / f"{0:020d}.log", offset)
    result = verify("t", "--repair", "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 0 and document["identical"] is True and document["not_repaired"] == []
    (repair,) = document["repairs"]
    assert (repair["topic"], repair["partition"], repair["broker"]) == ("t", 0, broker)
    assert 240 <= repair["offset"] <= 250 and "another one than on brokers" in repair["why"]
    faulty.await_whole()
    assert faulty.values(500) == numbered(0, 500)
    assert "All replicas are the same." in verify("t", "--repair").output, "nothing is left to repair"


def test_repair_touches_nothing_where_nobody_can_say_which_copy_is_right(
    faulty: Any, numbered: Numbered, verify: Callable[..., Result]
) -> None:
    faulty.make_topic(replication_factor=2)
    faulty.produce(numbered(0, 500), batch_size=200)
    holders = sorted(each for each in range(3) if faulty.folder(each).exists())
    flip_a_byte(faulty.folder(holders[0]) / f"{0:020d}.log", 250)
    before = [(faulty.folder(each) / f"{0:020d}.log").read_bytes() for each in holders]
    result = verify("t", "--repair", "--patience", "5")
    assert result.exit_code == 1
    assert "NOT repaired: t-0 at offset 2" in result.output and "none is that of a majority" in result.output
    assert [(faulty.folder(each) / f"{0:020d}.log").read_bytes() for each in holders] == before


def make_table(faulty: Any, replication_factor: int = 3) -> int:
    """A compacted topic with a hundred keys, each written three times; returns the broker that leads it."""
    faulty.make_topic(replication_factor=replication_factor, cleanup_policy="compact", segment_bytes="4000")
    with Producer(faulty.running.address, acks="all", batch_size=200) as producer:
        deliveries = [
            producer.send("t", b"%03d" % number, key=b"k%02d" % (number % 100), partition=0) for number in range(300)
        ]
        for delivery in deliveries:
            delivery.result(60)
    return broker_of(faulty.leader())


def log_of(faulty: Any, broker: int, offset: int) -> Path:
    """The segment that holds that offset."""
    logs = sorted(Path(path) for path in faulty.folder(broker).glob("*.log"))
    return max(path for path in logs if int(path.stem) <= offset)


def test_repair_copies_a_compacted_log_anew_whose_table_is_not_that_of_the_leader_and_a_majority(
    faulty: Any, verify: Callable[..., Result]
) -> None:
    broker = (make_table(faulty) + 1) % 3
    flip_a_byte(log_of(faulty, broker, 210), 210)
    assert "NOT" not in verify("t").output and verify("t").exit_code == 1
    document = json.loads(verify("t", "--repair", "--json").stdout)
    assert document["identical"] is True and document["not_repaired"] == [], document
    (repair,) = document["repairs"]
    assert (repair["topic"], repair["broker"]) == ("t", broker) and "last records of some keys" in repair["why"]
    faulty.await_whole()
    values = faulty.values(100)
    assert {b"%03d" % number for number in range(200, 300)} <= set(values)
    assert verify("t").exit_code == 0


@pytest.mark.parametrize("replicas", [2, 3])
def test_repair_names_a_leader_of_a_compacted_topic_that_is_alone_with_its_table_and_leaves_it(
    faulty: Any, verify: Callable[..., Result], replicas: int
) -> None:
    leader = make_table(faulty, replicas)
    flip_a_byte(log_of(faulty, leader, 210), 210)
    before = log_of(faulty, leader, 210).read_bytes()
    result = verify("t", "--repair", "--patience", "5")
    assert result.exit_code == 1 and "NOT repaired: t-0 at offset 2" in result.output
    assert "majority of the ISR" in result.output
    assert log_of(faulty, leader, 210).read_bytes() == before and broker_of(faulty.leader()) == leader


@pytest.mark.parametrize("whose", ["leader", "follower"])
def test_damaged_bytes_of_a_compacted_log_are_met_by_the_comparison_and_mended(
    faulty: Any, verify: Callable[..., Result], whose: str
) -> None:
    leader = make_table(faulty)
    broker = leader if whose == "leader" else (leader + 1) % 3
    log = log_of(faulty, broker, 210)
    found = next(each for each in batches(log.read_bytes()) if each.base_offset <= 210 <= each.last_offset)
    with log.open("r+b") as file:
        file.seek(found.end - 2)
        file.write(bytes([found.data[-2] ^ 0x10]))
    result = verify("t", "--repair")
    assert result.exit_code == 0, result.output
    actors = status(faulty.running)["actors"]
    (words,) = [words for actor in actors for words in actor["mended"] if actor["broker"] == broker]
    assert words.startswith("t-0: ") and "a CRC does not fit" in words
    faulty.await_whole()
    assert verify("t").exit_code == 0
