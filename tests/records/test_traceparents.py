"""The traces that a batch's records belong to: which headers count, and how little is looked at."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from raylog.records import codec, traceparents
from raylog.records.compression import Compression
from raylog.records.record import Header
from raylog.records.traceparents import HEADERS_MAX, RECORDS_MAX, SEARCHED_BYTES_MAX, Traceparent
from raylog.records.varint import encode_varint

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
VALUE = f"00-{TRACE}-{SPAN}-01".encode()
FOUND = Traceparent(bytes.fromhex(TRACE), bytes.fromhex(SPAN), 0)


def batch(*headers: Sequence[Header], value: bytes = bytes(300), compression: int = Compression.NONE) -> bytes:
    """A record for each list of headers. Its value can be compressed."""
    return codec.encode([(1, b"k", value, each) for each in headers], compression=compression)


@pytest.mark.parametrize("compression", Compression)
def test_a_traceparent_is_found_among_other_headers(compression: Compression) -> None:
    headers: list[Header] = [("a", None), ("traceparent", VALUE), ("z", b"1")]
    assert traceparents.traceparents(batch(headers, compression=compression)) == (FOUND,)


def test_each_record_may_have_one_of_its_own() -> None:
    other = f"00-{SPAN * 2}-{SPAN}-03".encode()
    found = traceparents.traceparents(batch([("traceparent", VALUE)], [], [("traceparent", other)]))
    assert found == (FOUND, Traceparent(bytes.fromhex(SPAN * 2), bytes.fromhex(SPAN), 2))


def test_a_later_version_may_say_more() -> None:
    assert traceparents.traceparents(batch([("traceparent", b"01" + VALUE[2:] + b"-more")])) == (FOUND,)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        VALUE[:-2] + b"00",  # not sampled
        VALUE[:-2] + b"02",
        b"ff" + VALUE[2:],
        VALUE + b"-more",
        VALUE + b"\n",
        VALUE[:-1],
        VALUE.upper(),
        VALUE.replace(b"-", b"_"),
        f"00-{'0' * 32}-{SPAN}-01".encode(),
        f"00-{TRACE}-{'0' * 16}-01".encode(),
        f"00-{TRACE}-{SPAN}-0x".encode(),
        bytes(55),
    ],
)
def test_what_is_no_sampled_traceparent_is_none(value: bytes | None) -> None:
    assert traceparents.traceparents(batch([("traceparent", value)])) == ()


def test_the_name_in_a_value_or_with_capitals_is_none() -> None:
    assert traceparents.traceparents(batch([("other", b"traceparent"), ("Traceparent", VALUE)])) == ()


def test_a_batch_without_the_name_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def decoded(*_: object) -> None:
        raise AssertionError("decoded")

    with monkeypatch.context() as patch:
        patch.setattr(traceparents, "decode_varint", decoded)
        assert traceparents.traceparents(batch([("other", VALUE)])) == ()
        with pytest.raises(AssertionError, match="decoded"):
            traceparents.traceparents(batch([("traceparent", VALUE)]))


def test_only_the_first_records_and_headers_are_looked_at() -> None:
    many = [[("traceparent", VALUE)]] * (RECORDS_MAX + 5)
    assert len(traceparents.traceparents(batch(*many))) == RECORDS_MAX
    before: list[Header] = [("other", None)] * (HEADERS_MAX - 1)
    assert traceparents.traceparents(batch([*before, ("traceparent", VALUE)])) == (FOUND,)
    assert traceparents.traceparents(batch([*before, ("other", None), ("traceparent", VALUE)])) == ()


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_only_the_first_bytes_are_looked_at(compression: Compression) -> None:
    headers: list[Header] = [("traceparent", VALUE)]
    large = batch(headers, value=bytes(SEARCHED_BYTES_MAX), compression=compression)
    assert traceparents.traceparents(large) == ()
    assert traceparents.traceparents(batch(headers, headers, value=bytes(40_000), compression=compression)) == (FOUND,)


def test_what_grows_too_much_is_not_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    grown = batch([("traceparent", VALUE)], [], value=bytes(100), compression=Compression.ZSTD)
    assert traceparents.traceparents(grown) == (FOUND,)
    monkeypatch.setattr(traceparents, "INFLATED_BYTES_MAX", 100)
    assert traceparents.traceparents(grown) == ()


def test_a_large_compressed_batch_is_not_inflated() -> None:
    noise = random.Random(1).randbytes(SEARCHED_BYTES_MAX)
    records: list[tuple[int, bytes | None, bytes | None, Sequence[Header]]] = [
        (1, None, bytes(2_000), [("traceparent", VALUE)]),
        (1, None, noise, []),
    ]
    assert traceparents.traceparents(codec.encode(records)) == (FOUND,)
    assert traceparents.traceparents(codec.encode(records, compression=Compression.ZSTD)) == ()


@pytest.mark.parametrize("compression", Compression)
def test_broken_bytes_end_the_search_with_what_was_found_before(compression: Compression) -> None:
    whole = batch([("traceparent", VALUE)], [("traceparent", VALUE)], compression=compression)
    two = traceparents.traceparents(whole)
    assert len(two) == 2
    for position in range(len(whole)):
        for broken in (whole[:position], whole[:position] + b"\xff" + whole[position + 1 :], whole[position:]):
            assert len(traceparents.traceparents(memoryview(broken))) <= 2


def test_a_record_of_no_length_or_endless_headers_ends_the_search() -> None:
    plain = batch([("traceparent", VALUE)])
    header, records = plain[:61], plain[61:]
    for hostile in (encode_varint(-5), encode_varint(0), b"\xff" * 11):
        assert traceparents.traceparents(header + hostile + bytes(len(records) - len(hostile)) + VALUE) == ()


def test_a_record_that_leads_back_to_itself_is_none() -> None:
    plain = batch([("traceparent", VALUE)])
    size = len(encode_varint(len(plain) - 61 - 2))
    assert size == 2 and traceparents.traceparents(plain) == (FOUND,)
    assert traceparents.traceparents(plain[:61] + encode_varint(-1) + plain[61 + size :] + b"\0") == ()


def test_it_is_known_before_whether_inflating_is_needed() -> None:
    assert traceparents.is_compressed(batch([], compression=Compression.LZ4))
    assert not traceparents.is_compressed(batch([])) and not traceparents.is_compressed(b"")
