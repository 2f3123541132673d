"""Messages of the quorum as bytes."""

from __future__ import annotations

import uuid
from typing import get_args

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.errors import ProtocolError
from raylog.raft.frames import from_frame, to_frame
from raylog.raft.messages import (
    AppendReply,
    AppendRequest,
    Entry,
    EntryKind,
    Message,
    Snapshot,
    SnapshotRequest,
    VoteRequest,
)

NUMBERS = st.integers(0, 2**63 - 1)
ENTRIES = st.builds(Entry, index=NUMBERS, term=NUMBERS, kind=st.sampled_from(EntryKind), data=st.binary(max_size=200))
SNAPSHOTS = st.builds(
    Snapshot,
    last_index=NUMBERS,
    last_term=NUMBERS,
    cluster_id=st.text(max_size=22),
    voters=st.lists(st.uuids(), max_size=3).map(tuple),
    data=st.binary(max_size=2_000),
)
FIELDS = {
    "term": NUMBERS,
    "last_index": NUMBERS,
    "last_term": NUMBERS,
    "previous_index": NUMBERS,
    "previous_term": NUMBERS,
    "commit_index": NUMBERS,
    "match_index": NUMBERS,
    "hint_term": NUMBERS,
    "round": NUMBERS,
    "rejected_index": st.none() | NUMBERS,
    "entries": st.lists(ENTRIES, max_size=4).map(tuple),
    "snapshot": SNAPSHOTS,
    "pre_vote": st.booleans(),
    "granted": st.booleans(),
    "is_recovering": st.booleans(),
}


@pytest.mark.parametrize("cls", get_args(Message), ids=lambda cls: cls.__name__)
def test_a_message_comes_back_as_it_went(cls):
    @settings(max_examples=50)
    @given(st.builds(cls, **{name: FIELDS[name] for name in cls.__dataclass_fields__}))
    def comes_back(message):
        assert from_frame(to_frame(message)) == message

    comes_back()


def test_the_bytes_of_a_message_are_those_of_its_layout():
    voter = uuid.UUID(int=5)
    append = AppendRequest(3, 7, 2, (Entry(8, 3, EntryKind.RECORDS, b"x"),), 7, 1)
    assert msgpack.unpackb(to_frame(append)) == {
        "t": "AppendRequest",
        "v": 1,
        "term": 3,
        "previous_index": 7,
        "previous_term": 2,
        "entries": [[8, 3, 0, b"x"]],
        "commit_index": 7,
        "round": 1,
    }
    snapshot = SnapshotRequest(3, Snapshot(1, 1, "c", (voter,), b"s"), 0)
    assert msgpack.unpackb(to_frame(snapshot))["snapshot"] == [1, 1, "c", [voter.bytes], b"s"]


def test_a_raylog_that_knows_of_no_recovery_reads_the_replies_of_whole_voters():
    assert "is_recovering" not in msgpack.unpackb(to_frame(AppendReply(3, 7, 0)))
    assert msgpack.unpackb(to_frame(AppendReply(3, 7, 0, is_recovering=True)))["is_recovering"] is True


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"v": 2}, "version 2"),
        ({"t": "Anything"}, "Anything"),
        ({"colour": 1}, "colour"),
        ({"pre_vote": 1}, "bool"),
        ({"term": None}, "None"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(change, named):
    plain = msgpack.unpackb(to_frame(VoteRequest(1, 2, 1, True))) | change
    with pytest.raises(ProtocolError, match=named):
        from_frame(msgpack.packb(plain))


def test_an_entry_of_an_unknown_kind_is_refused():
    plain = msgpack.unpackb(to_frame(AppendRequest(3, 7, 2, (Entry(8, 3, EntryKind.RECORDS, b"x"),), 7, 1)))
    plain["entries"][0][2] = 9
    with pytest.raises(ProtocolError, match="9"):
        from_frame(msgpack.packb(plain))


@given(st.binary(max_size=60))
def test_garbage_is_refused_and_nothing_else_happens(garbage):
    with pytest.raises(ProtocolError):
        from_frame(garbage)


def test_half_a_message_is_refused():
    data = to_frame(AppendReply(3, 7, 0))
    with pytest.raises(ProtocolError):
        from_frame(data[:-1])
