"""The ends of transactions as a leader appends them: once, in the order of epochs; and what may be appended to which transaction."""

from __future__ import annotations

import random
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from raylog.errors import kafka_error
from raylog.log.markers import EPOCH_MAX, TransactionEnd, append_marker, is_repeated
from raylog.records.batch import batches
from raylog.records.codec import encode_values
from raylog.records.control import Marker, read_control_batch

PRODUCER = 3
Fenced = kafka_error(ErrorCode.transaction_coordinator_fenced)
OldEpoch = kafka_error(ErrorCode.invalid_producer_epoch)
NotOpen = kafka_error(ErrorCode.invalid_txn_state)


def data(sequence: int, epoch: int = 0, *, transactional: bool = True) -> bytes:
    return bytes(
        encode_values(
            [b"v"],
            timestamp_ms=1,
            producer_id=PRODUCER,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=transactional,
        )
    )


def write(machine: Any, sequence: int, epoch: int = 0, *, confirmed: bool = False, transactional: bool = True) -> Any:
    return machine.log.append_as_leader(
        data(sequence, epoch, transactional=transactional),
        leader_epoch=0,
        wall_ms=1,
        confirmed={PRODUCER} if confirmed else (),
    )


def end(
    machine: Any, epoch: int = 0, coordinator_epoch: int = 0, marker: Marker = Marker.COMMIT, version: int = 1
) -> bool:
    """Whether it was appended."""
    what = TransactionEnd(PRODUCER, epoch, coordinator_epoch, marker, version)
    if is_repeated(machine.log, what):
        return False
    append_marker(machine.log, what, leader_epoch=0, wall_ms=1)
    machine.log.check()
    return True


def markers(machine: Any) -> list[tuple[int, int, int, Marker | None]]:
    """(offset, producer epoch, coordinator epoch, marker)"""
    found, offset, log = [], 0, machine.log
    while offset < log.log_end_offset:
        for view in batches(log.read(offset, 1 << 20).records):
            if view.is_control:
                each = read_control_batch(view)
                found.append((each.offset, each.producer_epoch, each.coordinator_epoch, each.marker))
            offset = view.next_offset
    return found


def test_a_transaction_begins_with_its_coordinators_leave_and_goes_on_without(machine: Any) -> None:
    machine.open()
    with pytest.raises(NotOpen):
        write(machine, 0)
    write(machine, 0, confirmed=True)
    write(machine, 1)
    assert end(machine)
    with pytest.raises(NotOpen):
        write(machine, 2)
    assert machine.log.log_end_offset == 3


def test_a_repeat_of_a_batch_of_an_ended_transaction_is_one(machine: Any) -> None:
    machine.open()
    write(machine, 0, confirmed=True)
    end(machine)
    assert write(machine, 0).duplicate


def test_a_batch_outside_of_the_transaction_is_refused_while_it_is_open(machine: Any) -> None:
    machine.open()
    write(machine, 0, confirmed=True)
    with pytest.raises(NotOpen, match="does not belong"):
        write(machine, 1, transactional=False)
    end(machine)
    write(machine, 1, transactional=False)


def test_a_transaction_of_another_epoch_is_another_one(machine: Any) -> None:
    machine.open()
    write(machine, 0, epoch=1, confirmed=True)
    with pytest.raises(NotOpen):
        write(machine, 0, epoch=2)
    with pytest.raises(OldEpoch):
        write(machine, 1, epoch=0, confirmed=True)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_marker_is_appended_once(machine: Any, version: int) -> None:
    machine.open()
    write(machine, 0, confirmed=True)
    epoch = 1 if version == 2 else 0
    assert end(machine, epoch, version=version)
    assert not end(machine, epoch, version=version)
    machine.reopen()
    assert not end(machine, epoch, version=version)
    machine.recover()
    assert not end(machine, epoch, version=version)
    assert markers(machine) == [(1, epoch, 0, Marker.COMMIT)]


def test_the_next_transaction_of_the_same_epochs_gets_a_marker_of_its_own(machine: Any) -> None:
    machine.open()
    for number in range(3):
        write(machine, number, confirmed=True)
        assert end(machine)
    assert len(markers(machine)) == 3


def test_a_marker_without_a_transaction_keeps_older_epochs_out(machine: Any) -> None:
    """A partition that was added and got no record, or none yet."""
    machine.open()
    assert end(machine, epoch=5)
    with pytest.raises(OldEpoch):
        write(machine, 0, epoch=4, confirmed=True)
    assert machine.log.producers.first_open_transaction_offset is None


def test_a_coordinator_that_was_replaced_ends_nothing(machine: Any) -> None:
    machine.open()
    write(machine, 0, confirmed=True)
    assert end(machine, coordinator_epoch=7)
    write(machine, 1, confirmed=True)
    with pytest.raises(Fenced):
        end(machine, coordinator_epoch=6, marker=Marker.ABORT)
    assert machine.log.producers.first_open_transaction_offset == 2
    assert end(machine, coordinator_epoch=8)


def test_a_marker_of_an_older_instance_ends_nothing(machine: Any) -> None:
    machine.open()
    write(machine, 0, epoch=2, confirmed=True)
    with pytest.raises(OldEpoch):
        end(machine, epoch=1)
    assert machine.log.producers.first_open_transaction_offset == 0


def test_a_late_marker_of_the_former_transaction_does_not_end_the_next_one(machine: Any) -> None:
    """KAFKA-19999: but where none is open it is a repeat, and an error would keep the coordinator asking for ever."""
    machine.open()
    write(machine, 0, epoch=0, confirmed=True)
    assert end(machine, epoch=1, version=2)
    assert not end(machine, epoch=1, coordinator_epoch=1, version=2)
    write(machine, 0, epoch=1, confirmed=True)
    with pytest.raises(OldEpoch):
        end(machine, epoch=1, version=2)
    assert end(machine, epoch=2, version=2)


def test_a_producer_at_the_greatest_epoch_can_end_its_transaction(machine: Any) -> None:
    machine.open()
    write(machine, 0, epoch=EPOCH_MAX, confirmed=True)
    assert end(machine, epoch=EPOCH_MAX, version=2)


@pytest.mark.parametrize("seed", range(20))
def test_transactions_are_what_their_epochs_say_whatever_comes_late_or_twice(make_machine: Any, seed: int) -> None:
    """Against a list of what was open: with rising epochs no marker ends another transaction than its own."""
    chance = random.Random(seed)
    machine = make_machine()
    machine.open(segment_bytes=400)
    epoch, is_open, sequence = 0, False, 0
    sent: list[tuple[int, Marker]] = []
    for _ in range(80):
        match chance.choices(("write", "end", "late", "crash"), (4, 3, 4, 1))[0]:
            case "write":
                write(machine, sequence, epoch, confirmed=not is_open)
                is_open, sequence = True, sequence + 1
            case "end":
                marker = chance.choice(list(Marker))
                epoch, sequence = epoch + 1, 0
                assert end(machine, epoch, marker=marker, version=2)
                sent.append((epoch, marker))
                is_open = False
            case "late" if sent:
                late, marker = chance.choice(sent)
                before = machine.log.log_end_offset
                try:
                    assert not end(machine, late, marker=marker, version=2)
                    assert late == epoch and not is_open
                except OldEpoch:
                    assert late < epoch or is_open
                assert machine.log.log_end_offset == before
            case "crash":
                machine.recover()
        assert (machine.log.producers.first_open_transaction_offset is not None) == is_open
    assert [(at, marker) for _, at, _, marker in markers(machine)] == sent
