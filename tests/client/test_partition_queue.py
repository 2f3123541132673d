"""Order and sequence numbers of one partition's batches, alone and against a model of a leader that loses things."""

from __future__ import annotations

import random

import pytest
from kio.schema.errors import ErrorCode

from raylog.client.producer.partition_queue import (
    KNOWN_FOR_MS,
    NOT_APPENDED,
    PRODUCER_EPOCH_MAX,
    PartitionQueue,
    ProducerIdentity,
    Verdict,
)
from raylog.client.producer.producer_batch import NO_STAMP, ProducerBatch, after
from raylog.errors import RaylogError
from raylog.records.batch import BatchView
from raylog.records.codec import decode_values, encode_values

IDENTITY = ProducerIdentity(7, 0)


def queue_of(count: int, *, records: int = 2, retries: int = 100) -> tuple[PartitionQueue, list[ProducerBatch]]:
    queue = PartitionQueue("t", 0, max_in_flight=5, retries=retries)
    queue._is_known = True  # as after a first acknowledgement
    made = [batch(number, records) for number in range(count)]
    for each in made:
        queue.append(each)
    return queue, made


def batch(number: int, records: int = 2) -> ProducerBatch:
    data = encode_values([b"%d/%d" % (number, index) for index in range(records)], timestamp_ms=1)
    return ProducerBatch.of_bytes("t", 0, data, records, created_ms=number, deadline_ms=1000 + number, compression=0)


def take_all(queue: PartitionQueue, now_ms: float = 0) -> list[ProducerBatch]:
    taken = []
    while queue.sendable(now_ms) is not None:
        taken.append(queue.take(queue.identity or IDENTITY))
        queue.check()
    return taken


def test_at_most_five_batches_are_in_flight_under_consecutive_sequences() -> None:
    queue, made = queue_of(7)
    taken = take_all(queue)
    assert taken == made[:5]
    assert [b.stamp for b in taken] == [(7, 0, 0), (7, 0, 2), (7, 0, 4), (7, 0, 6), (7, 0, 8)]
    queue.acknowledged(made[0])
    assert take_all(queue) == [made[5]]


def test_the_first_batch_goes_alone_until_the_leader_knows_the_producer() -> None:
    queue, made = queue_of(4)
    queue._is_known = False
    assert take_all(queue) == made[:1]
    queue.retry(made[0], ErrorCode.not_enough_replicas)
    assert take_all(queue) == made[:1], "the second would be taken as the first"
    queue.acknowledged(made[0])
    assert take_all(queue) == made[1:]


def test_the_first_batch_after_a_long_silence_goes_alone_again() -> None:
    """Leaders forget producers that are silent for a day, and take any sequence from those that they do not know."""
    queue, made = queue_of(4)
    assert queue.sendable(1) is made[0]
    queue.acknowledged(queue.take(IDENTITY))
    night_ms = 2 * KNOWN_FOR_MS
    assert queue.sendable(night_ms) is made[1]
    queue.take(IDENTITY)
    assert queue.sendable(night_ms) is None
    queue.acknowledged(made[1])
    assert take_all(queue, night_ms) == made[2:]


def test_the_stamp_is_in_the_header_under_a_valid_crc() -> None:
    queue, made = queue_of(2)
    take_all(queue)
    view = BatchView(made[1].stamped_bytes())
    assert (view.producer_id, view.producer_epoch, view.base_sequence, view.has_valid_crc()) == (7, 0, 2, True)


def test_a_retry_waits_for_the_row_and_goes_first_with_its_sequence() -> None:
    queue, made = queue_of(4)
    take_all(queue)
    queue.retry(made[0], ErrorCode.not_leader_or_follower)
    assert queue.sendable(0) is None  # three are still away
    for each in made[1:]:
        assert queue.judge(each, ErrorCode.out_of_order_sequence_number) is Verdict.RETRY
        queue.retry(each, ErrorCode.out_of_order_sequence_number)
    queue.check()
    assert take_all(queue) == made
    assert [b.stamp[2] for b in made] == [0, 2, 4, 6]
    assert queue.identity == IDENTITY  # echoes change no epoch


