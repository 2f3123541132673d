"""What a leader finds wrong with the records of a batch, what it says of each, and how little hostile batches cost it."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from raylog.errors import RecordError, kafka_error
from raylog.log.config import LogConfig
from raylog.log.record_validation import INFLATED_SHARE, checked, own_batch, sound_batch, storable, takes_long
from raylog.log.validation import validated
from raylog.records import kernel, pure
from raylog.records.batch import BatchView, TimestampType, assemble, batches
from raylog.records.codec import decode, encode, encode_values
from raylog.records.compression import Compression, compress

CODECS = [codec for codec in Compression if codec is not Compression.NONE]
GOOD = pure.encode_record(0, 0, b"k", b"v", ())


def batch_of(records: bytes, count: int, codec: int = 0, *, last_offset_delta: int | None = None) -> bytes:
    """A batch with a valid CRC around whatever the records are."""
    return assemble(
        compress(codec, records), record_count=count, base_timestamp=0, max_timestamp=0, attributes=codec,
        last_offset_delta=count - 1 if last_offset_delta is None else last_offset_delta,
    )  # fmt: skip


def refused(machine: Any, batch: bytes, code: ErrorCode, match: str | None = None) -> tuple[RecordError, ...]:
    """Which records the leader names when it refuses the batch."""
    end = machine.log.log_end_offset
    with pytest.raises(kafka_error(code), match=match) as caught:
        machine.log.append_as_leader(batch, leader_epoch=0, wall_ms=machine.wall_ms)
    assert machine.log.log_end_offset == end
    return caught.value.record_errors


BROKEN = {
    "garbage": (b"\xff" * 50, 1, 0),
    "bytes behind the last record": (GOOD + b"\x00", 1, None),
    "a record of another length": (b"\x18" + GOOD[1:], 1, 0),
    "an offset delta behind the batch": (GOOD + pure.encode_record(0, 7, b"k", b"v", ()), 2, 1),
    "one offset delta twice": (GOOD + GOOD, 2, 1),
    "more records than bytes": (GOOD, 1_000, 0),
    "a header without a key": (b"\x16\x00\x00\x00\x02k\x02v\x02\x01\x01", 1, 0),
}


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("records, count, index", BROKEN.values(), ids=BROKEN)
def test_records_that_break_the_format_are_refused(
    machine: Any, records: bytes, count: int, index: int | None, codec: Compression
) -> None:
    """Compressed ones where the topic makes the server look into them."""
    machine.open(compacts=codec is not Compression.NONE)
    errors = refused(machine, batch_of(records, count, codec), ErrorCode.invalid_record, "t-0: record . of the batch")
    assert [error.index for error in errors] == ([] if index is None else [index])


@pytest.mark.parametrize("codec", CODECS)
def test_a_codec_that_fails_under_a_valid_crc_is_no_reason_to_send_again(machine: Any, codec: Compression) -> None:
    machine.open(compacts=True)
    cut = compress(codec, GOOD * 100)[:-9]
    batch = assemble(cut, record_count=1, last_offset_delta=0, base_timestamp=0, max_timestamp=0, attributes=int(codec))
    refused(machine, batch, ErrorCode.invalid_record, "cannot be inflated")
    assert not ErrorCode.invalid_record.retriable


def test_a_compressed_batch_is_stored_as_it_came_where_the_topic_gives_no_reason_to_inflate_it(machine: Any) -> None:
    log = machine.open(timestamp_after_max_ms=1_000)
    batch = batch_of(b"not one record" * 50, 3, Compression.ZSTD)
    log.append_as_leader(batch, leader_epoch=0, wall_ms=1)
    assert bytes(log.read(0, 1 << 20).records)[16:] == batch[16:]


@pytest.mark.parametrize("codec", Compression)
def test_records_that_the_topic_does_not_take_are_named(machine: Any, codec: Compression) -> None:
    machine.wall_ms = 10_000
    machine.open(compacts=True, timestamp_before_max_ms=1_000, timestamp_after_max_ms=500)
    good, keyless = (9_500, b"k", b"v" * 99, ()), (9_500, None, b"v" * 99, ())
    batch = encode([good, keyless, good, good, keyless], compression=codec)
    keyless_errors = refused(
        machine, batch, ErrorCode.invalid_record, "2 of 5 records are refused: record 1: a compacted"
    )
    assert [error.index for error in keyless_errors] == [1, 4]
    late, early = (8_999, b"k", b"v" * 99, ()), (10_501, b"k", b"v" * 99, ())
    batch = encode([keyless, late, good, early], compression=codec)
    errors = refused(machine, batch, ErrorCode.invalid_timestamp)
    assert [error.index for error in errors] == [0, 1, 3]
    assert "without a key" in errors[0].message
    assert "8999 is more than message.timestamp.before.max.ms=1000 behind" in errors[1].message
    assert "10501 is more than message.timestamp.after.max.ms=500 ahead" in errors[2].message
    several = encode([good], compression=codec) + encode([good, keyless], compression=codec)
    assert [error.index for error in refused(machine, several, ErrorCode.invalid_record)] == [2]


def test_a_record_without_a_timestamp_is_within_any_bounds(machine: Any) -> None:
    machine.wall_ms = 10_000
    machine.open(timestamp_before_max_ms=1_000, timestamp_after_max_ms=500)
    machine.log.append_as_leader(encode_values([b"a"], timestamp_ms=-1), leader_epoch=0, wall_ms=machine.wall_ms)


def test_a_header_may_not_hide_a_timestamp_nor_make_one_up(machine: Any) -> None:
    machine.wall_ms = 10_000
    machine.open(timestamp_after_max_ms=500)
    record = pure.encode_record(20_000, 0, None, b"v", ())
    hidden = assemble(record, record_count=1, last_offset_delta=0, base_timestamp=0, max_timestamp=9_000)
    assert [error.index for error in refused(machine, hidden, ErrorCode.invalid_timestamp)] == [0]
    made_up = assemble(GOOD, record_count=1, last_offset_delta=0, base_timestamp=9_000, max_timestamp=20_000)
    assert refused(machine, made_up, ErrorCode.invalid_timestamp, "greatest timestamp 20000") == ()


@pytest.mark.parametrize("has_kernel", [True, False])
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_a_batch_whose_header_names_too_small_a_timestamp_is_found_by_time(
    machine: Any, monkeypatch: pytest.MonkeyPatch, codec: Compression, has_kernel: bool
) -> None:
    """Kafka computes the greatest timestamp anew, too. A compressed batch is looked into where the topic gives a reason."""
    if not has_kernel:
        monkeypatch.setattr(kernel, "loaded", lambda: None)
    log = machine.open(compacts=codec is not Compression.NONE)
    records = b"".join(pure.encode_record(time, index, b"k", b"v", ()) for index, time in enumerate((5, 70, 30)))
    log.append_as_leader(batch_of(records, 3, codec), leader_epoch=0, wall_ms=machine.wall_ms)
    assert log.offset_for_timestamp(31) == log.largest_timestamp() == (70, 1, 0)
    stored = next(batches(log.read(0, 1 << 20).records))
    assert stored.max_timestamp == 70 and stored.has_valid_crc() and len(decode(stored)) == 3
    right = encode([(5, b"k", b"v", ()), (4, b"k", b"v", ())])
    log.append_as_leader(right, leader_epoch=0, wall_ms=machine.wall_ms)
    assert bytes(log.read(3, 1 << 20).records)[16:] == right[16:], "a right one is stored as it came"


# ------------------------------------------------------------------ what hostile batches cost

BOMB = {
    "compaction": {"compacts": True},
    "the age of timestamps": {"timestamp_before_max_ms": 1 << 50},
    "the topic's codec": {"compression": Compression.LZ4},
}


@pytest.mark.parametrize("config", BOMB.values(), ids=BOMB)
@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.ZSTD])
def test_a_batch_inflates_to_a_multiple_of_max_message_bytes_at_most(
    machine: Any, codec: Compression, config: dict[str, Any]
) -> None:
    machine.open(max_message_bytes=100_000, **config)
    bomb = batch_of(bytes(30 << 20), 1, codec)
    assert len(bomb) < 100_000
    tracemalloc.start()
    try:
        errors = refused(machine, bomb, ErrorCode.message_too_large, "inflates to more than 3200000, 32 times")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert errors == () and peak < 3 * INFLATED_SHARE * 100_000, f"{peak} bytes"


@pytest.mark.parametrize("loaded", [kernel.loaded(), None], ids=["kernel", "python"])
def test_a_multitude_of_records_costs_no_object_each(
    machine: Any, loaded: kernel.Kernel | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "loaded", lambda: loaded)
    count = 100_000 if loaded is not None else 10_000
    records = b"".join(pure.encode_record(0, index, None, b"", ()) for index in range(count))
    machine.open(max_message_bytes=100_000, compacts=True)
    batch = batch_of(records, count, Compression.ZSTD)
    assert len(batch) < 100_000
    tracemalloc.start()
    try:
        errors = refused(
            machine, batch, ErrorCode.invalid_record, f"{count} of {count} records .* and {count - 3} more"
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(errors) == 1_000 and peak < 3 * len(records) + (1 << 20), f"{peak} bytes for {len(records)}"


# ------------------------------------------------------------------ in a thread


def _judged(batch: bytes, config: LogConfig) -> Any:
    return checked(batch, config=config, wall_ms=0, where="t-0")


def test_a_verdict_from_a_thread_counts_while_the_configuration_stays(machine: Any) -> None:
    log = machine.open(compression=Compression.ZSTD)
    values = [b"abc" * 50] * 20
    batch = encode_values(values, timestamp_ms=1)
    verdict = _judged(batch, log.config)
    log.append_as_leader(batch, leader_epoch=0, wall_ms=1, checked=verdict)
    (stored,) = batches(log.read(0, 1 << 20).records)
    assert stored.compression == Compression.ZSTD and [record.value for record in decode(stored)] == values
    log.config = replace(log.config, compacts=True)
    with pytest.raises(kafka_error(ErrorCode.invalid_record), match="without a key"):
        log.append_as_leader(batch, leader_epoch=0, wall_ms=1, checked=verdict)
    keyless = _judged(batch, log.config)
    with pytest.raises(kafka_error(ErrorCode.invalid_record)) as caught:
        log.append_as_leader(batch, leader_epoch=0, wall_ms=1, checked=keyless)
    assert len(caught.value.record_errors) == 20


def test_a_verdict_from_a_thread_is_stamped_with_the_time_of_the_append(machine: Any) -> None:
    log = machine.open(timestamp_type=TimestampType.LOG_APPEND_TIME, compression=Compression.LZ4)
    batch = encode_values([b"v" * 99] * 20, timestamp_ms=1)
    verdict = _judged(batch, log.config)
    assert log.append_as_leader(batch, leader_epoch=0, wall_ms=777, checked=verdict).log_append_time_ms == 777
    (stored,) = batches(log.read(0, 1 << 20).records)
    assert stored.has_valid_crc() and stored.max_timestamp == 777


def test_a_repeat_is_known_whatever_a_thread_has_said_of_it(machine: Any) -> None:
    log = machine.open()
    batch = bytes(encode_values([b"v"], timestamp_ms=1, producer_id=5, producer_epoch=0, base_sequence=0))
    log.append_as_leader(batch, leader_epoch=0, wall_ms=1)
    log.config = replace(log.config, compacts=True)
    again = log.append_as_leader(batch, leader_epoch=0, wall_ms=1, checked=_judged(batch, log.config))
    assert again.duplicate and again.base_offset == 0
    assert log.append_as_leader(batch, leader_epoch=0, wall_ms=1).duplicate


def test_what_takes_long_is_known_before_it_is_done() -> None:
    plain, compacted = LogConfig(max_message_bytes=8 << 20), LogConfig(compacts=True)
    small, large = encode_values([b"v"], timestamp_ms=1), encode_values([b"v" * 1000] * 1000, timestamp_ms=1)
    huge = encode_values([b"v" * 1000] * 3000, timestamp_ms=1)
    bomb = batch_of(bytes(1 << 20), 1, Compression.ZSTD)
    packed = batch_of(bytes(range(256)) * 100, 1, Compression.GZIP)
    verdicts = {
        (name, kind): takes_long(batch, config, 0)
        for kind, config in {
            "plain": plain,
            "compacted": compacted,
            "recompressed": LogConfig(compression=Compression.ZSTD),
            "bounded": LogConfig(timestamp_before_max_ms=1),
        }.items()
        for name, batch in {"small": small, "large": large, "huge": huge, "bomb": bomb, "packed": packed}.items()
    }
    assert {place for place, verdict in verdicts.items() if verdict} == {
        *(("huge", kind) for kind in ("plain", "compacted", "recompressed", "bounded")),
        ("large", "recompressed"),
        ("bomb", "compacted"),
        ("bomb", "bounded"),
    }
    assert not takes_long(b"no batch", compacted, 0) and not takes_long(b"", plain, 0)
    assert not takes_long(BatchView(small).data, plain, 0)


# ------------------------------------------------------------------ the way of most batches

needs_kernel = pytest.mark.skipif(kernel.loaded() is None, reason="no C kernel here: every batch is looked at closely")
WALL_MS = 10_000
SOUND = encode([(9_000, b"k", b"v" * 20, (("h", b"1"),)), (9_500, None, None, ()), (-1, b"", b"", ())])


def closely(batch: bytes, config: LogConfig) -> list[BatchView]:
    views = validated(batch, config=config, where="t-0")
    return list(storable(views, None, config=config, wall_ms=WALL_MS, where="t-0"))


def patched(position: int, content: bytes, batch: bytes = SOUND) -> bytes:
    """The batch with other bytes in its header, and the checksum that fits them."""
    changed = bytearray(batch)
    changed[position : position + len(content)] = content
    changed[17:21] = crc32c(bytes(changed[21:])).to_bytes(4, "big")
    return bytes(changed)


@needs_kernel
def test_what_is_sound_at_a_look_is_what_passes_a_close_one_unchanged() -> None:
    """Bytes are broken anywhere, mostly under a checksum that fits: nothing is sound that was refused, or stored in another way."""
    rng = random.Random(5)
    configs = (LogConfig(), LogConfig(timestamp_after_max_ms=0), LogConfig(max_message_bytes=len(SOUND)))
    sound = unsound = 0
    for _ in range(20_000):
        batch = SOUND
        for _ in range(rng.choice((0, 1, 1, 1, 2))):
            batch = patched(rng.randrange(len(SOUND)), rng.randbytes(rng.choice((1, 1, 2, 4))), batch)
        if rng.random() < 0.1:
            batch = batch[: rng.randrange(len(batch))] if rng.random() < 0.5 else batch + rng.randbytes(9)
        config = rng.choice(configs)
        found = sound_batch(batch, config, WALL_MS)
        if found is None:
            unsound += 1
            continue
        sound += 1
        (stored,) = closely(batch, config)
        assert found.data == stored.data == batch, batch.hex()
    assert sound > 2_000 and unsound > 2_000, (sound, unsound)


UNUSUAL = {
    "several batches": (SOUND + SOUND, {}),
    "compressed": (encode([(0, b"k", b"v" * 99, ())], compression=Compression.LZ4), {}),
    "a transaction": (patched(22, b"\x10"), {}),
    "a control batch": (patched(22, b"\x20"), {}),
    "the server's timestamps": (patched(22, b"\x08"), {}),
    "another checksum": (SOUND[:-1] + b"\x01", {}),
    "an old format": (patched(16, b"\x01"), {}),
    "another number of records": (patched(57, (2).to_bytes(4, "big")), {}),
    "another last offset": (patched(23, (3).to_bytes(4, "big")), {}),
    "a greatest timestamp that is too small": (patched(35, (9_499).to_bytes(8, "big")), {}),
    "a greatest timestamp that no record has, too new": (
        patched(35, (WALL_MS + 501).to_bytes(8, "big")), {"timestamp_after_max_ms": 500},
    ),
    "a producer without a sequence": (patched(43, (7).to_bytes(8, "big") + b"\x00\x00"), {}),
    "a producer without an epoch": (patched(43, (7).to_bytes(8, "big") + b"\xff\xff" + bytes(4)), {}),
    "cut off": (SOUND[:-1], {}),
    "too large for the topic": (SOUND, {"max_message_bytes": len(SOUND) - 1}),
    "a topic that needs keys": (SOUND, {"compacts": True}),
    "a topic with a codec": (SOUND, {"compression": Compression.ZSTD}),
    "a topic with timestamps of its own": (SOUND, {"timestamp_type": TimestampType.LOG_APPEND_TIME}),
    "a topic that takes nothing old": (SOUND, {"timestamp_before_max_ms": 1}),
    "a topic that takes nothing new": (SOUND, {"timestamp_after_max_ms": -501}),
}  # fmt: skip


@pytest.mark.parametrize("batch, configs", UNUSUAL.values(), ids=UNUSUAL)
def test_what_is_unusual_is_looked_at_closely(batch: bytes, configs: dict[str, Any]) -> None:
    assert sound_batch(batch, LogConfig(**configs), WALL_MS) is None


@needs_kernel
@pytest.mark.parametrize("configs", [{}, {"timestamp_after_max_ms": 0}, {"max_message_bytes": len(SOUND)}])
def test_a_usual_batch_takes_one_look(configs: dict[str, Any]) -> None:
    found = sound_batch(SOUND, LogConfig(**configs), WALL_MS)
    assert found is not None and found.data == SOUND


def test_a_sound_batch_is_appended_as_any_other(machine: Any) -> None:
    log = machine.open()
    sound = log.append_as_leader(SOUND, leader_epoch=3, wall_ms=WALL_MS)
    closely_looked_at = log.append_as_leader(bytearray(SOUND), leader_epoch=3, wall_ms=WALL_MS)
    assert (sound.base_offset, closely_looked_at.base_offset) == (0, 3)
    first, second = batches(bytes(log.read(0, 1 << 20, at_least_one=True).records))
    assert first.data[16:] == second.data[16:] == SOUND[16:] and first.partition_leader_epoch == 3


OWN = encode([(9_000, b"k", b"v" * 20, ()), (9_500, b"l", None, ())])


@pytest.mark.parametrize(
    ("own", "configs"),
    [
        (OWN, {"compression": Compression.GZIP}),
        (OWN, {"timestamp_type": TimestampType.LOG_APPEND_TIME}),
        (OWN, {"max_message_bytes": len(OWN) - 1}),
        (encode([(0, b"k", b"", ())], producer_id=4, producer_epoch=0, base_sequence=0, is_transactional=True), {}),
        (OWN + OWN, {}),
    ],
    ids=["another codec", "another time", "too large", "in a transaction", "two"],
)
def test_a_coordinators_batch_that_is_not_stored_as_it_is_takes_a_close_look(
    own: bytes, configs: dict[str, Any]
) -> None:
    assert own_batch(OWN, LogConfig(compacts=True, max_message_bytes=len(OWN))) is not None
    assert own_batch(own, LogConfig(**configs)) is None


def test_a_coordinators_batch_is_appended_as_any_other(machine: Any) -> None:
    log = machine.open()
    as_it_is = log.append_as_leader(OWN, leader_epoch=3, wall_ms=WALL_MS, from_coordinator=True)
    closely_looked_at = log.append_as_leader(bytearray(OWN), leader_epoch=3, wall_ms=WALL_MS, from_coordinator=True)
    assert (as_it_is.last_offset, closely_looked_at.base_offset, log.log_end_offset) == (1, 2, 4)
    first, second = batches(bytes(log.read(0, 1 << 20, at_least_one=True).records))
    assert first.data[16:] == second.data[16:] == OWN[16:] and first.partition_leader_epoch == 3
