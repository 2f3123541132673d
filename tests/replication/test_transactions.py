"""Transactions at a partition's leader: who may begin one, what ends it, and that nothing of an ended one is appended late."""

from __future__ import annotations

import random

import pytest
from kio.schema.errors import ErrorCode

from raylog.log.markers import TransactionEnd
from raylog.records.batch import batches
from raylog.records.control import Marker
from raylog.replication.context import HostConfig
from raylog.replication.events import (
    Cancelled,
    FetchPartition,
    FetchPartitionResult,
    FetchReceived,
    FetchReply,
    OwnAppend,
    ProducePartition,
    ProducePartitionResult,
    ProduceReceived,
    ProduceReply,
)
from raylog.replication.leaderships import HighWatermarkMoved, LeadershipBegan, TransactionMarked
from raylog.replication.transaction_events import (
    NO_LEAVE,
    LeaveGiven,
    LeaveWanted,
    MarkersReceived,
    PartitionMarker,
    TransactionMembership,
)
from raylog.simulator.replica_hosts import P0, WALL_MS, Hosts, batch, contents
from raylog.types import TopicIdPartition

P1 = TopicIdPartition(P0.topic_id, 1)
PRODUCER = 7
OLD = TransactionMembership("t")  # a client that adds its partitions itself
NEW = TransactionMembership("t", adds=True, is_abortable=True)
COMMIT, ABORT = Marker.COMMIT, Marker.ABORT
NOT_OPEN = ErrorCode.invalid_txn_state.value
READ_COMMITTED = 1


def hosts_of(*brokers: int, ids: tuple[TopicIdPartition, ...] = (P0,), min_isr: int = 1, **options: object) -> Hosts:
    hosts = Hosts(brokers or (1,), HostConfig(**options))  # type: ignore[arg-type]
    for id in ids:
        hosts.assign(1, brokers or (1,), id=id, min_isr=min_isr)
    return hosts


def produce(
    hosts: Hosts,
    sequence: int = 0,
    *,
    epoch: int = 0,
    producer: int = PRODUCER,
    membership: TransactionMembership | None = OLD,
    broker: int = 1,
    id: TopicIdPartition = P0,
    acks: int = -1,
) -> int:
    value = b"%d/%d" % (epoch, sequence)
    return hosts.produce(broker, value, producer=(producer, epoch, sequence), membership=membership, id=id, acks=acks)


def begin(hosts: Hosts, sequence: int = 0, *, epoch: int = 0, broker: int = 1, producer: int = PRODUCER) -> None:
    """A batch that begins a transaction is appended."""
    token = produce(hosts, sequence, epoch=epoch, broker=broker, producer=producer)
    hosts.answer_question()
    hosts.run()
    assert error_of(hosts, token) == 0


def end(
    hosts: Hosts,
    marker: Marker = COMMIT,
    *,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    producer: int = PRODUCER,
    version: int = 0,
    broker: int = 1,
    ids: tuple[TopicIdPartition, ...] = (P0,),
    run: bool = True,
) -> int:
    token = hosts.token()
    what = TransactionEnd(producer, epoch, coordinator_epoch, marker, version)
    hosts.handle(broker, MarkersReceived(token, 1_000, tuple(PartitionMarker(id, what) for id in ids)))
    if run:
        hosts.run()
    return token


def result(hosts: Hosts, token: int, index: int = 0) -> ProducePartitionResult | None:
    reply = hosts.replies.get(token)
    assert reply is None or isinstance(reply, ProduceReply)
    return reply.partitions[index] if reply is not None else None


def error_of(hosts: Hosts, token: int, index: int = 0) -> int | None:
    found = result(hosts, token, index)
    return found.error if found is not None else None


def values(hosts: Hosts, broker: int = 1, id: TopicIdPartition = P0) -> list[bytes]:
    """Of the data in the log."""
    log = hosts.log(broker, id)
    if not log.log_end_offset:
        return []
    markers = {view.base_offset for view in batches(log.read(0, 1 << 24).records) if view.is_control}
    return [value for offset, _, value in contents(log) if offset not in markers]


def marker_count(hosts: Hosts, broker: int = 1, id: TopicIdPartition = P0) -> int:
    log = hosts.log(broker, id)
    if not log.log_end_offset:
        return 0
    return sum(view.is_control for view in batches(log.read(0, 1 << 24).records))