def test_a_refused_batch_takes_its_numbers_along() -> None:
    """They belong to the epoch that ends with it: another batch under them could be taken for a copy, or a copy for it."""
    queue, made = queue_of(3)
    take_all(queue)
    assert queue.judge(made[0], ErrorCode.invalid_record) is Verdict.FAIL
    queue.give_up(made[0])
    for each in made[1:]:
        queue.retry(each, ErrorCode.out_of_order_sequence_number)
    assert queue.pop_lost() == [], "nothing of them was ever in doubt"
    assert take_all(queue) == [made[1]]
    queue.acknowledged(made[1])
    assert take_all(queue) == [made[2]]
    assert [b.stamp for b in made[1:]] == [(7, 1, 0), (7, 1, 2)]
    assert BatchView(made[1].stamped_bytes()).producer_epoch == 1


def refuse(queue: PartitionQueue, batches: list[ProducerBatch]) -> None:
    for each in batches:
        assert queue.judge(each, ErrorCode.out_of_order_sequence_number) is Verdict.RETRY
        queue.retry(each, ErrorCode.out_of_order_sequence_number)


def test_a_gap_before_the_first_unacknowledged_batch_starts_the_next_epoch_at_zero() -> None:
    queue, made = queue_of(3)
    take_all(queue)
    queue.acknowledged(made[0])  # and then the leader forgot it
    refuse(queue, made[1:])
    assert take_all(queue) == made[1:], "they were sent behind one that was not settled: that may be all"
    refuse(queue, made[1:])
    assert queue.pop_lost() == []
    assert take_all(queue) == [made[1]], "a new epoch begins with one batch alone"
    queue.acknowledged(made[1])
    assert take_all(queue) == [made[2]]
    assert [b.stamp for b in made[1:]] == [(7, 1, 0), (7, 1, 2)]


def test_unknown_producer_id_starts_the_next_epoch_too() -> None:
    queue, made = queue_of(1)
    take_all(queue)
    queue.retry(made[0], ErrorCode.unknown_producer_id)
    assert [b.stamp for b in take_all(queue)] == [(7, 1, 0)]


def test_a_batch_given_up_in_doubt_takes_those_in_doubt_behind_it_along() -> None:
    queue, made = queue_of(3)
    take_all(queue)
    for each in made[:2]:
        queue.retry(each, ErrorCode.network_exception)
    queue.retry(made[2], ErrorCode.not_enough_replicas)
    queue.give_up(made[0])
    assert queue.pop_lost() == [made[1]]
    assert take_all(queue) == [made[2]]
    assert made[2].stamp == (7, 1, 0)


def test_a_code_that_does_not_prove_that_nothing_was_appended_leaves_the_outcome_unknown() -> None:
    for code in set(ErrorCode) - NOT_APPENDED - {ErrorCode.none, ErrorCode.duplicate_sequence_number}:
        queue, made = queue_of(2)
        take_all(queue)
        for each in made:
            queue.retry(each, code)
        queue.give_up(made[0])
        assert queue.pop_lost() == [made[1]], code
        assert queue.identity == ProducerIdentity(7, 1)


def test_leaders_say_these_codes_of_batches_that_they_have_appended() -> None:
    appended = {
        ErrorCode.not_leader_or_follower,
        ErrorCode.kafka_storage_error,
        ErrorCode.request_timed_out,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.network_exception,
    }
    assert not appended & NOT_APPENDED


def test_an_echo_proves_nothing_about_a_copy_that_is_still_under_way() -> None:
    """The first copies of both may arrive from a connection that was given up, after the second one was refused."""
    queue, made = queue_of(2)
    take_all(queue)
    for each in made:
        queue.retry(each, ErrorCode.network_exception)
    take_all(queue)
    queue.retry(made[0], ErrorCode.not_enough_replicas)
    queue.retry(made[1], ErrorCode.out_of_order_sequence_number)
    queue.give_up(made[0])
    assert queue.pop_lost() == [made[1]]


