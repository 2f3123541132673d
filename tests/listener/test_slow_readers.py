"""Clients that ask and do not read: what a Broker holds for all of them together is bounded, and others go on."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from outside import Client, fetch, listener, parts, produce
from raw_requests import batch, eventually

from raylog.testing.in_process import InProcessCluster
from raylog.types import BROKER_SLOT, node_id
from raylog.wire.frames import client_id_field, decode_response, encode_request

pytestmark = pytest.mark.core

Open = Callable[..., Client]
NewTopicOf = Callable[..., str]
BOUND = 2 << 20
CLIENTS, FETCHES = 6, 4
PARTITIONS = 4
ANSWER = PARTITIONS << 20  # what one Fetch asks for, and would get


class Reader:
    """Asks at once for all that it may, and reads when it is told to."""

    def __init__(self, running: InProcessCluster, topic: str) -> None:
        endpoint = listener(running, 0)
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self.socket.connect((endpoint.host, endpoint.port))
        self.socket.settimeout(30)
        asked = fetch(topic, dict.fromkeys(range(PARTITIONS), 0), max_wait_ms=300)
        for number in range(FETCHES):
            self.socket.sendall(
                b"".join(bytes(each) for each in encode_request(asked, number, client_id_field("slow")))
            )

    def read(self) -> list[Any]:
        """All answers."""
        return [decode_response(1, 12, memoryview(self._frame())) for _ in range(FETCHES)]

    def _frame(self) -> bytes:
        return self._exactly(int.from_bytes(self._exactly(4), "big"))

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            assert piece, "the Broker hung up"
            data += piece
        return bytes(data)


@pytest.fixture
def router(running: InProcessCluster) -> Iterator[Any]:
    """The listener of broker 0, with a small bound."""
    found = running.launcher.servers[node_id(0, BROKER_SLOT)].router
    limits, bounded = found._limits, replace(found._limits, answers_bytes_max=BOUND)
    found._limits = found.server.limits = bounded
    yield found
    found._limits = found.server.limits = limits


@pytest.fixture
def full_topic(client: Open, new_topic: NewTopicOf) -> str:
    topic = new_topic(*[(0,)] * PARTITIONS)
    for _ in range(12):
        client(0).ask(produce(topic, {number: batch(bytes(100_000)) for number in range(PARTITIONS)}))
    return topic


def unread(running: InProcessCluster, router: Any) -> int:
    async def look() -> int:
        return int(router.server.unread_bytes())

    return running.run(look())


def test_what_a_broker_holds_for_clients_that_do_not_read_is_bounded(
    running: InProcessCluster, client: Open, router: Any, full_topic: str
) -> None:
    slow = []
    for _ in range(CLIENTS):
        slow.append(Reader(running, full_topic))
        eventually(lambda: unread(running, router) > BOUND // 2, "answers wait to be read")
    other = client(0)
    began = time.monotonic()
    most = 0
    while time.monotonic() - began < 2:
        found = parts(other.ask(fetch(full_topic, {0: 0}, max_wait_ms=100)))[0]
        assert found.records, "who reads gets on"
        most = max(most, unread(running, router))
    assert BOUND // 2 < most <= BOUND + FETCHES * BOUND + CLIENTS * FETCHES * 200_000 < CLIENTS * ANSWER
    for reader in slow:
        answers = reader.read()
        assert all(any(part.records for part in parts(answer).values()) for answer in answers)
        assert all(not part.error_code for answer in answers for part in parts(answer).values())
        reader.socket.close()
    eventually(lambda: unread(running, router) < BOUND, "it is read")
    whole = parts(other.ask(fetch(full_topic, dict.fromkeys(range(PARTITIONS), 0))))
    assert sum(len(part.records) for part in whole.values()) > BOUND // 2


def test_a_fetch_that_waits_for_room_goes_on_when_somebody_has_read(
    running: InProcessCluster, client: Open, router: Any, full_topic: str
) -> None:
    slow = Reader(running, full_topic)
    eventually(lambda: unread(running, router) > BOUND, "there is no room")
    waiting = client(0).send(fetch(full_topic, {0: 0}, max_wait_ms=600_000), timeout_ms=600_000)
    given_up = client(0)
    given_up.send(fetch(full_topic, {0: 0}, max_wait_ms=600_000), timeout_ms=600_000)
    given_up.close()
    slow.socket.close()
    assert parts(waiting.result())[0].records