def committed_fetch(hosts: Hosts, broker: int, offset: int, *, max_wait_ms: int = 0) -> int:
    token = hosts.token()
    part = FetchPartition(P0, offset, 1 << 20)
    hosts.handle(broker, FetchReceived(token, -1, -1, max_wait_ms, 1, 1 << 20, READ_COMMITTED, (part,)))
    return token


def fetched(hosts: Hosts, token: int) -> FetchPartitionResult | None:
    reply = hosts.replies.get(token)
    assert reply is None or isinstance(reply, FetchReply)
    return reply.partitions[0] if reply is not None else None


# ------------------------------------------------------------------ who may begin


@pytest.mark.parametrize("membership", [OLD, NEW])
def test_the_first_batch_of_a_transaction_waits_for_the_coordinator_and_the_others_for_nobody(
    membership: TransactionMembership,
) -> None:
    hosts = hosts_of()
    first = produce(hosts, membership=membership)
    ((broker, question),) = hosts.questions
    asked = (question.topic, question.partition, question.membership, question.producer_id, question.producer_epoch)
    assert broker == 1 and asked == (f"topic{P0.topic_id.int}", 0, membership, PRODUCER, 0)
    assert values(hosts) == [] and hosts.host(1).holds(first)
    hosts.answer_question()
    assert error_of(hosts, first) == 0 and not hosts.host(1).holds(first)
    assert error_of(hosts, produce(hosts, 1, membership=membership)) == 0
    assert not hosts.questions and values(hosts) == [b"0/0", b"0/1"]
    end(hosts)
    produce(hosts, 2, membership=membership)
    assert len(hosts.questions) == 1


def test_a_late_batch_of_a_transaction_that_a_marker_has_ended_is_never_appended() -> None:
    """Though the coordinator said, before, that the transaction is open."""
    hosts = hosts_of()
    late = produce(hosts)
    end(hosts, ABORT)
    hosts.answer_question()
    assert error_of(hosts, late) == NOT_OPEN and values(hosts) == []
    log = hosts.log(1)
    assert log.stable_end_offset == log.high_watermark == log.log_end_offset


def test_the_marker_of_the_transaction_before_leaves_the_next_one_its_leave() -> None:
    """In version 2 it bears the epoch with which the producer goes on, perhaps before it has come here."""
    hosts = hosts_of()
    begin(hosts)
    following = produce(hosts, epoch=1, membership=NEW)
    end(hosts, epoch=1, version=2)
    assert error_of(hosts, following) is None
    hosts.answer_question()
    assert error_of(hosts, following) == 0 and values(hosts) == [b"0/0", b"1/0"]
    late = produce(hosts, epoch=2, membership=NEW)
    end(hosts, epoch=2, version=2)
    end(hosts, epoch=3, version=2)
    hosts.answer_question()
    assert error_of(hosts, late) and values(hosts) == [b"0/0", b"1/0"]


@pytest.mark.parametrize("is_repeated", [False, True])
def test_a_leave_that_was_granted_and_not_used_is_void_after_a_marker(is_repeated: bool) -> None:
    """Also where the marker says what the last one said, as those of transactions of version 1 do."""
    hosts = hosts_of(walked_bytes_max=4)
    hosts.holds_checks = True
    if is_repeated:
        end(hosts)
    held = produce(hosts)
    hosts.answer_question()
    assert len(hosts.checks) == 1  # a thread looks at its records, with leave
    end(hosts)
    assert marker_count(hosts) == 1
    hosts.finish_check()
    assert error_of(hosts, held) == NOT_OPEN and values(hosts) == []


def test_a_batch_that_waits_behind_a_check_is_refused_when_its_transaction_has_ended() -> None:
    hosts = hosts_of(walked_bytes_max=200)
    hosts.holds_checks = True
    begin(hosts)
    hosts.produce(1, b"x" * 300, run=False)
    late = produce(hosts, 1)
    end(hosts)
    hosts.finish_check()
    assert error_of(hosts, late) == NOT_OPEN and values(hosts) == [b"0/0", b"x" * 300]