def test_out_of_order_behind_a_batch_that_is_given_up_proves_nothing_either() -> None:
    queue, made = queue_of(3)
    take_all(queue)
    for each in made:
        queue.retry(each, ErrorCode.network_exception)
    take_all(queue)
    queue.give_up(made[0])
    for each in made[1:]:
        queue.retry(each, ErrorCode.out_of_order_sequence_number)
    assert queue.pop_lost() == made[1:]


def test_the_halves_of_a_batch_in_doubt_are_in_doubt() -> None:
    """The leader does not know them by their own numbers if it has the whole."""
    queue, made = queue_of(1, records=4)
    take_all(queue)
    queue.retry(made[0], ErrorCode.network_exception)
    take_all(queue)
    queue.split(made[0])
    first, second = take_all(queue)
    for half in (first, second):
        queue.retry(half, ErrorCode.out_of_order_sequence_number)
    assert queue.pop_lost() == [first, second]
    assert queue.idle


def test_an_exhausted_epoch_asks_for_a_new_producer_id() -> None:
    queue, made = queue_of(1)
    queue.identity = ProducerIdentity(7, PRODUCER_EPOCH_MAX)
    take_all(queue)
    queue.retry(made[0], ErrorCode.unknown_producer_id)
    assert queue.needs_identity and queue.identity is None and made[0].stamp == NO_STAMP


def test_a_fenced_producer_asks_for_a_new_producer_id() -> None:
    queue, made = queue_of(1)
    take_all(queue)
    assert queue.judge(made[0], ErrorCode.invalid_producer_epoch) is Verdict.RETRY
    queue.retry(made[0], ErrorCode.invalid_producer_epoch)
    assert queue.needs_identity


def test_a_batch_in_doubt_is_never_more_than_five_batches_behind() -> None:
    """A leader knows a second copy only among the last five batches, so the sixth waits for the doubt to end."""
    queue, made = queue_of(12)
    take_all(queue)
    for _ in range(3):  # the answer to the first is lost again and again while others get through
        queue.retry(made[0], ErrorCode.network_exception)
        for each in list(queue.in_flight):
            queue.acknowledged(each)
        take_all(queue)
        queue.check()
    assert max(each.stamp[2] for each in made) == made[4].stamp[2] == 8
    queue.acknowledged(made[0])
    assert take_all(queue) == made[5:10]


def test_a_batch_that_is_too_large_is_split_under_its_own_sequences() -> None:
    queue, made = queue_of(2, records=4)
    take_all(queue)
    assert queue.judge(made[0], ErrorCode.message_too_large) is Verdict.SPLIT
    queue.split(made[0])
    queue.retry(made[1], ErrorCode.out_of_order_sequence_number)
    taken = take_all(queue)
    assert [(b.serial, b.stamp[2], b.record_count) for b in taken] == [((0, 0), 0, 2), ((0, 1), 2, 2), ((1,), 4, 4)]
    for base_offset, child in zip((10, 30), made[0].children, strict=True):
        queue.acknowledged(child)
        child.succeed(base_offset, -1)
    assert made[0].done and [leaf.base_offset for leaf in made[0].leaves()] == [10, 30]
    assert made[0].leaf(3)[1] == 1 and made[0].leaf(3)[0].base_offset == 30


def test_a_single_record_that_is_too_large_fails() -> None:
    queue, made = queue_of(1, records=1)
    take_all(queue)
    assert queue.judge(made[0], ErrorCode.message_too_large) is Verdict.FAIL


def test_a_duplicate_is_a_success() -> None:
    queue, made = queue_of(1)
    take_all(queue)
    assert queue.judge(made[0], ErrorCode.duplicate_sequence_number) is Verdict.DUPLICATE


def test_retries_end() -> None:
    queue, made = queue_of(1, retries=1)
    take_all(queue)
    assert queue.judge(made[0], ErrorCode.not_leader_or_follower) is Verdict.RETRY
    queue.retry(made[0], ErrorCode.not_leader_or_follower)
    take_all(queue)
    assert queue.judge(made[0], ErrorCode.not_leader_or_follower) is Verdict.FAIL


def test_expiry_names_the_late_ones_first_those_in_flight() -> None:
    queue, made = queue_of(7)
    take_all(queue)
    assert queue.expired(1005) == made[:6]


