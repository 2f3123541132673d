"""What is answered at once is what the event would have been answered: a small append, and a fetch of what is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from raylog.records.codec import encode
from raylog.records.compression import Compression
from raylog.replication.context import HostConfig
from raylog.replication.events import (
    FetchPartition,
    FetchPartitionResult,
    FetchReceived,
    ProducePartition,
    ProducePartitionResult,
    ProduceReceived,
    ProduceReply,
)
from raylog.simulator.replica_hosts import P0, WALL_MS, Hosts, batch
from raylog.types import TopicIdPartition

TOKEN = 4_711
HOUR_MS = 3_600_000
CONFIGS: tuple[dict[str, str], ...] = (
    {},
    {"message.timestamp.type": "LogAppendTime"},
    {"message.timestamp.after.max.ms": "1000"},
    {"flush.messages": "1"},
    {"flush.messages": "3"},
    {"cleanup.policy": "compact"},
    {"compression.type": "gzip"},
    {"max.message.bytes": "200"},
    {"segment.bytes": "400"},
    {"segment.ms": "1"},
)


def hosts_of(isr: Sequence[int], min_isr: int, config: dict[str, str], host_config: HostConfig | None = None) -> Hosts:
    hosts = Hosts((1, 2, 3) if len(isr) > 1 else (1,), host_config)
    hosts.holds_flushes = True
    hosts.assign(1, isr, min_isr=min_isr, config={"segment.index.bytes": "4096", **config})
    return hosts


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """One batch, mostly a sound one: of a producer with sequence numbers or without, too large, too new, damaged, two in one."""
    count = draw(st.integers(1, 3))
    time_ms = draw(st.sampled_from([WALL_MS, WALL_MS, WALL_MS - HOUR_MS, WALL_MS + HOUR_MS]))
    value = b"v" * draw(st.sampled_from([1, 1, 20, 150]))
    key = draw(st.sampled_from([None, b"k"]))
    named = draw(st.booleans())
    encoded = encode(
        [(time_ms, key, value, ())] * count,
        compression=draw(st.sampled_from([Compression.NONE] * 4 + [Compression.GZIP])),
        producer_id=7 if named else -1,
        producer_epoch=draw(st.integers(0, 1)) if named else -1,
        base_sequence=draw(st.integers(0, 4)) if named else -1,
    )
    harm = draw(st.sampled_from(["none"] * 6 + ["damaged", "cut", "twice"]))
    if harm == "damaged":
        return encoded[:-1] + bytes([encoded[-1] ^ 1])
    return {"cut": encoded[:-3], "twice": encoded * 2}.get(harm, encoded)


def content(hosts: Hosts) -> tuple[Any, ...]:
    log = hosts.log(1)
    return (
        log.read(0, 1 << 24).records if log.log_end_offset else b"",
        log.log_end_offset,
        log.high_watermark,
        hosts.replica(1).flushing.completed_end,
        hosts.host(1).next_deadline_ms(),
        hosts.host(1).context.traffic.take(),
    )


@settings(deadline=None, max_examples=150)
@given(
    isr=st.sampled_from([(1,), (1, 2, 3), (1, 2)]),
    min_isr=st.integers(1, 2),
    config=st.sampled_from(CONFIGS),
    asked=st.lists(st.tuples(records(), st.sampled_from([1, 1, -1, 0, 2])), min_size=1, max_size=12),
    reads=st.booleans(),
)
def test_an_append_at_once_is_what_the_event_does(
    isr: tuple[int, ...], min_isr: int, config: dict[str, str], asked: list[tuple[bytes, int]], reads: bool
) -> None:
    """The event's own way to ``append_at_once`` is closed by records that are no ``bytes``."""
    quick, slow = (hosts_of(isr, min_isr, config) for _ in range(2))
    if reads:  # somebody waits for records
        for hosts in (quick, slow):
            hosts.fetch(1, 0, max_wait_ms=HOUR_MS)
    for number, (data, acks) in enumerate(asked):
        at_once = quick.host(1).append_at_once(P0, acks, data, quick.now_ms, WALL_MS + quick.now_ms)
        quick.host(1).check()
        event = ProduceReceived(TOKEN + number, acks, 1_000, (ProducePartition(P0, memoryview(data)),))
        if at_once is None:
            quick.handle(1, event)
        else:
            for effect in at_once[1]:
                quick._carry_out(quick.processes[1], effect)
        slow.handle(1, event)
        if at_once is not None:
            reply = slow.replies.get(TOKEN + number)
            assert reply == ProduceReply((at_once[0],))
        else:
            assert quick.replies.get(TOKEN + number) == slow.replies.get(TOKEN + number)
        assert {token: reply for token, reply in quick.replies.items() if token < TOKEN} == {
            token: reply for token, reply in slow.replies.items() if token < TOKEN
        }
        assert content(quick) == content(slow)
        for hosts in (quick, slow):
            hosts.advance(2)
            hosts.finish_flushes()


@pytest.mark.parametrize("acks", [1, -1])
def test_a_small_sound_batch_is_appended_at_once(acks: int) -> None:
    hosts = hosts_of((1,), 1, {})
    for number in range(3):
        appended = hosts.host(1).append_at_once(P0, acks, batch(b"v"), 0, WALL_MS)
        assert appended is not None
        result, effects = appended
        assert result == ProducePartitionResult(P0, 0, number, -1, 0) and not effects
    assert hosts.read(1) == [b"v"] * 3


