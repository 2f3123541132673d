"""What the checkers make of deletions that a compacted log has forgotten: which records may come back, and in whose log."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest

from raylog.groups.requests import (
    CommittedPartition,
    FetchedOffset,
    GroupReply,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OffsetsCommitted,
    OffsetsDeleted,
    OffsetsFetched,
    PartitionError,
    Request,
)
from raylog.log.config import LogConfig
from raylog.log.log import Log
from raylog.records.codec import encode
from raylog.simulator.answer_checks import has_missed_deletion, searched
from raylog.simulator.checkers import Checkers, Copied, History, ReplicaMemory, Seen, Stamp, Violation
from raylog.simulator.group_checker import GroupChecker
from raylog.simulator.simulated_files import SimulatedDisk
from raylog.types import TopicIdPartition, TopicPartition

ID = TopicIdPartition(uuid.UUID(int=1), 0)
TOPIC = uuid.UUID(int=2)


def history_of(*records: tuple[bytes, bytes | None], epochs: tuple[int, ...] = ()) -> History:
    """One record in each batch; the one at offset n was committed at n seconds."""
    history = History(ID, "t-0", compacts=True, end=len(records))
    for offset, (key, value) in enumerate(records):
        epoch = epochs[offset] if epochs else 0
        history.batches[offset] = Seen(offset, offset + 1, epoch, 0, -1)
        history.stamps.append(Stamp(offset, offset + 1, offset * 1_000, offset * 1_000))
        history.records[offset] = (key, value, offset * 1_000)
    return history


DELETED = ((b"a", b"x"), (b"b", b"x"), (b"a", None), (b"b", b"y"))


@pytest.mark.parametrize(
    ("copied", "has_missed"),
    [
        ([Copied(0, 4, 1_999)], False),
        ([Copied(0, 4, 2_000)], False),
        ([Copied(0, 2, 0), Copied(2, 4, 2_001)], True),
        ([Copied(0, 4, 2_000), Copied(1, 4, 9_000)], True),
        ([Copied(1, 4, 9_000), Copied(3, 4, 10_000)], True),
        ([Copied(0, 4, 2_000), Copied(3, 4, 10_000)], False),
        ([], False),
    ],
    ids=["in time", "at that moment", "late", "again", "again, and more", "again, but not that", "never"],
)
def test_who_takes_in_a_tombstones_place_late_may_have_missed_it(copied: list[Copied], has_missed: bool) -> None:
    history = history_of(*DELETED)
    history.copied[3] = copied
    assert has_missed_deletion(history, b"a", 3) is has_missed


def test_nobody_misses_what_was_written_last_or_what_nobody_wrote() -> None:
    history = history_of(*DELETED)
    history.copied[3] = [Copied(0, 4, 9_000)]
    assert not has_missed_deletion(history, b"b", 3)
    assert not has_missed_deletion(history, b"c", 3)


# ---------------------------------------------------------------- offsets of groups


def told(checker: GroupChecker, request: Request, reply: GroupReply, *, has_missed: bool = False) -> None:
    topics = {"t": TOPIC}
    received = checker.received(request, 0, topics, is_beginning=False)
    checker.answered(
        request,
        received,
        reply,
        history_number=0,
        leads=True,
        topics=topics,
        has_missed_deletion=lambda place: has_missed and place == TopicPartition("t", 0),
    )


@pytest.mark.parametrize("has_missed", [True, False])
def test_a_deleted_offset_comes_back_only_at_a_coordinator_that_may_have_missed_its_deletion(has_missed: bool) -> None:
    counts: Counter[str] = Counter()
    checker = GroupChecker(counts, lambda: 0, retention_ms=None, is_buried=lambda group: False, set_back_ms=lambda: 0)
    committed = CommittedPartition("t", 0, 7)
    told(checker, OffsetCommit("g", (committed,), "", -1, None), OffsetsCommitted((PartitionError("t", 0, 0),)))
    told(checker, OffsetDelete("g", (TopicPartition("t", 0),)), OffsetsDeleted(0, (PartitionError("t", 0, 0),)))
    shown = OffsetsFetched(0, (FetchedOffset("t", 0, 7),))
    if has_missed:
        told(checker, OffsetFetch("g"), shown, has_missed=True)
        assert counts["deleted offsets that came back"] == 1
    else:
        with pytest.raises(Violation, match="goes back to 7 from a deletion"):
            told(checker, OffsetFetch("g"), shown)


# ---------------------------------------------------------------- records, after an unclean election


def leader_without(key: bytes) -> Log:
    """A log of epoch 5 with ``b`` at 1, and ``a`` at 0 unless that is the key."""
    files = SimulatedDisk().files()
    files.make_directory("/disk")
    log = Log.open(
        "/disk/t-0",
        files=files,
        config=LogConfig(segment_index_bytes=4096, compacts=True),
        topic="t",
        partition=0,
        topic_id=ID.topic_id,
        now_ms=1_000,
        boot_id="boot",
    )
    for each in (b"a", b"b"):
        name = b"other" if each == key else each
        log.append_as_leader(encode([(1_000, name, b"x", ())]), leader_epoch=5, wall_ms=1_000)
    log.high_watermark = log.log_end_offset
    return log


def undead(*, deleted_at: int = 9, epoch: int = 1) -> History:
    """``a`` at 0 comes from before the election to epoch 3; a former history had deleted it."""
    history = history_of((b"a", b"x"), (b"b", b"x"), epochs=(epoch, 5))
    history.generation, history.first_epoch, history.newest_epoch = 1, 3, 5
    history.buried = {b"a": deleted_at}
    return history


def holds_latest(history: History, log: Log) -> None:
    checkers = Checkers(lambda: 20_000)
    checkers._holds_latest(history, log, 0, 2, "broker 1")


def test_others_need_not_have_what_only_the_leader_of_an_unclean_election_had_kept() -> None:
    holds_latest(undead(), leader_without(b"a"))
    holds_latest(undead(), leader_without(b"none"))


@pytest.mark.parametrize(
    ("history", "missing"),
    [(undead(), b"b"), (undead(epoch=3), b"a"), (undead(deleted_at=-1), b"a")],
    ids=["another key", "written since", "deleted before it was written"],
)
def test_whatever_else_an_unclean_leader_had_is_lost_where_it_is_missing(history: History, missing: bytes) -> None:
    with pytest.raises(Violation, match=f"has lost {missing!r}"):
        holds_latest(history, leader_without(missing))


def test_a_search_may_pass_over_what_only_the_leader_of_an_unclean_election_had_kept() -> None:
    def search(history: History) -> None:
        searched(history, 1, 0, (1_000, 1), known_end=2, is_current=True)

    search(undead())
    with pytest.raises(Violation, match="0 comes first"):
        search(undead(epoch=3))


def test_growth_of_a_log_is_noted_by_broker() -> None:
    checkers = Checkers(lambda: 1_234)
    log = leader_without(b"none")
    memory = ReplicaMemory(log_end_offset=1, leader_epoch=5)
    history = checkers.history(ID, "t")
    history.newest_epoch = 5
    history.compacts = True
    place = {"broker": 2, "incarnation": 7, "leader_epoch": 5, "partition_epoch": 9}
    checkers.replica(memory, ID, "t", log, is_leader=False, **place)
    assert history.copied == {2: [Copied(1, 2, 1_234)]}