def test_sequences_wrap_to_zero() -> None:
    assert after(2**31 - 1, 1) == 0 and after(0, -1) == 2**31 - 1
    queue, made = queue_of(2)
    queue.identity, queue.next_sequence = IDENTITY, 2**31 - 1
    assert [b.stamp[2] for b in take_all(queue)] == [2**31 - 1, 1]
    queue.check()
    assert made[0].stamp[2] == 2**31 - 1


class Leader:
    """Keeps a log and Kafka's rule for sequences: the next one is appended, one of the last five is a duplicate, else out of order.

    Whatever comes first from a producer that it does not know is appended.
    """

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.epoch = 0
        self.next_sequence: int | None = None
        self.recent: list[int] = []

    def produce(self, batch: ProducerBatch) -> ErrorCode:
        view = BatchView(batch.stamped_bytes())
        assert view.has_valid_crc()
        if view.producer_epoch < self.epoch:
            return ErrorCode.invalid_producer_epoch
        if view.producer_epoch > self.epoch:
            if view.base_sequence != 0:
                return ErrorCode.out_of_order_sequence_number
            self.epoch, self.next_sequence, self.recent = view.producer_epoch, 0, []
        if view.base_sequence in self.recent:
            return ErrorCode.none
        if self.next_sequence not in (None, view.base_sequence):
            return ErrorCode.out_of_order_sequence_number
        self.recent = [*self.recent, view.base_sequence][-5:]
        self.next_sequence = after(view.base_sequence, view.record_count)
        self.log += [value for value in decode_values(view) if value is not None]
        return ErrorCode.none


@pytest.mark.parametrize("seed", range(60))
def test_whatever_is_lost_on_the_way_nothing_is_stored_twice_or_out_of_order(seed: int) -> None:
    chance = random.Random(seed)
    queue, made = queue_of(12, records=chance.randint(1, 4))
    queue._is_known = False
    leader = Leader()
    away: list[tuple[ProducerBatch, ErrorCode]] = []
    failed: set[ProducerBatch] = set()
    refused: set[ProducerBatch] = set()
    too_large = {each for each in made if each.record_count > 1 and chance.random() < 0.1}
    poison = {each for each in made if chance.random() < 0.08}

    def fail(batch: ProducerBatch) -> None:
        if not batch.done:
            failed.add(batch)
            batch.fail(RaylogError("given up"))

    def root(batch: ProducerBatch) -> ProducerBatch:
        return batch if batch.parent is None else root(batch.parent)

    def judged(batch: ProducerBatch) -> ErrorCode:
        if batch in too_large:
            return ErrorCode.message_too_large
        return ErrorCode.invalid_record if root(batch) in poison else leader.produce(batch)

    for step in range(2000):
        if queue.idle:
            break
        if chance.random() < 0.5 and queue.sendable(step) is not None:
            batch = queue.take(queue.identity or IDENTITY)
            fate = chance.random() if step < 1000 else 1.0
            if fate < 0.1:
                code = ErrorCode.network_exception  # the request was lost
            elif fate < 0.2:
                judged(batch)
                code = ErrorCode.network_exception  # the answer was lost
            elif fate < 0.25:
                code = ErrorCode.not_leader_or_follower
            elif fate < 0.35 and judged(batch) is ErrorCode.none:  # appended, and then the leader had to go
                code = chance.choice((ErrorCode.not_leader_or_follower, ErrorCode.kafka_storage_error))
            else:
                code = judged(batch)
            away.append((batch, code))
        elif away:
            batch, code = away.pop(0)
            if code is ErrorCode.none:
                queue.acknowledged(batch)
                if not batch.done:
                    batch.succeed(0, -1)
            else:
                match queue.judge(batch, code):
                    case Verdict.RETRY:
                        queue.retry(batch, code)
                    case Verdict.SPLIT:
                        queue.split(batch)
                    case Verdict.FAIL:
                        refused.add(batch)
                        queue.give_up(batch)
                        fail(batch)
                    case Verdict.DUPLICATE:
                        raise AssertionError("this leader gives none")
        elif step < 1000 and queue.pending and chance.random() < 0.05:
            late = queue.pending[0]
            queue.give_up(late)
            fail(late)
        for lost in queue.pop_lost():
            fail(lost)
        queue.check()
        if queue.needs_identity:
            raise AssertionError("an epoch was lost")
    assert queue.idle, f"seed {seed}: no progress"
    assert len(set(leader.log)) == len(leader.log), f"seed {seed}: stored twice"
    order = [tuple(map(int, value.split(b"/"))) for value in leader.log]
    assert order == sorted(order), f"seed {seed}: out of order"
    stored = set(leader.log)
    for number, each in enumerate(made):
        if all(leaf.error is None for leaf in each.leaves()):
            assert {b"%d/%d" % (number, index) for index in range(each.record_count)} <= stored, (
                f"seed {seed}: acknowledged and lost"
            )


