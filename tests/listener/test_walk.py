"""The way of a request through a Broker and back, in bytes that nothing here has coded: TV-29.

Kafka's walk has eleven steps: an acceptor gives the connection to a processor, which queues the request, a handler takes it and queues
the answer at the processor that it came by, which writes it. Here one loop does it all; what can be seen from outside is the same: answers
leave by the connection of their request, in the order of the requests, and a connection that waits delays no other one.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

import pytest
from outside import listener
from raw_requests import batch

from raylog.testing.in_process import InProcessCluster

pytestmark = pytest.mark.core

NewTopicOf = Callable[..., str]
PRODUCE_V5, FETCH_V6, METADATA_V4 = (0, 5), (1, 6), (3, 4)


def string(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else struct.pack(">h", len(text)) + text.encode()


def array(*items: bytes) -> bytes:
    return struct.pack(">i", len(items)) + b"".join(items)


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def framed(api: tuple[int, int], correlation_id: int, body: bytes) -> bytes:
    return sized(struct.pack(">hhi", *api, correlation_id) + string("by hand") + body)


def produce(topic: str, records: bytes) -> bytes:
    """Transactional id, acks −1, timeout 30 s, topics of partitions of records."""
    head = string(None) + struct.pack(">hi", -1, 30_000)
    return head + array(string(topic) + array(struct.pack(">i", 0) + sized(records)))


def fetch(topic: str, offset: int, max_wait_ms: int) -> bytes:
    """Replica id −1, max wait, min bytes 1, max bytes, isolation; topics of partitions of offset, log start offset and max bytes."""
    head = struct.pack(">iiiib", -1, max_wait_ms, 1, 1 << 20, 0)
    return head + array(string(topic) + array(struct.pack(">iqqi", 0, offset, -1, 1 << 20)))


def metadata(topic: str) -> bytes:
    return array(string(topic)) + b"\x00"


class Answer:
    """The bytes of one answer, taken from the front."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, form: str) -> tuple[int, ...]:
        values = struct.unpack_from(form, self.data)
        self.data = self.data[struct.calcsize(form) :]
        return values

    def string(self) -> str | None:
        (length,) = self.take(">h")
        return None if length < 0 else self.bytes_of(length).decode()

    def bytes_of(self, length: int) -> bytes:
        found, self.data = self.data[:length], self.data[length:]
        return found


class Caller:
    """A connection to the Broker that leads."""

    def __init__(self, running: InProcessCluster) -> None:
        endpoint = listener(running, 0)
        self.socket = socket.create_connection((endpoint.host, endpoint.port), timeout=60)

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def exactly(self, length: int) -> bytes:
        found = b""
        while len(found) < length:
            more = self.socket.recv(length - len(found))
            assert more, "the Broker hung up"
            found += more
        return found

    def answer(self) -> tuple[int, Answer]:
        """The next answer's correlation id and body."""
        (size,) = struct.unpack(">i", self.exactly(4))
        found = Answer(self.exactly(size))
        return found.take(">i")[0], found


def the_offset_of(answer: Answer, topic: str) -> int:
    """Of a Produce answer: topics of partition, error, base offset, log append time, log start offset; throttle time."""
    assert answer.take(">i") == (1,) and answer.string() == topic
    assert answer.take(">i") == (1,)
    partition, error, base_offset, append_time, log_start = answer.take(">ihqqq")
    assert (partition, error, append_time, log_start) == (0, 0, -1, 0)
    assert answer.take(">i") == (0,) and not answer.data, "no throttling without quotas"
    return base_offset


def the_records_of(answer: Answer, topic: str) -> tuple[int, bytes]:
    """Of a Fetch answer, the high watermark and the batches."""
    assert answer.take(">i") == (0,)
    assert answer.take(">i") == (1,) and answer.string() == topic
    assert answer.take(">i") == (1,)
    partition, error, high_watermark, last_stable, log_start, aborted = answer.take(">ihqqqi")
    assert (partition, error, last_stable, log_start) == (0, 0, high_watermark, 0) and aborted in (-1, 0)
    (length,) = answer.take(">i")
    records = answer.bytes_of(length)
    assert not answer.data
    return high_watermark, records


def the_leaders_of(answer: Answer, running: InProcessCluster, topic: str) -> list[int]:
    """Of a Metadata answer, the leader of each partition."""
    assert answer.take(">i") == (0,)
    brokers = []
    for _ in range(answer.take(">i")[0]):
        (node_id,) = answer.take(">i")
        host = answer.string()
        (port,) = answer.take(">i")
        assert answer.string() is None, "no rack"
        brokers.append((node_id, host, port))
    assert brokers == [(each, listener(running, each).host, listener(running, each).port) for each in range(3)]
    assert answer.string() == running.address.cluster_id
    assert answer.take(">i")[0] in (0, 1, 2), "a controller"
    assert answer.take(">ih") == (1, 0) and answer.string() == topic
    assert answer.take(">b") == (0,), "not internal"
    leaders = []
    for _ in range(answer.take(">i")[0]):
        error, _, leader = answer.take(">hii")
        replicas, isr = (answer.take(f">{answer.take('>i')[0]}i") for _ in range(2))
        assert error == 0 and replicas == (0, 1, 2) and sorted(isr) == [0, 1, 2]
        leaders.append(leader)
    assert not answer.data
    return leaders


def test_tv_29_a_request_walks_through_the_broker_and_its_answer_back_by_the_same_connection(
    running: InProcessCluster, new_topic: NewTopicOf
) -> None:
    topic = new_topic((0, 1, 2))
    one, other = Caller(running), Caller(running)
    with one.socket, other.socket:
        one.send(
            framed(PRODUCE_V5, 101, produce(topic, batch(b"first"))),
            framed(FETCH_V6, 102, fetch(topic, 1, 600_000)),
            framed(METADATA_V4, 103, metadata(topic)),
        )
        correlation_id, answer = one.answer()
        assert (correlation_id, the_offset_of(answer, topic)) == (101, 0)
        other.send(framed(METADATA_V4, 7, metadata(topic)))
        correlation_id, answer = other.answer()
        assert (correlation_id, the_leaders_of(answer, running, topic)) == (7, [0]), "nobody waits for another's fetch"
        other.send(framed(PRODUCE_V5, 8, produce(topic, batch(b"second"))))
        correlation_id, answer = other.answer()
        assert (correlation_id, the_offset_of(answer, topic)) == (8, 1)
        correlation_id, answer = one.answer()
        high_watermark, records = the_records_of(answer, topic)
        assert (correlation_id, high_watermark) == (102, 2)
        assert records[:8] == struct.pack(">q", 1) and b"second" in records and b"first" not in records
        correlation_id, answer = one.answer()
        assert (correlation_id, the_leaders_of(answer, running, topic)) == (103, [0]), "what came last is answered last"


def test_tv_29_a_fetch_of_nothing_new_is_answered_empty_at_its_deadline(
    running: InProcessCluster, new_topic: NewTopicOf
) -> None:
    topic = new_topic((0, 1, 2))
    with (caller := Caller(running)).socket:
        caller.send(framed(FETCH_V6, 2, fetch(topic, 0, 1)))
        correlation_id, answer = caller.answer()
        assert (correlation_id, the_records_of(answer, topic)) == (2, (0, b""))
