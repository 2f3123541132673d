"""What takes long to check is checked in a thread: the server's loop goes on meanwhile, and order is kept."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from raw_requests import endpoint_of, eventually, part, status

from raylog.client.admin.admin import NewTopic
from raylog.client.links import requests
from raylog.client.sync import AdminClient
from raylog.records import pure
from raylog.records.batch import assemble
from raylog.records.codec import encode
from raylog.records.compression import Compression, compress
from raylog.server import log_work
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import TopicPartition
from raylog.wire.connection import Connection

pytestmark = pytest.mark.core

RECORDS = 100_000


class HeldCheck:
    """``checked``, which begins when it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Event()
        self.let_go = threading.Event()
        self.thread = ""
        original = log_work.checked

        def held(*arguments: Any, **options: Any) -> Any:
            self.thread = threading.current_thread().name
            self.begun.set()
            assert self.let_go.wait(60)
            return original(*arguments, **options)

        monkeypatch.setattr(log_work, "checked", held)


def many_keyless() -> bytes:
    """A hundred thousand records without keys in a batch of some 80 KB."""
    records = b"".join(pure.encode_record(0, index, None, b"", ()) for index in range(RECORDS))
    return assemble(
        compress(Compression.ZSTD, records), record_count=RECORDS, last_offset_delta=RECORDS - 1, base_timestamp=0,
        max_timestamp=0, attributes=Compression.ZSTD,
    )  # fmt: skip


class OneConnection:
    """Requests to the process that leads a topic's first partition, over one connection."""

    def __init__(self, running: InProcessCluster, topic: str) -> None:
        self._running = running
        self._topic = topic
        eventually(lambda: part(running, topic)["leader_node"] >= 0, "a leader")
        endpoint = endpoint_of(running, part(running, topic)["leader_node"])
        opening = Connection.open(endpoint, secret=running.address.secret, cluster_id=running.address.cluster_id)
        self._connection = running.run(opening)

    def send(self, records: bytes, acks: int = -1) -> Any:
        body = requests.produce({TopicPartition(self._topic, 0): records}, acks=acks, timeout_ms=60_000)

        async def begin() -> Any:
            if acks == 0:
                return self._connection.send_unanswered(body)
            return self._connection.send(body, timeout_ms=60_000)

        return self._running.run(begin())

    def answer(self, sent: Any) -> Any:
        async def wait() -> Any:
            return await sent

        return self._running.run(wait(), 90).responses[0].partition_responses[0]

    def close(self) -> None:
        async def close() -> None:
            self._connection.close()
            await self._connection.wait_closed()

        self._running.run(close())


def test_a_batch_of_very_many_records_holds_up_nobody_but_what_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(brokers=1) as running:
        with AdminClient(running.address) as admin:
            admin.create_topics([NewTopic("accounts", 1, replication_factor=1, configs={"cleanup.policy": "compact"})])
        held = HeldCheck(monkeypatch)
        connection = OneConnection(running, "accounts")
        first = connection.send(many_keyless())
        assert held.begun.wait(60)
        second = connection.send(encode([(1, b"k", b"v", ())]))
        connection.send(encode([(1, b"k", b"v2", ())]), acks=0)
        third = connection.send(encode([(1, b"k", b"v3", ())]), acks=1)
        assert status(running)["topics"], "the loop, which this process's servers share, goes on"
        assert not any(sent.done() for sent in (first, second, third))
        held.let_go.set()
        refused = connection.answer(first)
        assert refused.error_code.name == "invalid_record" and len(refused.record_errors) == 1_000
        assert f"{RECORDS} of {RECORDS} records" in refused.error_message
        assert connection.answer(second).base_offset == 0 and connection.answer(third).base_offset == 2
        assert held.thread.startswith("raylog-check")
        server = next(each for each in running.launcher.servers.values() if hasattr(each, "_unanswered"))
        eventually(lambda: not server._unanswered, "the request without an answer is done")
        connection.close()
