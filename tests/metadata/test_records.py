from __future__ import annotations

import uuid
from typing import get_args, get_type_hints

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.control.high_watermarks import PartitionHighWatermark, TopicHighWatermarks
from raylog.errors import ProtocolError
from raylog.metadata.records import (
    ActorDied,
    ActorRegistered,
    ConfiguredKind,
    HostKind,
    PartitionChanged,
    PartitionState,
    Record,
    ReplicaSlot,
    StaticSource,
    TopicConfigChanged,
    TopicCreated,
    decode_batch,
    encode_batch,
)
from raylog.security.acl import AclBinding
from raylog.security.protocols import AdvertisedListener, SecurityProtocol
from raylog.security.quotas import Entity
from raylog.security.scram import ScramCredential, ScramMechanism
from raylog.security.tokens import DelegationToken
from raylog.types import Endpoint

T = uuid.UUID(int=7)
D = uuid.UUID(int=8)
i64 = st.integers(-(2**63), 2**63 - 1)
states = st.builds(
    PartitionState,
    replicas=st.lists(st.builds(ReplicaSlot, i64, i64, st.uuids(), i64), max_size=4).map(tuple),
    isr=st.lists(i64, max_size=4).map(tuple),
    leader_epoch=i64,
)
endpoints = st.builds(Endpoint, st.text(), i64)
high_watermarks = st.builds(
    TopicHighWatermarks,
    st.uuids(),
    st.lists(st.builds(PartitionHighWatermark, i64, i64, i64), max_size=4).map(tuple),
)
OF_TYPE = {  # every integer of a record has 64 bits: a hint that says so only by a type of Python's is spelled out
    int: i64,
    int | None: st.none() | i64,
    tuple[int, ...]: st.lists(i64).map(tuple),
    PartitionState: states,
    tuple[TopicHighWatermarks, ...]: st.lists(high_watermarks, max_size=3).map(tuple),
    HostKind: st.sampled_from(HostKind),
    ConfiguredKind: st.sampled_from(ConfiguredKind),
    AclBinding: st.from_type(AclBinding),  # its integers are enums'
    StaticSource: st.sampled_from(StaticSource),
    tuple[tuple[str, str], ...]: st.lists(st.tuples(st.text(), st.text()), max_size=3).map(tuple),
    ScramMechanism: st.sampled_from(ScramMechanism),
    Entity: st.lists(st.tuples(st.text(), st.none() | st.text()), max_size=2).map(tuple),
    float: st.floats(allow_nan=False),
    ScramCredential: st.builds(ScramCredential, st.binary(), st.binary(), st.binary(), i64),
    DelegationToken: st.builds(
        DelegationToken, st.text(), st.text(), st.text(), st.lists(st.text(), max_size=2).map(tuple), i64, i64, i64
    ),
    Endpoint: endpoints,
    Endpoint | None: st.none() | endpoints,
    tuple[AdvertisedListener, ...]: st.lists(
        st.builds(AdvertisedListener, st.text(), st.sampled_from(SecurityProtocol), endpoints), max_size=3
    ).map(tuple),
}
WITHOUT_INTEGERS = (bool, str, str | None, uuid.UUID, uuid.UUID | None)


def of(cls):
    hints = get_type_hints(cls)
    return st.builds(
        cls, **{name: st.from_type(hint) if hint in WITHOUT_INTEGERS else OF_TYPE[hint] for name, hint in hints.items()}
    )


records = st.one_of(*(of(cls) for cls in get_args(Record)))


@given(st.lists(records, max_size=5))
def test_a_batch_comes_back_as_it_went(batch):
    assert decode_batch(encode_batch(batch)) == tuple(batch)


def test_the_bytes_of_a_record_are_those_of_its_layout():
    assert msgpack.unpackb(encode_batch([ActorDied(5, 77, "why")], 99)) == [
        99,
        {"t": "ActorDied", "v": 2, "node_id": 5, "incarnation": 77, "reason": "why"},
    ]
    (plain,) = msgpack.unpackb(
        encode_batch([PartitionChanged(T, 3, PartitionState((ReplicaSlot(1, 65538, D),), (1,)))])
    )
    assert plain["topic_id"] == T.bytes
    assert plain["state"] == [[[1, 65538, D.bytes, 0]], [1], -1, 0, -1, 0, [], -1, [], [], 0]
    registered = ActorRegistered(9, D, 4, Endpoint("h", 1), "b")
    (plain,) = msgpack.unpackb(encode_batch([registered]))
    assert plain["endpoint"] == ["h", 1]


def changed(**fields: object) -> bytes:
    (plain,) = msgpack.unpackb(encode_batch([TopicCreated(T, "flights")]))
    return msgpack.packb([{**plain, **fields}])


def test_a_record_of_a_newer_version_is_refused_by_name():
    with pytest.raises(ProtocolError, match=r"TopicCreated has version 2.*up to 1"):
        decode_batch(changed(v=2))


def test_a_record_of_an_unknown_name_is_refused_by_name():
    with pytest.raises(ProtocolError, match="'TopicTiered'"):
        decode_batch(changed(t="TopicTiered"))


def test_a_field_that_nobody_here_knows_is_refused():
    with pytest.raises(ProtocolError, match="TopicCreated"):
        decode_batch(changed(colour="red"))


def test_a_missing_field_or_a_wrong_type_is_refused():
    for fields in ({"name": 5}, {"topic_id": b"short"}):
        with pytest.raises(ProtocolError, match="TopicCreated"):
            decode_batch(changed(**fields))
    with pytest.raises(ProtocolError, match="TopicConfigChanged"):
        decode_batch(msgpack.packb([{"t": "TopicConfigChanged", "v": 1, "key": "a"}]))


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_not_believed(data):
    try:
        assert decode_batch(data) == ()  # an empty array is an empty batch
    except ProtocolError:
        pass


def test_a_trailing_field_of_an_inner_array_may_be_absent():
    (plain,) = msgpack.unpackb(encode_batch([PartitionChanged(T, 0, PartitionState((ReplicaSlot(1, 2, D),), (1,)))]))
    plain["state"] = [[[1, 2, D.bytes]], [1]]
    (record,) = decode_batch(msgpack.packb([plain]))
    assert record == PartitionChanged(T, 0, PartitionState((ReplicaSlot(1, 2, D),), (1,)))


def test_a_config_set_to_nothing_is_not_one_reset():
    for value in ("", None):
        (record,) = decode_batch(encode_batch([TopicConfigChanged(T, "k", value)]))
        assert record.value == value