@pytest.mark.parametrize(
    ("said", "old", "new"),
    [
        (ErrorCode.transaction_abortable, ErrorCode.invalid_txn_state, ErrorCode.transaction_abortable),
        (ErrorCode.invalid_producer_id_mapping, ErrorCode.invalid_producer_id_mapping, ErrorCode.invalid_producer_id_mapping),
        (ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch, ErrorCode.invalid_producer_epoch),
        (ErrorCode.invalid_producer_epoch, ErrorCode.invalid_producer_epoch, ErrorCode.invalid_producer_epoch),
        (ErrorCode.concurrent_transactions, ErrorCode.not_enough_replicas, ErrorCode.not_enough_replicas),
        (ErrorCode.network_exception, ErrorCode.not_enough_replicas, ErrorCode.not_enough_replicas),
        (ErrorCode.not_coordinator, ErrorCode.not_enough_replicas, ErrorCode.not_enough_replicas),
        (ErrorCode.coordinator_load_in_progress, ErrorCode.not_enough_replicas, ErrorCode.not_enough_replicas),
    ],
)  # fmt: skip
def test_what_the_coordinator_says_reaches_the_producer_as_kafka_says_it(
    said: ErrorCode, old: ErrorCode, new: ErrorCode
) -> None:
    hosts = hosts_of()
    for membership, told in ((OLD, old), (NEW, new)):
        token = produce(hosts, membership=membership)
        hosts.answer_question(said.value)
        found = result(hosts, token)
        assert found is not None and found.error == told.value and said.name.upper() in (found.message or "")
    assert values(hosts) == []
    begin(hosts)  # it is asked again


def test_without_a_transactional_id_nobody_can_be_asked() -> None:
    hosts = hosts_of()
    records = batch(b"v", timestamp_ms=WALL_MS, producer=(PRODUCER, 0, 0), is_transactional=True)
    token = hosts.token()
    hosts.handle(1, ProduceReceived(token, -1, 1_000, (ProducePartition(P0, records),)))
    assert error_of(hosts, token) == NOT_OPEN and not hosts.questions


def test_a_repeat_and_an_old_instance_need_no_coordinator() -> None:
    hosts = hosts_of()
    begin(hosts, epoch=3)
    end(hosts, epoch=3)
    repeat = produce(hosts, epoch=3)
    assert error_of(hosts, repeat) == 0 and values(hosts) == [b"3/0"]
    assert error_of(hosts, produce(hosts, epoch=2)) == ErrorCode.invalid_producer_epoch.value
    assert not hosts.questions


# ------------------------------------------------------------------ order


def test_batches_behind_the_first_one_wait_for_the_same_answer_in_order() -> None:
    hosts = hosts_of()
    tokens = [produce(hosts, sequence) for sequence in range(3)]
    assert len(hosts.questions) == 1
    hosts.answer_question()
    assert [error_of(hosts, token) for token in tokens] == [0, 0, 0]
    assert values(hosts) == [b"0/0", b"0/1", b"0/2"]


def test_other_producers_pass_those_that_wait_for_a_coordinator() -> None:
    hosts = hosts_of()
    waits = produce(hosts)
    other = produce(hosts, producer=8)
    assert error_of(hosts, hosts.produce(1, b"plain")) == 0
    hosts.answer_question(number=1)
    assert error_of(hosts, other) == 0 and waits not in hosts.replies
    assert values(hosts) == [b"plain", b"0/0"]


def test_a_producers_requests_do_not_pass_one_another_in_a_partition_that_only_one_of_them_has_to_ask_for() -> None:
    hosts = hosts_of(ids=(P0, P1))
    opening = produce(hosts, id=P1)
    hosts.answer_question()
    assert error_of(hosts, opening) == 0

    def part(id: TopicIdPartition, sequence: int) -> ProducePartition:
        records = batch(b"%d" % sequence, timestamp_ms=WALL_MS, producer=(PRODUCER, 0, sequence), is_transactional=True)
        return ProducePartition(id, records, OLD)

    both = hosts.token()
    hosts.handle(1, ProduceReceived(both, -1, 1_000, (part(P0, 0), part(P1, 1))))
    behind = produce(hosts, 2, id=P1)
    assert both not in hosts.replies and behind not in hosts.replies
    hosts.answer_question()
    assert [error_of(hosts, both, index) for index in (0, 1)] == [0, 0] and error_of(hosts, behind) == 0
    assert values(hosts, id=P1) == [b"0/0", b"1", b"0/2"]


