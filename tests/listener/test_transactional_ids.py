"""The APIs of transactions through real listeners: found, routed, versioned. The leaders of partitions are played: ``Leaders``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.write_txn_markers.v2 import response as written
from outside import Client, milliseconds, request
from outside_producer import Producer
from raw_requests import eventually

from raylog.listener.owners import Owner, Owners
from raylog.testing.in_process import InProcessCluster
from raylog.types import broker_of

pytestmark = pytest.mark.core

Open = Callable[..., Client]
NewTopicOf = Callable[..., str]
NONE = ErrorCode.none
CONCURRENT = ErrorCode.concurrent_transactions


class Leaders:
    """Answer the markers that coordinators ask for, and keep the questions with who was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[Owner, Any]] = []
        self.error = NONE
        call = Owners.call

        def played(owners: Owners, owner: Owner, entity: Any, on_reply: Any, **options: Any) -> Any:
            if type(entity).__name__ != "WriteTxnMarkersRequest":
                return call(owners, owner, entity, on_reply, **options)
            self.asked.append((owner, entity))
            on_reply(self.answer(entity), None)
            return lambda: None

        monkeypatch.setattr(Owners, "call", played)

    def answer(self, entity: Any) -> Any:
        return written.WriteTxnMarkersResponse(
            markers=tuple(
                written.WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=tuple(
                        written.WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=tuple(
                                written.WritableTxnMarkerPartitionResult(partition_index=each, error_code=self.error)
                                for each in topic.partition_indexes
                            ),
                        )
                        for topic in marker.topics
                    ),
                )
                for marker in entity.markers
            )
        )


@pytest.fixture
def leaders(monkeypatch: pytest.MonkeyPatch) -> Leaders:
    return Leaders(monkeypatch)


@pytest.fixture
def producer(client: Open) -> Callable[[str], Producer]:
    return lambda transactional_id: Producer(client, transactional_id)


@pytest.mark.parametrize("version", [1, 6])
def test_the_coordinator_of_a_transactional_id_is_found(client: Open, version: int) -> None:
    named: dict[str, Any] = {"coordinator_keys": ("t",)} if version >= 4 else {"key": "t"}
    reply = client().ask(request(10, version, key_type=1, **named))
    (found,) = reply.coordinators if version >= 4 else (reply,)
    assert found.error_code is NONE and found.port > 0
    wrong = client().ask(request(10, version, key_type=3, **named))
    (refused,) = wrong.coordinators if version >= 4 else (wrong,)
    assert refused.error_code is ErrorCode.invalid_request and "type 3" in refused.error_message


@pytest.mark.parametrize("version", range(6))
def test_every_version_initialises_an_id(producer: Callable[[str], Producer], version: int) -> None:
    first, second = producer(f"init-{version}"), producer(f"init-{version}")
    assert first.init(version).error_code is NONE and first.epoch == 0
    assert second.init(version).error_code is NONE and second.epoch == 1
    assert first.producer_id == second.producer_id >= 0
    if version >= 3:
        fenced = first.init(version, producer_id=first.producer_id, producer_epoch=0).error_code
        assert fenced is (ErrorCode.producer_fenced if version >= 4 else ErrorCode.invalid_producer_epoch)


def test_producer_ids_of_coordinators_and_of_the_controller_differ(
    client: Open, producer: Callable[[str], Producer]
) -> None:
    found = set()
    for number in range(6):
        one = producer(f"distinct-{number}")
        one.init()
        plain = client().ask(
            request(
                22, 4, transactional_id=None, transaction_timeout=milliseconds(1), producer_id=-1, producer_epoch=-1
            )
        )
        found |= {one.producer_id, plain.producer_id}
    assert len(found) == 12 and -1 not in found


def test_a_timeout_beyond_the_maximum_is_refused(producer: Callable[[str], Producer]) -> None:
    assert producer("bad").init(timeout_ms=900_001).error_code is ErrorCode.invalid_transaction_timeout


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
def test_each_leader_is_asked_for_the_markers_of_its_partitions(
    running: InProcessCluster, producer: Callable[[str], Producer], new_topic: NewTopicOf, leaders: Leaders, commits: bool
) -> None:  # fmt: skip
    topic = new_topic((0, 1, 2), (1, 2, 0), (2, 0, 1))
    one = producer(f"markers-{commits}")
    one.initialised()
    assert one.add(topic, 0, 1, 2) == dict.fromkeys(range(3), NONE)
    assert one.state().transaction_state == "Ongoing" and one.state().topics[0].partitions == (0, 1, 2)
    assert one.end(commits=commits).error_code is NONE
    eventually(lambda: one.state().transaction_state.startswith("Complete"), "the end")
    asked = {
        (broker_of(owner.node_id), number)
        for owner, entity in leaders.asked
        for marker in entity.markers
        for number in marker.topics[0].partition_indexes
    }
    assert asked == {(0, 0), (1, 1), (2, 2)}
    for _, entity in leaders.asked:
        (marker,) = entity.markers
        assert (marker.producer_id, marker.producer_epoch, marker.transaction_result) == (one.producer_id, 0, commits)
        assert marker.coordinator_epoch >= 0 and marker.transaction_version == 0
    assert one.end(commits=commits).error_code is NONE, "a retry"


