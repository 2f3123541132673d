"""SASL's exchanges as pure values: the example of RFC 7677, and what nobody can tell from an answer."""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sasl_client import Scram

from raylog.security.sasl import (
    AuthenticationError,
    Check,
    Continue,
    Done,
    NobodysCredentials,
    PlainExchange,
    ScramExchange,
)
from raylog.security.scram import (
    CredentialKey,
    ScramCredential,
    ScramMechanism,
    credential_of,
    salt_of,
    salted_password,
)

SHA_256 = ScramMechanism.SCRAM_SHA_256
NOBODY = NobodysCredentials(b"a secret of the cluster")


def credential(password: str, mechanism: ScramMechanism = SHA_256, salt: bytes = b"some salt") -> ScramCredential:
    return credential_of(mechanism, salted_password(mechanism, password, salt, 4_096), salt, 4_096)


def exchange(
    known: dict[CredentialKey, ScramCredential], nonce: str = "ours", mechanism: ScramMechanism = SHA_256
) -> ScramExchange:
    return ScramExchange(mechanism, known, NOBODY, nonce)


def answer(step: object) -> bytes:
    assert isinstance(step, Continue)
    return step.reply


def test_the_example_of_rfc_7677() -> None:
    known = {("user", SHA_256): credential("pencil", salt=b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="))}
    server = exchange(known, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = answer(server.receive(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"))
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    done = server.receive(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert isinstance(done, Done) and done.user == "user"
    assert done.reply == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1), st.sampled_from(ScramMechanism))
def test_every_name_and_password_that_can_be_written_gets_in(text: str, mechanism: ScramMechanism) -> None:
    known = {(text, mechanism): credential(text, mechanism)}
    server, client = exchange(known, mechanism=mechanism), Scram(text, text, mechanism.sasl_name)
    done = server.receive(client.final(answer(server.receive(client.first()))))
    assert isinstance(done, Done) and done.user == text and done.reply == client.server_signature
    check = PlainExchange(known, NOBODY).receive(f"\0{text}\0{text}".encode())
    assert isinstance(check, Check) and check.is_right() and check.done.user == text


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_whatever_comes_is_an_error_of_the_clients(first: bytes, second: bytes) -> None:
    for start in (b"", b"n,,n=alice,r=", b"c=biws,r=xours,p="):
        server = exchange({("alice", SHA_256): credential("x")})
        try:
            server.receive(start + first)
            with pytest.raises(AuthenticationError):
                server.receive(b"c=biws,r=" + second)
        except AuthenticationError:
            pass
        try:
            PlainExchange({}, NOBODY).receive(first)
        except AuthenticationError:
            pass


def test_a_proof_made_of_what_the_cluster_keeps_is_worth_nothing() -> None:
    kept = credential("secret")
    server, client = exchange({("alice", SHA_256): kept}), Scram("alice", "x")
    first = answer(server.receive(client.first()))
    honest = client.final(first).rpartition(b",p=")[0]
    message = f"{client.bare},{first.decode()},{honest.decode()}".encode()
    signature = SHA_256.hmac(kept.stored_key, message)
    for key in (kept.stored_key, kept.server_key):
        again = exchange({("alice", SHA_256): kept})
        again.receive(client.first())
        forged = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        with pytest.raises(AuthenticationError, match="a wrong password of user 'alice'"):
            again.receive(honest + b",p=" + b64encode(forged))


@pytest.mark.parametrize("proof", [b"AAAA", b"A" * 87 + b"=", b"=AAA"])
def test_a_proof_of_another_length_is_none(proof: bytes) -> None:
    server, client = exchange({("alice", SHA_256): credential("x")}), Scram("alice", "x")
    final = client.final(answer(server.receive(client.first())))
    with pytest.raises(AuthenticationError):
        server.receive(final.rpartition(b",p=")[0] + b",p=" + proof)


def test_nobodys_credentials_stay_and_cannot_be_had() -> None:
    first, again = (NOBODY.credential("eve", SHA_256) for _ in range(2))
    assert first == again != NobodysCredentials(b"another cluster").credential("eve", SHA_256)
    assert first.salt != NOBODY.credential("mallory", SHA_256).salt
    for mechanism in ScramMechanism:
        nobodys = NOBODY.credential("eve", mechanism)
        assert len(nobodys.stored_key) == mechanism.key_bytes and 20 <= len(nobodys.salt) <= 26
    server, client = exchange({}), Scram("eve", "x")
    with pytest.raises(AuthenticationError, match="no such user"):
        server.receive(client.final(answer(server.receive(client.first()))))


def test_even_whoever_knows_nobodys_password_does_not_get_in() -> None:
    class Known(NobodysCredentials):
        def credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
            return credential("x", mechanism)

    server, client = ScramExchange(SHA_256, {}, Known(b""), "ours"), Scram("eve", "x")
    with pytest.raises(AuthenticationError, match="no such user"):
        server.receive(client.final(answer(server.receive(client.first()))))
    check = PlainExchange({}, Known(b"")).receive(b"\0eve\0x")
    assert isinstance(check, Check) and not check.is_right()


def test_salts_are_like_those_of_kafkas_tools() -> None:
    assert int(salt_of(hashlib.sha256(b"x").digest()), 36) < 2**130
