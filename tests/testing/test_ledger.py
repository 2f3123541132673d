"""The audit of a verifiable load finds every kind of breach, and nothing else."""

from __future__ import annotations

import pytest

from raylog.testing.ledger import Audit, Findings, LoadLedger, key_of, value_of

Log = list[tuple[int, int, bytes, bytes]]
KEYS = 4


def record(producer: int, sequence: int, run: int = 1) -> tuple[bytes, bytes]:
    key = key_of(producer, sequence, KEYS)
    return key, value_of(run, producer, sequence, key, value_bytes=60)


@pytest.fixture
def ledger() -> LoadLedger:
    """Two producers, eight records each, all acknowledged: producer p in partition p, at the offset of its sequence."""
    ledger = LoadLedger(run=1, producers=2, keys=KEYS)
    for producer in range(2):
        sequences = ledger.take(producer, 8)
        ledger.acknowledge(producer, sequences, [(producer, sequence) for sequence in sequences], at=1.0)
    return ledger


@pytest.fixture
def log() -> Log:
    return [(producer, sequence, *record(producer, sequence)) for producer in range(2) for sequence in range(8)]


def audited(ledger: LoadLedger, log: Log) -> Findings:
    audit = Audit(ledger)
    for each in log:
        audit.take(*each)
    return audit.finish()


def test_a_log_that_kept_its_word_holds(ledger: LoadLedger, log: Log) -> None:
    findings = audited(ledger, log)
    assert findings.holds and (findings.read, findings.acknowledged) == (16, 16)
    assert "Read 16 records" in findings.words() and "All of it holds" in findings.words()


def test_a_lost_record_is_found_and_named(ledger: LoadLedger, log: Log) -> None:
    findings = audited(ledger, [each for each in log if each[:2] != (1, 3)])
    assert (findings.lost, findings.broken) == (1, 1)
    assert "record 3 of producer 1, acknowledged at partition 1 offset 3, is not there" in findings.words()


def test_a_record_lost_at_the_very_end_is_found(ledger: LoadLedger, log: Log) -> None:
    assert audited(ledger, log[:-1]).lost == 1


def test_a_record_that_is_there_twice_is_found(ledger: LoadLedger, log: Log) -> None:
    findings = audited(ledger, [*log, (1, 8, *record(1, 2))])
    assert (findings.duplicated, findings.broken) == (1, 1)
    assert "partition 1 offset 8: record 2 of producer 1 is at partition 1 offset 2 already" in findings.words()


def test_records_of_a_key_that_changed_places_are_found(ledger: LoadLedger, log: Log) -> None:
    swapped = [(p, o, *record(p, {1: 5, 5: 1}.get(o, o) if p == 0 else o)) for p, o, _, _ in log]
    findings = audited(ledger, swapped)
    assert (findings.disordered, findings.misplaced, findings.lost) == (1, 2, 0)


def test_a_key_in_two_partitions_is_found(ledger: LoadLedger, log: Log) -> None:
    findings = audited(ledger, [*(each for each in log if each[:2] != (0, 6)), (1, 8, *record(0, 6))])
    assert (findings.disordered, findings.misplaced) == (1, 1)


def test_a_changed_byte_is_found(ledger: LoadLedger, log: Log) -> None:
    partition, offset, key, value = log[4]
    log[4] = (partition, offset, key, value[:30] + bytes([value[30] ^ 1]) + value[31:])
    findings = audited(ledger, log)
    assert (findings.altered, findings.lost) == (1, 1)
    assert "wrong checksum" in findings.words()


def test_a_record_that_nobody_sent_is_found(ledger: LoadLedger, log: Log) -> None:
    assert audited(ledger, [*log, (0, 8, *record(0, 8))]).unknown == 1


def test_open_and_failed_records_may_be_there_or_not_and_other_runs_are_left_alone(log: Log) -> None:
    ledger = LoadLedger(run=1, producers=2, keys=KEYS)
    for producer in range(2):
        ledger.take(producer, 8)
    ledger.fail(0, range(4), "timed out")
    findings = audited(ledger, [*log[2:10], (1, 8, *record(1, 0, run=2))])
    assert findings.holds and (findings.unacknowledged_there, findings.foreign, ledger.failed) == (8, 1, 4)


def test_an_audit_in_portions_finds_a_loss_as_soon_as_it_has_passed_it(ledger: LoadLedger, log: Log) -> None:
    audit = Audit(ledger)
    for each in log[:3]:
        audit.take(*each)
    assert audit.settle() == 0
    for each in log[4:8]:
        audit.take(*each)
    assert audit.settle() == 1
    for each in log[8:]:
        audit.take(*each)
    assert (audit.settle(), audit.finish().lost) == (0, 1)


def test_a_duplicate_whose_place_was_forgotten_has_to_be_somewhere(ledger: LoadLedger, log: Log) -> None:
    sequences = ledger.take(0, 2)
    ledger.acknowledge(0, sequences, [(0, -1), (0, -1)], at=2.0)
    assert audited(ledger, [*log, (0, 8, *record(0, 8))]).lost == 1


def test_the_longest_pause_is_the_worst_partitions() -> None:
    ledger = LoadLedger(run=1, producers=1, keys=1)
    for at, partition in [(0.0, 0), (0.1, 1), (0.2, 0), (1.2, 0), (1.3, 1), (1.4, 0), (1.4, 1)]:
        ledger.acknowledge(0, ledger.take(0, 1), [(partition, 0)], at)
    assert ledger.longest_pause(0.0, 1.4) == pytest.approx(1.2)
    assert ledger.longest_pause(1.35, 1.4) == pytest.approx(0.2)
    assert ledger.longest_pause(1.3, 3.0) == pytest.approx(1.6)  # silent until the end


def test_a_pause_belongs_to_the_time_in_which_it_begins() -> None:
    ledger = LoadLedger(run=1, producers=1, keys=1)
    for at, partition in [(0.0, 0), (0.1, 0), (0.5, 1), (0.6, 1), (2.1, 0), (2.2, 0), (2.9, 1)]:
        ledger.acknowledge(0, ledger.take(0, 1), [(partition, 0)], at)
    assert ledger.longest_pause_begun(0.0, 0.1) == pytest.approx(0.1)
    assert ledger.longest_pause_begun(0.05, 0.2) == pytest.approx(2.0)
    assert ledger.longest_pause_begun(0.2, 3.0) == pytest.approx(2.3)
    assert ledger.longest_pause_begun(2.0, 3.0) == pytest.approx(0.1)
