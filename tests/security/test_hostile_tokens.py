"""Whatever a client or an issuer sends, it is refused by the error that says so, and by no other."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokens import Issuer, encoded, message

from raylog.security.bearer import BearerExchange
from raylog.security.json_web_tokens import (
    KeySet,
    TokenHeader,
    TokenRules,
    header_of,
    signed_claims,
    subject_of_claims,
    unsecured_claims,
)
from raylog.security.sasl import AuthenticationError

pytestmark = pytest.mark.core
ISSUER = Issuer()
KEYS = KeySet.parse(json.dumps({"keys": ISSUER.jwks()}))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["RS256", "none", "RSA", "EC"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def objects(*names: str) -> st.SearchStrategy[dict[str, object]]:
    return st.dictionaries(st.sampled_from(names) | st.text(max_size=5), VALUES, max_size=8)


@given(st.binary(max_size=200) | st.builds(lambda text, more: message(text, extensions=more), st.text(), st.text()))
def test_any_message_is_understood_or_refused(first: bytes) -> None:
    with suppress(AuthenticationError):
        found = BearerExchange().receive(first)
        assert not set(found.token) & set("\0\x01 \r\n,"), found.token


@given(objects("alg", "kid", "crit", "b64", "typ"), objects("exp", "sub"), st.binary(max_size=80))
def test_any_token_is_refused_unless_it_is_signed(
    header: dict[str, object], said: dict[str, object], end: bytes
) -> None:
    token = f"{encoded(header)}.{encoded(said)}.{encoded(end)}"
    try:
        found = header_of(token)
        signed_claims(token, found, KEYS.key_for(found))
    except AuthenticationError:
        return
    raise AssertionError("nobody has signed it")


@given(objects("alg", "crit"), st.text(max_size=30), st.binary(max_size=30))
def test_any_text_is_an_unsecured_token_or_refused(header: dict[str, object], text: str, said: bytes) -> None:
    for token in (text, f"{encoded(header)}.{encoded(said)}."):
        with suppress(AuthenticationError):
            assert isinstance(unsecured_claims(token), dict)


@given(objects("exp", "iat", "nbf", "iss", "aud", "sub", "scope"))
def test_any_claims_name_somebody_or_are_refused(said: dict[str, object]) -> None:
    with suppress(AuthenticationError):
        found = subject_of_claims(json.loads(json.dumps(said)), TokenRules(), 0.0)
        assert found.name.strip() and found.name.encode() and found.expires_at > -30


@given(st.lists(objects("kty", "n", "e", "crv", "x", "y", "kid", "use", "alg", "key_ops"), max_size=3), VALUES)
def test_any_key_set_is_read_or_refused(entries: list[dict[str, object]], value: object) -> None:
    for found in ({"keys": entries}, {"keys": value}, value):
        with suppress(ValueError):
            assert KeySet.parse(json.dumps(found)).keys


@given(st.sampled_from(ISSUER.jwks()), st.sampled_from(["kty", "n", "e", "crv", "x", "y", "kid", "use"]), VALUES)
def test_a_key_with_one_part_changed_is_read_or_refused(key: dict[str, str], name: str, value: object) -> None:
    with suppress(ValueError):
        for found in KeySet.parse(json.dumps({"keys": [{**key, name: value}]})).keys:
            assert found.algorithms and not isinstance(TokenHeader("RS256", found.key_id).key_id, int)
