"""Bytes of a log change on a running broker's disk: readers go on, another replica leads, the damaged copy is made anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from raw_requests import eventually, status

from raylog.client.sync import AdminClient, Consumer
from raylog.errors import RaylogError
from raylog.records.batch import batches
from raylog.types import TopicPartition, broker_of

pytestmark = pytest.mark.core

Numbered = Callable[[int, int], list[bytes]]


def damage(folder: Path, offset: int) -> int:
    """Flip a bit of the batch that holds the offset; returns the batch's base offset."""
    log = folder / f"{0:020d}.log"
    content = log.read_bytes()
    found = next(each for each in batches(content) if each.base_offset <= offset <= each.last_offset)
    with log.open("r+b") as file:
        file.seek(found.end - 2)
        file.write(bytes([content[found.end - 2] ^ 0x10]))
    return found.base_offset


def said(faulty: Any, what: str) -> list[str]:
    """What the status says of ``damaged`` or ``mended`` logs."""
    actors = status(faulty.running)["actors"]
    return [f"broker {actor['broker']}: {words}" for actor in actors for words in actor[what]]


def copies(faulty: Any) -> set[bytes]:
    return {(faulty.folder(broker) / f"{0:020d}.log").read_bytes() for broker in range(3)}


def test_a_bit_flipped_in_the_leaders_log_under_load_costs_nothing(faulty: Any, numbered: Numbered) -> None:
    faulty.make_topic()
    faulty.produce(numbered(0, 500), batch_size=200)
    leader = broker_of(faulty.leader())
    stream = faulty.stream()
    try:
        stream.more()
        damage(faulty.folder(leader), 250)
        with faulty.reader() as read:
            assert read(500) == numbered(0, 500)
        eventually(lambda: broker_of(faulty.leader()) != leader, "another one leads")
        eventually(lambda: said(faulty, "mended"), "the damaged copy is dropped")
        faulty.await_whole()
        stream.more()
    finally:
        sent = stream.stop()
    assert faulty.values(500 + len(sent)) == [*numbered(0, 500), *(value for _, value in sorted(sent))]
    (words,) = said(faulty, "mended")
    assert words.startswith(f"broker {leader}: t-0: ") and ".log at byte " in words and "a CRC does not fit" in words
    assert said(faulty, "damaged") == []
    assert len(copies(faulty)) == 1, "three good copies"


def test_damage_in_a_follower_that_nobody_reads_is_found_by_a_scrub(faulty: Any, numbered: Numbered) -> None:
    faulty.make_topic()
    faulty.produce(numbered(0, 500), batch_size=200)
    leader = broker_of(faulty.leader())
    follower = (leader + 1) % 3
    base = damage(faulty.folder(follower), 250)
    with AdminClient(faulty.running.address) as admin:
        admin.alter_configs(broker="all", set={"log.scrub.interval.ms": "100"})
    (words,) = eventually(lambda: said(faulty, "mended"), "the scrub finds it")
    assert words.startswith(f"broker {follower}: ") and f"offset {base}" in words
    faulty.await_whole()
    assert broker_of(faulty.leader()) == leader
    eventually(lambda: len(copies(faulty)) == 1, "three good copies")


def test_the_only_replica_serves_what_is_whole_and_names_what_is_not(faulty: Any, numbered: Numbered) -> None:
    faulty.make_topic(replication_factor=1)
    faulty.produce(numbered(0, 500), batch_size=200)
    leader = broker_of(faulty.leader())
    base = damage(faulty.folder(leader), 250)
    with faulty.reader() as read, Consumer(faulty.running.address) as other:
        assert read(base) == numbered(0, base)
        other.assign([TopicPartition("t", 0)])
        other.seek(TopicPartition("t", 0), base)
        with pytest.raises(RaylogError, match="copy is damaged, and no other replica is in sync"):
            eventually(lambda: other.consume(1, timeout=0.2), "an answer")
        other.seek(TopicPartition("t", 0), 400)
        assert [record.value for record in other.consume(1, timeout=60)] == [b"400"]
    (words,) = eventually(lambda: said(faulty, "damaged"), "the status names it")
    assert words.startswith(f"broker {leader}: t-0: ") and f"offset {base}: " in words
    assert faulty.produce([b"more"]) == [500], "it is written to as before"