def test_a_client_of_version_2_goes_on_with_the_epoch_of_the_answer(
    producer: Callable[[str], Producer], new_topic: NewTopicOf, leaders: Leaders
) -> None:
    topic = new_topic((0, 1, 2))
    one = producer("second-version")
    one.initialised()
    for round_ in range(3):
        (error,) = eventually(
            lambda: [each for each in one.add_as_leader(topic, 0) if each is not CONCURRENT], "a transaction"
        )
        assert error is NONE
        ended = one.end(5, commits=round_ != 1)
        assert (ended.error_code, ended.producer_id, ended.producer_epoch) == (NONE, one.producer_id, one.epoch + 1)
        eventually(lambda: one.state().transaction_state.startswith("Complete"), "the end")
        again = one.end(5, commits=round_ != 1)
        assert (again.error_code, again.producer_epoch) == (NONE, ended.producer_epoch)
        one.epoch = ended.producer_epoch
    assert [marker.transaction_version for _, entity in leaders.asked for marker in entity.markers] == [2, 2, 2]


def test_markers_are_asked_for_again_until_they_are_written(
    producer: Callable[[str], Producer], new_topic: NewTopicOf, leaders: Leaders
) -> None:
    topic = new_topic((0, 1, 2))
    one = producer("again")
    one.initialised()
    one.add(topic, 0)
    leaders.error = ErrorCode.not_leader_or_follower
    assert one.end().error_code is NONE
    eventually(lambda: len(leaders.asked) >= 3, "some attempts")
    assert one.end().error_code is CONCURRENT and one.state().transaction_state == "PrepareCommit"
    leaders.error = NONE
    eventually(lambda: one.state().transaction_state == "CompleteCommit", "the end")


def test_errors_are_called_as_their_version_calls_them(
    producer: Callable[[str], Producer], new_topic: NewTopicOf, leaders: Leaders
) -> None:
    topic = new_topic((0, 1, 2))
    one = producer("errors")
    one.initialised()
    for version in range(4):
        fenced = ErrorCode.producer_fenced if version >= 2 else ErrorCode.invalid_producer_epoch
        assert one.add(topic, 0, version=version, epoch=one.epoch + 1) == {0: fenced}
        assert one.end(version, epoch=one.epoch + 1).error_code is fenced
    assert one.add_as_leader(topic, 0, version=4, verify_only=True) == [ErrorCode.invalid_txn_state]
    assert one.add_as_leader(topic, 0, version=5, verify_only=True) == [ErrorCode.transaction_abortable]
    assert one.add(topic, 0, 7) == {0: ErrorCode.operation_not_attempted, 7: ErrorCode.unknown_topic_or_partition}
    assert one.state().transaction_state == "Empty"


@pytest.mark.parametrize("version", range(5))
def test_offsets_of_a_group_are_a_partition_of_the_transaction(
    client: Open, producer: Callable[[str], Producer], leaders: Leaders, version: int
) -> None:
    assert client().ask(request(10, 4, key_type=0, coordinator_keys=("g",))).coordinators[0].error_code is NONE
    one = producer(f"offsets-{version}")
    one.initialised()
    reply = one.ask(
        25, version, transactional_id=one.id, producer_id=one.producer_id, producer_epoch=one.epoch, group_id="g"
    )
    assert reply.error_code is NONE
    (topic,) = one.state().topics
    assert topic.topic == "__consumer_offsets"
    one.end()
    eventually(lambda: one.state().transaction_state == "CompleteCommit", "the end")
    assert [marker.topics[0].name for _, entity in leaders.asked for marker in entity.markers] == [topic.topic]


def test_transactions_of_all_coordinators_are_listed_and_described(
    client: Open, producer: Callable[[str], Producer]
) -> None:
    ids = [f"listed-{number}" for number in range(8)]
    producers = [producer(each) for each in ids]
    for each in producers:
        each.initialised()
    listed: dict[str, Any] = {}
    for broker in range(3):
        reply = client(broker).ask(
            request(
                66,
                2,
                state_filters=("Empty", "Odd"),
                producer_id_filters=(),
                duration_filter=-1,
                transactional_id_pattern="listed-.*",
            )
        )
        assert reply.error_code is NONE and set(reply.unknown_state_filters) <= {"Odd"}
        listed |= {each.transactional_id: each for each in reply.transaction_states}
    assert sorted(listed) == ids and {each.transaction_state for each in listed.values()} == {"Empty"}
    described = producers[0].ask(65, 0, transactional_ids=(ids[0], "nobody's")).transaction_states
    assert described[0].error_code is NONE and described[0].producer_id == listed[ids[0]].producer_id
    assert described[1].error_code in (ErrorCode.transactional_id_not_found, ErrorCode.not_coordinator)


def test_a_second_producer_aborts_what_the_first_left_behind(
    producer: Callable[[str], Producer], new_topic: NewTopicOf, leaders: Leaders
) -> None:
    topic = new_topic((0, 1, 2))
    first, second = producer("left"), producer("left")
    first.initialised()
    first.add(topic, 0)
    assert second.init().error_code is CONCURRENT
    second.initialised()
    assert second.epoch == first.epoch + 2
    assert [marker.transaction_result for _, entity in leaders.asked for marker in entity.markers] == [False]
    assert first.end().error_code is ErrorCode.producer_fenced