def test_a_batch_behind_one_that_was_refused_leaves_no_gap() -> None:
    hosts = hosts_of()
    first = produce(hosts, 0)
    hosts.answer_question(ErrorCode.network_exception.value)
    assert error_of(hosts, first) == ErrorCode.not_enough_replicas.value
    second = produce(hosts, 1)
    hosts.answer_question()
    assert error_of(hosts, second) == ErrorCode.out_of_order_sequence_number.value
    assert error_of(hosts, produce(hosts, 0)) == error_of(hosts, produce(hosts, 1)) == 0
    assert values(hosts) == [b"0/0", b"0/1"]


def test_a_produce_without_acks_is_held_too() -> None:
    hosts = hosts_of()
    token = produce(hosts, acks=0)
    hosts.handle(1, Cancelled(token))
    assert hosts.host(1).holds(token)
    hosts.answer_question()
    assert not hosts.host(1).holds(token) and token not in hosts.replies and values(hosts) == [b"0/0"]


def test_an_answer_that_comes_after_the_leadership_asks_the_client_to_look_for_the_leader() -> None:
    hosts = hosts_of(1, 2)
    moved = produce(hosts)
    hosts.assign(2, (1, 2), epoch=1)
    hosts.assign(1, (1, 2), epoch=2)
    hosts.answer_question()
    assert error_of(hosts, moved) == ErrorCode.not_leader_or_follower.value and values(hosts) == []


def test_a_produce_that_came_before_its_partition_serves_asks_when_it_does() -> None:
    hosts = Hosts((1,))
    early = produce(hosts)
    assert not hosts.questions
    hosts.assign(1, (1,))
    assert len(hosts.questions) == 1 and early not in hosts.replies
    hosts.answer_question()
    assert error_of(hosts, early) == 0 and values(hosts) == [b"0/0"]


# ------------------------------------------------------------------ markers


def test_a_marker_is_answered_when_it_is_replicated_and_written_once() -> None:
    hosts = hosts_of(1, 2)
    begin(hosts)
    hosts.cut.add(2)
    first, again = end(hosts), end(hosts)
    assert first not in hosts.replies and again not in hosts.replies
    hosts.cut.clear()
    hosts.run()
    assert error_of(hosts, first) == error_of(hosts, again) == 0
    assert marker_count(hosts) == marker_count(hosts, 2) == 1


@pytest.mark.parametrize(
    ("epoch", "coordinator_epoch", "error"),
    [(0, 6, ErrorCode.transaction_coordinator_fenced), (-1, 7, ErrorCode.invalid_producer_epoch)],
)
def test_a_marker_of_one_who_was_replaced_is_refused(epoch: int, coordinator_epoch: int, error: ErrorCode) -> None:
    hosts = hosts_of()
    begin(hosts, 0)
    end(hosts, coordinator_epoch=7)
    begin(hosts, 1)
    assert error_of(hosts, end(hosts, epoch=epoch, coordinator_epoch=coordinator_epoch)) == error.value
    assert hosts.log(1).producers.has_open(PRODUCER, 0)


def test_each_partition_of_a_marker_has_its_own_result() -> None:
    hosts = hosts_of(1, 2, ids=(P0, P1))
    hosts.assign(2, (1, 2), epoch=1, id=P1)
    gone = TopicIdPartition(P0.topic_id, 9)
    token = end(hosts, ids=(P0, P1, gone))
    hosts.advance(500)
    errors = [error_of(hosts, token, index) for index in range(3)]
    assert errors == [0, ErrorCode.not_leader_or_follower.value, ErrorCode.unknown_topic_or_partition.value]


def test_a_marker_needs_enough_replicas() -> None:
    hosts = hosts_of(1, 2, min_isr=2)
    begin(hosts)
    hosts.assign(1, (1,), min_isr=2)
    assert error_of(hosts, end(hosts)) == ErrorCode.not_enough_replicas.value
    hosts.assign(1, (1, 2), min_isr=2)
    assert error_of(hosts, end(hosts)) == 0


