"""Users' objects to bytes and back."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from raylog.client.serializers import checked_bytes, deserializer_of, serializer_of
from raylog.errors import ConfigError, SerializationError


@pytest.mark.parametrize(
    "name, value, data",
    [
        ("string", "ü", "ü".encode()),
        ("StringSerializer", "a", b"a"),
        ("org.apache.kafka.common.serialization.StringSerializer", "a", b"a"),
        ("long", -1, b"\xff" * 8),
        ("IntegerSerializer", 258, b"\x00\x00\x01\x02"),
        ("double", 1.5, b"\x3f\xf8" + bytes(6)),
        ("json", {"a": [1, None]}, b'{"a":[1,null]}'),
        ("ByteArraySerializer", bytearray(b"x"), b"x"),
        ("uuid", uuid.UUID(int=1), b"00000000-0000-0000-0000-000000000001"),
    ],
)
def test_built_in_serializers_write_what_kafkas_do_and_read_it_back(name: str, value: Any, data: bytes) -> None:
    serialize = serializer_of(name, "value.serializer")
    assert serialize is not None and serialize("t", value) == data
    deserialize = deserializer_of(name.replace("Serializer", "Deserializer"), "value.deserializer")
    assert deserialize is not None and deserialize("t", data) == value


class Shouting:
    def serialize(self, topic: str, value: str) -> bytes:
        return f"{topic}:{value}".upper().encode()


@pytest.mark.parametrize(
    "option, expected", [(Shouting, b"T:A"), (Shouting(), b"T:A"), (lambda value: value.encode(), b"a")]
)
def test_a_serializer_is_a_class_an_object_or_a_callable(option: Any, expected: bytes) -> None:
    serialize = serializer_of(option, "value.serializer")
    assert serialize is not None and serialize("t", "a") == expected


def test_what_a_serializer_raises_arrives_with_its_cause_and_the_topic() -> None:
    serialize = serializer_of("long", "key.serializer")
    assert serialize is not None
    with pytest.raises(SerializationError, match=r"key.serializer failed on a record of topic 'orders'") as caught:
        serialize("orders", "not a number")
    assert caught.value.__cause__ is not None


def test_unknown_serializers_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="json"):
        serializer_of("avro", "value.serializer")
    with pytest.raises(ConfigError, match="is not callable"):
        serializer_of(3, "value.serializer")


def test_text_without_a_serializer_is_refused_with_the_remedy() -> None:
    assert checked_bytes(None, "value") is None
    assert checked_bytes(memoryview(b"ab"), "value") == b"ab"
    with pytest.raises(SerializationError, match=r"set value\.serializer"):
        checked_bytes("text", "value")