# ------------------------------------------------------------------ in transactions


def transactional_queue(count: int) -> tuple[PartitionQueue, list[ProducerBatch]]:
    queue = PartitionQueue("t", 0, max_in_flight=5, retries=100, is_transactional=True)
    made = [batch(number) for number in range(count)]
    queue.begin(IDENTITY)
    for each in made:
        queue.append(each)
    return queue, made


def after_a_transaction(*, given_up: bool = False) -> PartitionQueue:
    """Idle, behind a first transaction of two batches, the second of which failed it if ``given_up``."""
    queue, made = transactional_queue(2)
    assert [b.stamp for b in take_all(queue)] == [(7, 0, 0)]
    queue.acknowledged(made[0])
    assert [b.stamp for b in take_all(queue)] == [(7, 0, 2)]
    (queue.give_up if given_up else queue.acknowledged)(made[1])
    return queue


def stamps_of_two_more(queue: PartitionQueue, identity: ProducerIdentity) -> list[tuple[int, int, int]]:
    """Of the batches of the next transaction that go at once."""
    queue.begin(identity)
    for number in range(2):
        queue.append(batch(number))
    return [each.stamp for each in take_all(queue)]


def test_a_producers_next_transaction_begins_with_sequence_0_under_its_epoch_and_as_wide_as_ever() -> None:
    """The leader knows the producer, so it takes nothing but sequence 0 as the first of an epoch."""
    assert stamps_of_two_more(after_a_transaction(), ProducerIdentity(7, 1)) == [(7, 1, 0), (7, 1, 2)]


def test_a_transaction_under_another_producer_id_begins_with_one_batch() -> None:
    assert stamps_of_two_more(after_a_transaction(), ProducerIdentity(8, 0)) == [(8, 0, 0)]


def test_a_transaction_after_one_that_failed_begins_with_one_batch() -> None:
    """The leader may have said that it does not know the producer."""
    assert stamps_of_two_more(after_a_transaction(given_up=True), ProducerIdentity(7, 1)) == [(7, 1, 0)]


def test_a_transaction_after_a_long_silence_begins_with_one_batch() -> None:
    queue = after_a_transaction()
    queue.begin(ProducerIdentity(7, 1))
    for number in range(2):
        queue.append(batch(number))
    assert [each.stamp for each in take_all(queue, 2 * KNOWN_FOR_MS)] == [(7, 1, 0)]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.invalid_producer_epoch,
        ErrorCode.producer_fenced,
        ErrorCode.unknown_producer_id,
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.invalid_txn_state,
        ErrorCode.transaction_abortable,
    ],
)
def test_what_would_raise_the_epoch_fails_the_transaction_instead(code: ErrorCode) -> None:
    queue, made = transactional_queue(1)
    take_all(queue)
    assert queue.judge(made[0], code) is Verdict.FAIL
    queue.give_up(made[0])
    assert queue.idle and queue.identity == IDENTITY and not queue.needs_identity


def test_the_echo_of_an_earlier_failure_is_tried_again_in_a_transaction_too() -> None:
    queue, made = transactional_queue(3)
    queue._is_known = True
    take_all(queue)
    assert queue.judge(made[1], ErrorCode.out_of_order_sequence_number) is Verdict.RETRY
    assert queue.judge(made[0], ErrorCode.not_enough_replicas) is Verdict.RETRY