def test_a_new_leader_knows_the_open_transaction_and_the_markers_of_the_former_one() -> None:
    hosts = hosts_of(1, 2)
    begin(hosts)
    hosts.kill(1)
    hosts.assign(2, (2,), epoch=1)
    assert error_of(hosts, produce(hosts, 1, broker=2)) == 0 and not hosts.questions
    assert error_of(hosts, end(hosts, broker=2)) == 0
    hosts.start(1)
    hosts.assign(2, (2,), epoch=1)
    hosts.assign(2, (1, 2), epoch=1)
    hosts.assign(1, (1, 2), epoch=2)
    assert error_of(hosts, end(hosts)) == 0 and marker_count(hosts) == marker_count(hosts, 2) == 1


def test_an_unclean_election_takes_back_the_end_of_a_transaction_with_its_marker() -> None:
    """The coordinator sends it again to the new leader."""
    hosts = hosts_of(1, 2)
    begin(hosts)
    hosts.cut.add(2)
    hosts.assign(1, (1,), to=(1,))
    end(hosts)
    assert hosts.log(1).stable_end_offset == 2
    hosts.kill(1)
    hosts.cut.clear()
    hosts.assign(2, (2,), epoch=1)  # it was not in sync
    assert hosts.log(2).stable_end_offset == 0 and hosts.log(2).producers.has_open(PRODUCER, 0)
    hosts.start(1)
    hosts.assign(2, (2,), epoch=1)
    hosts.inform()
    assert hosts.log(1).log_end_offset == 1 and hosts.log(1).producers.has_open(PRODUCER, 0)
    hosts.assign(2, (1, 2), epoch=1)
    assert error_of(hosts, end(hosts, ABORT, broker=2)) == 0
    assert hosts.log(2).transactions.aborted(0, 2) == ((PRODUCER, 0),)


# ------------------------------------------------------------------ readers


@pytest.mark.parametrize("broker", [1, 2])
def test_a_reader_of_committed_records_is_woken_when_the_marker_is_replicated(broker: int) -> None:
    hosts = hosts_of(1, 2)
    begin(hosts)
    hosts.inform()
    waiting = committed_fetch(hosts, broker, 0, max_wait_ms=60_000)
    hosts.cut.add(2)
    end(hosts)
    assert fetched(hosts, waiting) is None
    hosts.cut.clear()
    hosts.inform()
    found = fetched(hosts, waiting)
    assert found is not None and found.last_stable_offset == 2 and len(found.records)


def test_a_reader_who_waits_at_a_follower_gets_the_rest_when_that_one_leads() -> None:
    hosts = hosts_of(1, 2)
    begin(hosts)
    end(hosts, ABORT)
    hosts.inform()
    waiting = committed_fetch(hosts, 2, 2, max_wait_ms=60_000)
    begin(hosts, 1)
    hosts.kill(1)
    hosts.assign(2, (2,), epoch=1)
    assert error_of(hosts, end(hosts, broker=2)) == 0
    hosts.advance(60_000)
    again = committed_fetch(hosts, 2, 0)
    for token, aborted in ((waiting, ()), (again, ((PRODUCER, 0),))):
        found = fetched(hosts, token)
        assert found is not None and found.error == 0 and found.aborted == aborted


def test_deleted_records_of_an_open_transaction_leave_it_open() -> None:
    hosts = hosts_of()
    begin(hosts)
    hosts.produce(1, b"plain")
    assert hosts.replica(1).leader is not None
    assert hosts.replica(1).leader.delete_records(-1)[0] == 0  # type: ignore[union-attr]
    log = hosts.log(1)
    assert log.log_start_offset == 2 and log.producers.has_open(PRODUCER, 0)
    assert log.stable_end_offset == 2  # "latest" is in the log, or a reader would start out of range
    found = fetched(hosts, committed_fetch(hosts, 1, 2))
    assert found is not None and (found.error, found.last_stable_offset, found.records) == (0, 2, b"")
    hosts.produce(1, b"behind")
    assert log.stable_end_offset == 2
    assert error_of(hosts, end(hosts)) == 0
    assert log.stable_end_offset == 4
    found = fetched(hosts, committed_fetch(hosts, 1, 2))
    assert found is not None and (found.error, found.last_stable_offset, found.aborted) == (0, 4, ())


# ------------------------------------------------------------------ coordinators of this process


