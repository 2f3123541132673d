"""Transactions of several producers against the production servers: inside, and from where a native client without Ray stands."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator

import pytest
from kio.schema.errors import ErrorCode

import raylog
from raylog import NewTopic
from raylog.client.links.address import ClusterAddress
from raylog.client.sync import AdminClient, Consumer
from raylog.client.transactions.shared import ParticipantProducer, SharedTransactions, TransactionTicket
from raylog.errors import RaylogError, TransactionAbortedError, TransactionStateError, kafka_error
from raylog.testing.in_process import InProcessCluster, cluster

pytestmark = pytest.mark.core

FencedError = kafka_error(ErrorCode.producer_fenced)
TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    with cluster(brokers=3) as made:
        yield made


@pytest.fixture(params=["inside", "outside"])
def address(request: pytest.FixtureRequest, running: InProcessCluster) -> ClusterAddress:
    if request.param == "inside":
        return running.address
    return raylog.connect(bootstrap_servers=running.bootstrap_servers()).address


@pytest.fixture
def topic(running: InProcessCluster, request: pytest.FixtureRequest) -> str:
    name = f"{request.node.name.replace('[', '-').rstrip(']')}-{time.monotonic_ns()}"
    with AdminClient(running.address) as admin:
        admin.create_topics(NewTopic(name, 2, 3))
    return name


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"id-{request.node.name}"


def read(address: ClusterAddress, topic: str, count: int, *, committed: bool = True) -> list[bytes]:
    """As many values as can be read, up to ``count``, and one more if there is one; sorted."""
    level = "read_committed" if committed else "read_uncommitted"
    with Consumer(address, auto_offset_reset="earliest", isolation_level=level) as consumer:
        consumer.assign([(topic, number) for number in range(2)])
        values: list[bytes] = []
        while len(values) < count and (taken := consumer.consume(count, timeout=TIMEOUT_S)):
            values += [record.value for record in taken if record.value is not None]
        values += [record.value for record in consumer.consume(1, timeout=0.3) if record.value is not None]
    return sorted(values)


def attempt(ticket: TransactionTicket, address: ClusterAddress, topic: str, *values: bytes) -> int:
    """What a task does: each value goes to both partitions."""
    with ParticipantProducer(pickle.loads(pickle.dumps(ticket)), address) as producer:
        for number in range(2):
            producer.send_batch(topic, list(values), partition=number)
        return producer.finish()


def test_winners_are_read_and_losers_are_not(address: ClusterAddress, topic: str, name: str) -> None:
    with SharedTransactions(address, name) as transactions:
        assert transactions.label == ""
        ticket = transactions.begin()
        winners = [attempt(ticket, address, topic, b"one"), attempt(ticket, address, topic, b"two")]
        attempt(ticket, address, topic, b"lost")
        assert read(address, topic, 0) == []
        transactions.commit(winners, "batch 1")
        assert transactions.label == "batch 1"
        assert read(address, topic, 4) == [b"one", b"one", b"two", b"two"]
        assert len(read(address, topic, 6, committed=False)) == 6
        again = transactions.begin()
        assert again.producer_epoch == ticket.producer_epoch + 1
        transactions.commit([attempt(again, address, topic, b"three")], "batch 2")
    assert read(address, topic, 6) == [b"one", b"one", b"three", b"three", b"two", b"two"]


def test_tasks_write_side_by_side(address: ClusterAddress, topic: str, name: str) -> None:
    won: list[int] = []
    with SharedTransactions(address, name) as transactions:
        ticket = transactions.begin()
        tasks = [
            threading.Thread(target=lambda number=number: won.append(attempt(ticket, address, topic, b"%d" % number)))
            for number in range(8)
        ]
        for task in tasks:
            task.start()
        for task in tasks:
            task.join()
        transactions.commit(won)
    assert read(address, topic, 16) == sorted(b"%d" % number for number in range(8) for _ in range(2))


def test_the_next_owner_reads_the_label_and_aborts_what_was_under_way(
    address: ClusterAddress, topic: str, name: str
) -> None:
    first = SharedTransactions(address, name)
    first.commit([attempt(first.begin(), address, topic, b"kept")], "batch 1")
    lost = first.begin()
    winner = attempt(lost, address, topic, b"lost")
    with SharedTransactions(address, name) as second:
        assert second.label == "batch 1"
        with pytest.raises(FencedError, match="another owner has taken the id over"):
            first.commit([winner], "batch 2")
        with pytest.raises(RaylogError):
            attempt(lost, address, topic, b"late")
        second.commit([attempt(second.begin(), address, topic, b"again")], "batch 2")
    assert read(address, topic, 4) == [b"again", b"again", b"kept", b"kept"]
    first.close()


def test_an_attempt_whose_transaction_has_ended_writes_nothing(address: ClusterAddress, topic: str, name: str) -> None:
    with SharedTransactions(address, name) as transactions:
        ticket = transactions.begin()
        late = ParticipantProducer(ticket, address)
        late.send(topic, b"early", partition=0).result()
        winner = attempt(ticket, address, topic, b"counts")
        transactions.commit([winner])
        assert read(address, topic, 2) == [b"counts", b"counts"], "the markers are written"
        with pytest.raises(RaylogError):
            late.send(topic, b"late", partition=0).result()
        with pytest.raises(TransactionAbortedError):
            late.finish()
        late.close()
    assert read(address, topic, 2) == [b"counts", b"counts"]


def test_an_owner_that_lives_outlasts_its_timeout(running: InProcessCluster, topic: str, name: str) -> None:
    with SharedTransactions(running.address, name, transaction_timeout_ms=600) as transactions:
        ticket = transactions.begin()
        winner = attempt(ticket, running.address, topic, b"slow")
        threading.Event().wait(1.5)
        transactions.commit([winner])
    assert read(running.address, topic, 2) == [b"slow", b"slow"]


def test_what_was_committed_is_there_for_readers_when_it_has_settled(
    running: InProcessCluster, topic: str, name: str
) -> None:
    with SharedTransactions(running.address, name) as transactions, AdminClient(running.address) as admin:
        for number in range(20):
            transactions.commit([attempt(transactions.begin(), running.address, topic, b"one")], f"batch {number}")
            transactions.settle()
            (found,) = admin.describe_transactions([name]).values()
            assert found.state in ("CompleteCommit", "Empty"), number
        assert transactions.label == "batch 19"


def test_an_owner_that_was_fenced_does_not_take_the_id_back_when_it_settles(
    running: InProcessCluster, topic: str, name: str
) -> None:
    with SharedTransactions(running.address, name) as first:
        first.commit([attempt(first.begin(), running.address, topic, b"first")], "batch 1")
        with SharedTransactions(running.address, name) as second:
            with pytest.raises(FencedError, match="another owner has taken the id over"):
                first.settle()
            second.commit([attempt(second.begin(), running.address, topic, b"second")], "batch 2")
            second.settle()


def test_misuse_is_named(address: ClusterAddress, topic: str, name: str) -> None:
    with SharedTransactions(address, name) as transactions:
        with pytest.raises(TransactionStateError, match="no transaction under way"):
            transactions.commit([])
        ticket = transactions.begin()
        with pytest.raises(TransactionStateError, match="has a transaction under way"):
            transactions.begin()
        with pytest.raises(TypeError, match="make it there, with the ticket"):
            pickle.dumps(ParticipantProducer(ticket, address))
        transactions.abort()
        transactions.abort()
