"""The client's half of SCRAM, against the server's half and against RFC 7677's example."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest

from raylog.security.sasl import AuthenticationError, Continue, Done, NobodysCredentials, ScramExchange
from raylog.security.sasl_client import ScramLogin, plain_token
from raylog.security.scram import ScramCredential, ScramMechanism, credential_of, salted_password

SALT = b"0123456789abcdef0"


def credential(mechanism: ScramMechanism, password: str) -> ScramCredential:
    return credential_of(mechanism, salted_password(mechanism, password, SALT, 4_096), SALT, 4_096)


def test_the_example_of_rfc_7677() -> None:
    login = ScramLogin(ScramMechanism.SCRAM_SHA_256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    assert login.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    final = login.final(f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode())
    assert final == f"c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
    login.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    with pytest.raises(AuthenticationError, match="has not proved"):
        login.verify(b"v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize("user, password", [("alice", "a"), ("a,b=c", 'a "secret", = ü'), ("ü", "=2C")])
def test_the_servers_half_accepts_it_and_is_believed(mechanism: ScramMechanism, user: str, password: str) -> None:
    known = {(user, mechanism): credential(mechanism, password)}
    server = ScramExchange(mechanism, known, NobodysCredentials(b"key"), "server")
    login = ScramLogin(mechanism, user, password, "client")
    first: Any = server.receive(login.first())
    assert isinstance(first, Continue)
    last: Any = server.receive(login.final(first.reply))
    assert isinstance(last, Done) and last.user == user
    login.verify(last.reply)


@pytest.mark.parametrize(
    "answer, said",
    [
        (b"r=client,s=YQ==,i=4096", "not SCRAM's"),  # it adds nothing to the nonce
        (b"r=other,s=YQ==,i=4096", "not SCRAM's"),
        (b"r=client+,s=,i=4096", "not SCRAM's"),
        (b"r=client+,s=%%%%,i=4096", "broken base64"),
        (b"r=client+,s=YQ==,i=many", "not SCRAM's"),
        (b"r=client+,s=YQ==,i=4095", "asks for 4095 iterations"),
        (b"r=client+,s=YQ==,i=99999999", "asks for 99999999 iterations"),
        (b"\xff", "not SCRAM's"),
    ],
)
def test_an_answer_that_is_no_scram_is_refused(answer: bytes, said: str) -> None:
    login = ScramLogin(ScramMechanism.SCRAM_SHA_512, "alice", "hidden!", "client")
    with pytest.raises(AuthenticationError, match=said) as raised:
        login.final(answer)
    assert "hidden!" not in str(raised.value)


def test_an_impostor_is_found_out() -> None:
    login = ScramLogin(ScramMechanism.SCRAM_SHA_512, "alice", "hidden!", "client")
    login.final(b"r=client+,s=YQ==,i=4096")
    for token in (b"v=" + b64encode(b"0" * 64), b"", b"e=other-error", b"\xff"):
        with pytest.raises(AuthenticationError):
            login.verify(token)


def test_plain_is_one_token() -> None:
    assert plain_token("alice", "ü") == b"\0alice\0\xc3\xbc"
