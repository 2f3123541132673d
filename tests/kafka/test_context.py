"""Who asks, on its way from one process to another: the context in the place of a client id."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.errors import ProtocolError
from raylog.kafka.context import (
    ANONYMOUS,
    CLIENT_ID_CHARACTERS_MAX,
    EXTERNAL,
    FIELD_BYTES_MAX,
    SECRET_HOLDER,
    RequestContext,
    decoded,
    principal_of_process,
)

CONTEXT = RequestContext(ANONYMOUS, EXTERNAL, "10.0.0.1", "orders", "trace-7")
ODD = st.text(alphabet=st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("\\\t\nNt")), max_size=80)


def text_of(context: RequestContext) -> str:
    """The field without its length, as a server reads it."""
    field = context.header_field()
    assert int.from_bytes(field[:2], "big") == len(field) - 2
    return field[2:].decode()


@given(ODD, ODD, ODD, st.none() | ODD, st.none() | ODD)
def test_what_was_encoded_is_decoded(
    principal: str, listener: str, host: str, client_id: str | None, trace_id: str | None
) -> None:
    context = RequestContext(principal, listener, host, client_id, trace_id)
    assert decoded(text_of(context)) == context


def test_none_and_what_is_written_like_none_differ() -> None:
    for client_id in (None, "", "\\N", "\\\\N", "\\", "\\t", "\t"):
        assert decoded(text_of(replace(CONTEXT, client_id=client_id))).client_id == client_id


def test_the_field_is_made_once_and_never_of_another_context() -> None:
    assert CONTEXT.header_field() is CONTEXT.header_field()
    assert decoded(text_of(replace(CONTEXT, principal="User:ann"))).principal == "User:ann"


def test_a_deadline_travels_as_the_time_that_is_left() -> None:
    timed = replace(CONTEXT, deadline=time.monotonic() + 60)
    first, passed = text_of(timed), text_of(replace(CONTEXT, deadline=time.monotonic() - 5))
    found, over = decoded(first).deadline, decoded(passed).deadline
    assert found is not None and over is not None
    assert 50 < found - time.monotonic() <= 60.001 and over <= time.monotonic()
    assert replace(decoded(first), deadline=None) == CONTEXT
    assert timed.header_field() is not timed.header_field(), "there is less left each time"


def test_the_longest_context_fits_into_a_header() -> None:
    for letter in ("\\", "\U0001f600"):
        longest = RequestContext(
            letter * 1_000, letter * 100, letter * 255, letter * CLIENT_ID_CHARACTERS_MAX, letter * 250
        )
        assert len(longest.header_field()) <= FIELD_BYTES_MAX < 1 << 15
        assert decoded(text_of(longest)) == longest


@pytest.mark.parametrize(
    ("field", "length"),
    [("principal", 1_001), ("listener", 101), ("client_host", 256), ("client_id", 4_001), ("trace_id", 251)],
)
def test_a_text_that_is_too_long_is_refused(field: str, length: int) -> None:
    replace(CONTEXT, **{field: "x" * (length - 1)})
    with pytest.raises(ProtocolError, match=f"a {field.replace('_', ' ')} of {length} characters"):
        replace(CONTEXT, **{field: "x" * length})


def test_fields_of_a_later_version_are_ignored() -> None:
    assert decoded(text_of(CONTEXT) + "\tmore\tand more") == CONTEXT


@pytest.mark.parametrize(
    "text",
    [
        "orders",
        "raylog-context-2\tUser:a\tEXTERNAL\th\tc\t\\N\t\\N",
        "raylog-context-1\tUser:a\tEXTERNAL\th\tc\t\\N",
        "raylog-context-1\t\\N\tEXTERNAL\th\tc\t\\N\t\\N",
        "raylog-context-1\tUser:a\tEXTERNAL\th\tc\t\\N\tsoon",
        "raylog-context-1\tUser:a\tEXTERNAL\th\tc\t\\N\t-1",
        "raylog-context-1\tUser:a\tEXTERNAL\th\tc\t\\N\t" + "9" * 5_000,
        f"raylog-context-1\t{'x' * 2_000}\tEXTERNAL\th\tc\t\\N\t\\N",
    ],
)
def test_what_is_no_context_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        decoded(text)


def test_processes_have_principals_that_no_user_has() -> None:
    assert principal_of_process(65_538) == "Cluster:65538"
    assert principal_of_process(-1) == SECRET_HOLDER
    assert not SECRET_HOLDER.startswith("User:") and ANONYMOUS == "User:ANONYMOUS"
