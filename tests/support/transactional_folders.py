"""Folders as Apache Kafka leaves them after transactions, for clusters that raylog starts over them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raw_requests import actor, eventually, part

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.records.batch import stamp
from raylog.records.codec import encode
from raylog.records.control import Marker, control_batch
from raylog.testing.in_process import InProcessCluster, cluster

TOPIC = "t"
COMMITTED = [b"plain", b"committed 1", b"committed 2", b"between"]
ALL = [b"plain", b"aborted 1", b"committed 1", b"aborted 2", b"committed 2", b"between", b"undecided", b"behind"]
STABLE_END, END = 9, 11


def transactional_log() -> bytes:
    """A log file: three transactions, of which two overlap and one was aborted, and at offset 9 one that nobody has ended."""
    sequences: dict[int, int] = {}
    log = bytearray()
    offset = 0

    def append(batch: bytes) -> None:
        nonlocal offset
        stamped = bytearray(batch)
        stamp(stamped, offset, 0)
        log.extend(stamped)
        offset += 1

    def put(value: bytes, producer_id: int = -1) -> None:
        row = (1_000 + offset, b"k", value, ())
        if producer_id < 0:
            return append(encode([row]))
        sequence = sequences[producer_id] = sequences.get(producer_id, -1) + 1
        return append(
            encode([row], producer_id=producer_id, producer_epoch=0, base_sequence=sequence, is_transactional=True)
        )

    def end(producer_id: int, marker: Marker) -> None:
        append(
            control_batch(
                marker, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1_000 + offset
            )
        )

    put(b"plain")
    put(b"aborted 1", 7)
    put(b"committed 1", 8)
    put(b"aborted 2", 7)
    end(7, Marker.ABORT)
    put(b"committed 2", 7)
    end(8, Marker.COMMIT)
    end(7, Marker.COMMIT)
    put(b"between")
    assert offset == STABLE_END
    put(b"undecided", 9)
    put(b"behind")
    assert offset == END
    return bytes(log)


@contextmanager
def cluster_over_transactions(folder: Path) -> Iterator[InProcessCluster]:
    """Three brokers; the topic has one partition on brokers 0 and 1, with that log in both folders."""
    with cluster(brokers=3, folder=folder) as running, AdminClient(running.address) as admin:
        admin.create_topics(NewTopic(TOPIC, replica_assignment={0: [0, 1]}, configs={"retention.ms": -1}))
        folders = [folder / f"broker-{broker}" / f"{TOPIC}-0" for broker in (0, 1)]
        eventually(lambda: all((each / "replica.checkpoint").exists() for each in folders), "both are open")
        eventually(lambda: admin.describe_topics(TOPIC)[TOPIC].partitions[0].leader >= 0, "it is led")
    for each in folders:
        for path in each.iterdir():
            if path.name != "partition.metadata":
                path.unlink()
        (each / f"{0:020d}.log").write_bytes(transactional_log())
    with cluster(brokers=3, folder=folder) as running:
        eventually(lambda: is_led(running, replicas=2), "both in sync again")
        yield running


def is_led(running: InProcessCluster, *, replicas: int) -> bool:
    """Whether a live process leads the topic, with that many replicas in sync. What the controller has stored says less: it
    outlives the processes."""
    state = part(running, TOPIC)
    node = state["leader_node"]
    return node >= 0 and len(state["isr"]) == replicas and bool(actor(running, node)["state"] == "live")
