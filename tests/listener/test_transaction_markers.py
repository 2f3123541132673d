"""Transactional batches and the markers that end transactions, as Kafka's clients and tools send them, at real leaders.

The coordinators are the test's: what leaders would ask them is answered here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import raw_requests
from kio.schema.errors import ErrorCode
from outside import Client, fetch, produce, request
from raw_requests import ask, end_of, endpoint_of, eventually, part

from raylog.client.admin.admin import NewTopic
from raylog.client.links import requests
from raylog.client.sync import AdminClient
from raylog.kafka import table
from raylog.offsets_topic import OFFSETS_TOPIC, partition_for
from raylog.records.codec import encode_values
from raylog.replication.transaction_events import TransactionVerified, VerifyTransaction
from raylog.server.transaction_links import TransactionLinks
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import TopicPartition

pytestmark = pytest.mark.core

Open = Callable[..., Client]
NewTopicOf = Callable[..., str]
PRODUCER = 7_000
NOT_OPEN = ErrorCode.invalid_txn_state
MARKERS = table.WRITE_TXN_MARKERS.key


class Coordinator:
    """Says to all questions what the test wants, and remembers them."""

    def __init__(self) -> None:
        self.error = ErrorCode.none
        self.asked: list[VerifyTransaction] = []

    def ask(self, links: TransactionLinks, order: VerifyTransaction) -> None:
        self.asked.append(order)
        links._on_event(TransactionVerified(order.question, self.error.value))


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Coordinator]:
    found = Coordinator()
    monkeypatch.setattr(TransactionLinks, "ask", lambda links, order: found.ask(links, order))
    yield found


def batch(sequence: int = 0, epoch: int = 0, producer: int = PRODUCER) -> bytes:
    return encode_values(
        [b"%d/%d" % (epoch, sequence)],
        timestamp_ms=1,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=True,
    )


def markers(
    topics: dict[str, tuple[int, ...]],
    *,
    commit: bool = True,
    epoch: int = 0,
    version: int = 1,
    coordinator_epoch: int = 0,
) -> object:
    more = {"transaction_version": 2} if version >= 2 else {}
    return request(
        MARKERS,
        version,
        markers=lambda module: (
            module.WritableTxnMarker(
                producer_id=PRODUCER,
                producer_epoch=epoch,
                transaction_result=commit,
                coordinator_epoch=coordinator_epoch,
                topics=tuple(
                    module.WritableTxnMarkerTopic(name=name, partition_indexes=numbers)
                    for name, numbers in topics.items()
                ),
                **more,
            ),
        ),
    )


def stable_end(running: InProcessCluster, topic: str, number: int) -> int:
    """What "latest" is to a reader of committed records."""
    body = requests.list_offsets({TopicPartition(topic, number): (-1, -1)}, isolation_level=requests.READ_COMMITTED)
    leader = endpoint_of(running, part(running, topic, number)["leader_node"])
    return int(ask(running, leader, body).topics[0].partitions[0].offset)


def errors(reply: object) -> list[ErrorCode]:
    return [each.error_code for marker in reply.markers for topic in marker.topics for each in topic.partitions]  # type: ignore[attr-defined]


@pytest.mark.parametrize("partitions", [1, 2], ids=["passed on as bytes", "split"])
def test_a_batch_of_no_transaction_is_refused(
    running: InProcessCluster, client: Open, new_topic: NewTopicOf, partitions: int
) -> None:
    topic = new_topic(*[(0, 1, 2)] * partitions)
    data = {number: batch() for number in range(partitions)}
    for acks in (-1, 1):
        (reply,) = client().ask(produce(topic, data, acks=acks)).responses
        assert [each.error_code for each in reply.partition_responses] == [NOT_OPEN] * partitions
        assert "no transaction of epoch 0 open" in reply.partition_responses[0].error_message
    assert end_of(running, topic) == 0


def test_a_transactional_batch_over_the_inside_link_is_refused(
    running: InProcessCluster, new_topic: NewTopicOf
) -> None:
    topic = new_topic((0, 1, 2))
    reply = raw_requests.produce(running, part(running, topic)["leader_node"], topic, batch())
    assert reply.error_code is NOT_OPEN and end_of(running, topic) == 0


@pytest.mark.parametrize("version", [11, 12])
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_of_a_kafka_client_is_read_when_its_marker_has_come(
    running: InProcessCluster, client: Open, new_topic: NewTopicOf, coordinator: Coordinator, version: int, commit: bool
) -> None:
    topic = new_topic((0, 1), (0, 2))
    broker = client()
    for sequence in range(3):  # the third one comes through the host's door
        data = {number: batch(sequence) for number in range(2)}
        (reply,) = broker.ask(produce(topic, data, version=version, transactional_id="t")).responses
        assert [each.error_code for each in reply.partition_responses] == [ErrorCode.none] * 2
    asked = {(each.topic, each.partition, each.membership.adds) for each in coordinator.asked}
    assert asked == {(topic, number, version >= 12) for number in range(2)} and len(coordinator.asked) == 2
    assert [stable_end(running, topic, number) for number in range(2)] == [0, 0]
    assert errors(client().ask(markers({topic: (0, 1)}, commit=commit))) == [ErrorCode.none] * 2
    assert [stable_end(running, topic, number) for number in range(2)] == [4, 4]
    late = client().ask(produce(topic, {0: batch(3)}, version=version, transactional_id="t"))
    assert late.responses[0].partition_responses[0].error_code is ErrorCode.none  # the next transaction, by leave
    coordinator.error = ErrorCode.transaction_abortable
    client().ask(markers({topic: (0,)}))
    late = client().ask(produce(topic, {0: batch(4)}, version=10, transactional_id="t"))
    assert late.responses[0].partition_responses[0].error_code is NOT_OPEN
    assert end_of(running, topic) == 6


@pytest.mark.parametrize("version", table.WRITE_TXN_MARKERS.versions)
def test_a_marker_of_several_partitions_goes_to_their_leaders(
    running: InProcessCluster, client: Open, new_topic: NewTopicOf, version: int
) -> None:
    first, second = new_topic((0, 1), (1, 0), (0, 2)), new_topic((0,))
    asked = {first: (2, 1, 0), second: (0, 7), "nowhere": (0,)}
    unknown, elsewhere = ErrorCode.unknown_topic_or_partition, ErrorCode.not_leader_or_follower
    for _ in range(2):
        reply = client().ask(markers(asked, version=version, epoch=1))
        assert [
            (topic.name, [each.partition_index for each in topic.partitions]) for topic in reply.markers[0].topics
        ] == [(name, list(numbers)) for name, numbers in asked.items()]
        assert errors(reply) == [ErrorCode.none, elsewhere, ErrorCode.none, ErrorCode.none, unknown, unknown]
        assert end_of(running, first) == end_of(running, second) == 1
    old = client().ask(markers({second: (0,)}, version=version, epoch=0))
    assert errors(old) == [ErrorCode.invalid_producer_epoch]


def test_a_coordinator_of_an_older_epoch_is_fenced(client: Open, new_topic: NewTopicOf) -> None:
    topic = new_topic((0,))
    assert errors(client().ask(markers({topic: (0,)}, coordinator_epoch=5))) == [ErrorCode.none]
    fenced = client().ask(markers({topic: (0,)}, coordinator_epoch=4))
    assert errors(fenced) == [ErrorCode.transaction_coordinator_fenced]


def test_no_markers_at_all_are_answered(client: Open) -> None:
    assert client().ask(markers({})).markers[0].topics == ()
    assert client().ask(request(MARKERS, 1, markers=())).markers == ()


def test_producers_are_described_with_what_their_coordinators_did(
    running: InProcessCluster, client: Open, new_topic: NewTopicOf, coordinator: Coordinator
) -> None:
    topic = new_topic((0, 1))
    T0 = TopicPartition(topic, 0)
    with AdminClient(running.address) as admin:
        client().ask(produce(topic, {0: batch(0)}, transactional_id="t"))
        (found,) = admin.describe_producers([T0])[T0]
        assert (found.coordinator_epoch, found.transaction_start_offset) == (None, 0)
        client().ask(markers({topic: (0,)}, coordinator_epoch=9))
        client().ask(produce(topic, {0: batch(1)}, transactional_id="t"))
        (found,) = admin.describe_producers([T0])[T0]
        assert (found.coordinator_epoch, found.transaction_start_offset) == (9, 2)


def test_kafkas_reader_of_committed_records_stops_at_the_open_transaction(
    client: Open, new_topic: NewTopicOf, coordinator: Coordinator
) -> None:
    topic = new_topic((0, 1))
    client().ask(produce(topic, {0: batch()}, transactional_id="t"))
    body = fetch(topic, {0: 0})
    found = client().ask(body).responses[0].partitions[0]
    assert (found.last_stable_offset, found.high_watermark) == (0, 1)
    client().ask(markers({topic: (0,)}, commit=False))
    found = client().ask(body).responses[0].partitions[0]
    assert (found.last_stable_offset, found.high_watermark) == (2, 2)


# ------------------------------------------------------------------ groups


def commit_offset(group: str, topic: str, offset: int, *, version: int = 5, **fields: object) -> object:
    more = {"generation_id": -1, "member_id": "", "group_instance_id": None} if version >= 3 else {}
    return request(
        table.TXN_OFFSET_COMMIT.key,
        version,
        transactional_id="t",
        group_id=group,
        producer_id=PRODUCER,
        producer_epoch=0,
        topics=lambda module: tuple(
            module.TxnOffsetCommitRequestTopic(
                name=name,
                partitions=(
                    module.TxnOffsetCommitRequestPartition(
                        partition_index=number, committed_offset=offset, committed_metadata=None
                    ),
                ),
            )
            for name, number in ((topic, 0), (topic, 9), ("nowhere", 0))
        ),
        **(more | fields),
    )


def committed(client: Client, group: str, topic: str, *, stable: bool = True) -> tuple[int, ErrorCode]:
    body = request(
        table.OFFSET_FETCH.key,
        7,
        group_id=group,
        require_stable=stable,
        topics=lambda module: (module.OffsetFetchRequestTopic(name=topic, partition_indexes=(0,)),),
    )
    reply = client.ask(body)
    if reply.error_code is not ErrorCode.none:  # it has just been started
        return -1, reply.error_code
    (found,) = reply.topics[0].partitions
    return found.committed_offset, found.error_code


@pytest.mark.parametrize("commit", [True, False])
def test_a_groups_offsets_count_with_the_marker_in_its_partition(
    running: InProcessCluster, client: Open, new_topic: NewTopicOf, coordinator: Coordinator, commit: bool
) -> None:
    topic = new_topic((0,))
    group = f"group-{commit}"
    number = partition_for(group)
    body = request(table.FIND_COORDINATOR.key, 4, key_type=0, coordinator_keys=(group,))
    place = client().ask(body).coordinators[0]
    there = client(place.node_id)
    answered = there.ask(commit_offset(group, topic, 5))
    unknown = ErrorCode.unknown_topic_or_partition
    assert [each.partitions[0].error_code for each in answered.topics] == [ErrorCode.none, unknown, unknown]
    (question,) = coordinator.asked
    assert (question.topic, question.partition, question.membership.adds) == (OFFSETS_TOPIC, number, True)
    assert committed(there, group, topic) == (-1, ErrorCode.unstable_offset_commit)
    assert committed(there, group, topic, stable=False) == (-1, ErrorCode.none)
    assert errors(there.ask(markers({OFFSETS_TOPIC: (number,)}, commit=commit))) == [ErrorCode.none]
    expected = (5 if commit else -1, ErrorCode.none)
    eventually(lambda: committed(there, group, topic) == expected, "the marker is applied")
    coordinator.error = ErrorCode.transaction_abortable
    for version, told in ((3, NOT_OPEN), (4, ErrorCode.transaction_abortable)):
        late = there.ask(commit_offset(group, topic, 7, version=version))
        assert late.topics[0].partitions[0].error_code is told
    coordinator.error = ErrorCode.not_coordinator
    later = there.ask(commit_offset(group, topic, 7))
    assert later.topics[0].partitions[0].error_code is ErrorCode.coordinator_not_available
    assert committed(there, group, topic) == expected


def test_a_commit_goes_to_the_groups_coordinator(client: Open, new_topic: NewTopicOf) -> None:
    topic, group = new_topic((0,)), "elsewhere"
    body = request(table.FIND_COORDINATOR.key, 4, key_type=0, coordinator_keys=(group,))
    place = client().ask(body).coordinators[0]
    answered = client((place.node_id + 1) % 3).ask(commit_offset(group, topic, 5))
    assert answered.topics[0].partitions[0].error_code is ErrorCode.not_coordinator


def test_a_restarted_coordinator_knows_what_was_committed_aborted_and_is_open(
    tmp_path: Path, coordinator: Coordinator
) -> None:
    """It reads records and markers from its log."""
    groups = {"committed": True, "aborted": False, "open": None}
    numbers = {group: partition_for(group) for group in groups}
    assert len(set(numbers.values())) == len(groups)
    with cluster(brokers=1, folder=tmp_path) as running, AdminClient(running.address) as admin:
        admin.create_topics([NewTopic("t", 1, 1)])
        there = Client(running, 0)
        there.ask(request(table.FIND_COORDINATOR.key, 4, key_type=0, coordinator_keys=tuple(groups)))
        for group, commit in groups.items():
            assert there.ask(commit_offset(group, "t", 5)).topics[0].partitions[0].error_code is ErrorCode.none
            if commit is not None:
                marker = markers({OFFSETS_TOPIC: (numbers[group],)}, commit=commit)
                assert errors(there.ask(marker)) == [ErrorCode.none]
        there.close()
    with cluster(brokers=1, folder=tmp_path) as running:
        there = Client(running, 0)
        there.ask(request(table.FIND_COORDINATOR.key, 4, key_type=0, coordinator_keys=tuple(groups)))

        def found() -> dict[str, tuple[int, ErrorCode]]:
            return {group: committed(there, group, "t") for group in groups}

        expected = {
            "committed": (5, ErrorCode.none),
            "aborted": (-1, ErrorCode.none),
            "open": (-1, ErrorCode.unstable_offset_commit),
        }
        eventually(lambda: found() == expected, "all is read")
        asked = len(coordinator.asked)
        assert there.ask(commit_offset("open", "t", 6)).topics[0].partitions[0].error_code is ErrorCode.none
        assert len(coordinator.asked) == asked, "the transaction is open"
        assert errors(there.ask(markers({OFFSETS_TOPIC: (numbers["open"],)}))) == [ErrorCode.none]
        expected["open"] = (6, ErrorCode.none)
        eventually(lambda: found() == expected, "the transaction of before is committed")
        there.close()
