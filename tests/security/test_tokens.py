"""Delegation tokens as pure values: their passwords, and when one counts in SCRAM."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode

import pytest
from sasl_client import Scram

from raylog.security.sasl import AuthenticationError, Continue, Done, NobodysCredentials, ScramExchange
from raylog.security.scram import ScramMechanism
from raylog.security.tokens import DelegationToken, TokenCredentials, token_password

KEY = b"the key of a cluster"
TOKEN = DelegationToken("an id", "User:alice:x", "User:bob", (), 1_000, 2_000, 3_000)
SHA_256 = ScramMechanism.SCRAM_SHA_256


def credentials(key: bytes = KEY) -> TokenCredentials:
    found = TokenCredentials()
    found.follow(key, {TOKEN.token_id: TOKEN})
    return found


def logged_in(tokens: TokenCredentials, now_ms: int, password: str, mechanism: ScramMechanism = SHA_256) -> Done:
    client = Scram(TOKEN.token_id, password, mechanism.sasl_name)
    client.bare += ",tokenauth=TRUE"
    server = ScramExchange(mechanism, {}, NobodysCredentials(b"x"), "ours", tokens=tokens, now_ms=now_ms)
    first = server.receive(client.first())
    assert isinstance(first, Continue)
    done = server.receive(client.final(first.reply))
    assert isinstance(done, Done) and done.reply == client.server_signature
    return done


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_the_password_is_the_hmac_in_base64_and_opens_the_owners_door(mechanism: ScramMechanism) -> None:
    password = b64encode(hmac.new(KEY, b"an id", hashlib.sha512).digest()).decode()
    assert token_password(KEY, "an id") == password
    done = logged_in(credentials(), 2_000, password, mechanism)
    assert (done.user, done.token) == ("alice:x", TOKEN)


def test_a_token_is_good_for_nothing_when_it_is_over_or_there_is_no_key() -> None:
    password = token_password(KEY, "an id")
    for tokens, now_ms in ((credentials(), 2_001), (credentials(b""), 1_500), (TokenCredentials(), 1_500)):
        with pytest.raises(AuthenticationError):
            logged_in(tokens, now_ms, password)
    with pytest.raises(AuthenticationError):
        logged_in(credentials(), 1_500, token_password(b"another", "an id"))


def test_brokers_make_the_same_credential_and_forget_it_with_the_token_or_the_key() -> None:
    one, other = credentials(), credentials()
    kept = one.credential("an id", SHA_256)
    assert kept == other.credential("an id", SHA_256) and one.counts("an id", SHA_256, kept)
    assert kept != one.credential("an id", ScramMechanism.SCRAM_SHA_512)
    one.follow(b"another", one.tokens)
    assert not one.counts("an id", SHA_256, kept)
    other.follow(KEY, {})
    assert not other.counts("an id", SHA_256, kept) and not other._made