def test_who_has_to_wait_for_others_is_not_answered_at_once() -> None:
    alone = hosts_of((1,), 1, {"flush.messages": "1"})
    assert alone.host(1).append_at_once(P0, 1, batch(b"v"), 0, WALL_MS) is None
    three = hosts_of((1, 2, 3), 1, {})
    assert three.host(1).append_at_once(P0, -1, batch(b"v"), 0, WALL_MS) is None
    assert three.host(1).append_at_once(P0, 1, batch(b"v"), 0, WALL_MS) is not None
    other = TopicIdPartition(P0.topic_id, 1)
    assert three.host(1).append_at_once(other, 1, batch(b"v"), 0, WALL_MS) is None
    assert three.host(2).append_at_once(P0, 1, batch(b"v"), 0, WALL_MS) is None
    assert alone.log(1).log_end_offset == 0 and three.log(1).log_end_offset == 1


def test_an_append_waits_for_the_flush_that_the_ones_before_it_wait_for() -> None:
    hosts = hosts_of((1,), 1, {"flush.messages": "1"})
    hosts.produce(1, b"a", acks=1)
    hosts.assign(1, (1,), config={"segment.index.bytes": "4096"})
    assert hosts.replica(1).flushing.held
    assert hosts.host(1).append_at_once(P0, 1, batch(b"b"), 0, WALL_MS) is None
    hosts.finish_flushes()
    assert hosts.host(1).append_at_once(P0, 1, batch(b"b"), 0, WALL_MS) is not None


def test_nothing_is_appended_at_once_before_what_is_being_checked() -> None:
    hosts = Hosts((1,), HostConfig(walked_bytes_max=300))
    hosts.holds_checks = True
    hosts.assign(1, (1,))
    hosts.produce(1, b"a".ljust(300, b"."))
    assert hosts.host(1).append_at_once(P0, 1, batch(b"b"), 0, WALL_MS) is None
    hosts.finish_check()
    assert hosts.host(1).append_at_once(P0, 1, batch(b"b"), 0, WALL_MS) is not None


@settings(deadline=None, max_examples=600)
@given(
    sizes=st.lists(st.integers(1, 60), max_size=8),
    committed=st.booleans(),
    isr=st.sampled_from([(1,), (1, 2)]),
    offset=st.integers(-1, 4) | st.integers(5, 10),
    epoch=st.sampled_from([-1, 0, 1]),
    limits=st.permutations([10_000, 10_000, 150]) | st.permutations([10_000, 1, 150]) | st.just([0, 150, 150]),
    min_bytes=st.sampled_from([0, 1, 200]),
)
def test_a_read_at_once_is_what_the_event_answers(
    sizes: list[int], committed: bool, isr: tuple[int, ...], offset: int, epoch: int, limits: list[int], min_bytes: int
) -> None:
    """``limits`` of bytes: the partition's, the request's, the host's."""
    of_partition, of_request, of_host = limits
    hosts = hosts_of(isr, 1, {}, HostConfig(fetch_max_bytes=of_host))
    for size in sizes:
        hosts.produce(1, b"." * size, run=len(isr) == 1)
    part = FetchPartition(P0, offset, of_partition, epoch)
    event = FetchReceived(TOKEN, -1, -1, HOUR_MS, min_bytes, of_request, int(committed), (part,))
    found = hosts.host(1).read_at_once(part, replace(event, token=0, partitions=()), hosts.now_ms, WALL_MS)
    hosts.host(1).check()
    hosts.handle(1, event)
    answered: FetchPartitionResult | None = hosts.fetched(TOKEN)
    if found is not None:
        assert found == (answered, [])
    else:  # it waits, or is refused
        assert answered is None or answered.error != ErrorCode.none.value or len(answered.records) < max(1, min_bytes)


def test_what_is_there_is_read_at_once_and_counted() -> None:
    hosts = hosts_of((1,), 1, {})
    hosts.produce(1, b"v")
    hosts.host(1).context.traffic.take()
    terms = FetchReceived(0, -1, -1, 0, 1, 10_000, 0, ())
    found = hosts.host(1).read_at_once(FetchPartition(P0, 0, 10_000), terms, 0, WALL_MS)
    assert found is not None and found[0].high_watermark == 1 and len(found[0].records)
    (load,) = hosts.host(1).context.traffic.take()
    assert load.requests == 1
    assert hosts.host(1).read_at_once(FetchPartition(P0, 1, 10_000), terms, 0, WALL_MS) is None


def test_what_is_not_in_memory_or_damaged_is_not_read_at_once_as_if_it_were() -> None:
    hosts = hosts_of((1,), 1, {"segment.bytes": "100"})
    for _ in range(3):
        hosts.produce(1, b"v" * 30)
    terms = FetchReceived(0, -1, -1, 0, 1, 10_000, 0, ())
    hosts.disks[1].evict()
    assert hosts.host(1).read_at_once(FetchPartition(P0, 0, 10_000), terms, 0, WALL_MS) is None
    assert hosts.fetched(hosts.fetch(1, 0)) is not None
    hosts.disks[1].flip_bit(f"{hosts.log(1).segments.all[0].path}.log", 70)
    hosts.holds_scrubs = True
    found = hosts.host(1).read_at_once(FetchPartition(P0, 0, 10_000), terms, 0, WALL_MS)
    assert found is not None and found[0].error == ErrorCode.corrupt_message.value
    assert found[1] and not hosts.host(1).context.suspected