def test_a_coordinators_own_batch_needs_leave_as_well() -> None:
    hosts = hosts_of()
    records = batch(b"offset", timestamp_ms=WALL_MS, producer=(PRODUCER, 0, 0), is_transactional=True)

    def append(leave: int, epoch: int = 0) -> int | None:
        token = hosts.token()
        hosts.handle(1, OwnAppend(token, ProducePartition(P0, records), epoch, leave))
        return error_of(hosts, token)

    def want(epoch: int = 0) -> int:
        token = hosts.token()
        hosts.handle(1, LeaveWanted(token, P0, epoch, NEW, PRODUCER, 0))
        return token

    assert append(NO_LEAVE) == NOT_OPEN
    assert hosts.replies[want(epoch=5)] == LeaveGiven(ErrorCode.not_leader_or_follower.value, NO_LEAVE)
    refused = want()
    hosts.answer_question(ErrorCode.not_coordinator.value)
    given = hosts.replies[refused]
    assert isinstance(given, LeaveGiven) and given.error == ErrorCode.not_enough_replicas.value
    assert append(given.leave) == NOT_OPEN
    asked, together = want(), want()
    hosts.answer_question()
    given = hosts.replies[asked]
    assert isinstance(given, LeaveGiven) and given.error == 0 and hosts.replies[together] == given
    end(hosts)
    assert append(given.leave) == NOT_OPEN
    again = want()
    hosts.answer_question()
    given = hosts.replies[again]
    assert isinstance(given, LeaveGiven)
    assert append(given.leave) == 0 and append(NO_LEAVE) == 0  # which is no repeat
    assert hosts.replies[want()] == LeaveGiven(0, NO_LEAVE)
    assert len(values(hosts)) == 2


def test_coordinators_hear_of_a_marker_before_it_is_replicated() -> None:
    hosts = Hosts((1,), watched_topics=(f"topic{P0.topic_id.int}",))
    hosts.assign(1, (1,))
    hosts.leaderships.clear()
    end(hosts)
    what = TransactionEnd(PRODUCER, 0, 0, COMMIT)
    assert [change for _, change in hosts.leaderships] == [TransactionMarked(P0, 1, what), HighWatermarkMoved(P0, 1, 1)]
    end(hosts)
    assert len(hosts.leaderships) == 2
    assert not any(isinstance(change, LeadershipBegan) for _, change in hosts.leaderships)


# ------------------------------------------------------------------ whatever comes when


@pytest.mark.parametrize("seed", range(30))
def test_nothing_is_appended_to_a_transaction_that_has_ended(seed: int) -> None:
    """Producers, a coordinator and threads in any order; what is in the log belongs to what was open then."""
    chance = random.Random(seed)
    hosts = hosts_of(1, 2, walked_bytes_max=110)
    hosts.holds_checks = True
    epochs, sequences = [0, 0], [0, 0]
    for _ in range(150):
        producer = chance.randrange(2)
        match chance.choices(("produce", "answer", "check", "end", "run"), (6, 4, 3, 2, 3))[0]:
            case "produce":
                late = epochs[producer] and chance.random() < 0.3
                epoch = epochs[producer] - 1 if late else epochs[producer]
                value = b"%d of %d" % (producer, epoch) + b"." * chance.choice((0, 60))
                sequence = 0 if late else sequences[producer]
                hosts.produce(
                    1,
                    value,
                    producer=(producer, epoch, sequence),
                    membership=NEW,
                    run=False,
                    acks=chance.choice((1, -1)),
                )
                sequences[producer] += not late
            case "answer" if hosts.questions:
                number = chance.randrange(len(hosts.questions))
                question = hosts.questions[number][1]
                is_open = question.producer_epoch == epochs[question.producer_id]
                hosts.answer_question(0 if is_open else ErrorCode.invalid_producer_epoch.value, number)
            case "check" if hosts.checks:
                hosts.finish_check(chance.randrange(len(hosts.checks)))
            case "end":
                epochs[producer] += 1
                sequences[producer] = 0
                end(hosts, epoch=epochs[producer], producer=producer, version=2, run=False)
            case "run":
                hosts.run()
    while hosts.checks or hosts.questions:
        if hosts.questions:
            hosts.answer_question(ErrorCode.invalid_producer_epoch.value)
        if hosts.checks:
            hosts.finish_check()
    hosts.run()
    ended = [0, 0]
    for view in batches(hosts.log(1).read(0, 1 << 24).records):
        if view.is_control:
            ended[view.producer_id] = view.producer_epoch
        else:
            assert view.producer_epoch == ended[view.producer_id], "a record behind the end of its transaction"
    assert ended == epochs
