"""scramp beside raylog's own listener half of SCRAM: its client gets in, and its server can't take what Kafka's clients send.

When one of the refusals below is gone, see whether scramp can take the place of ``raylog.security.sasl``.
"""

from __future__ import annotations

import pytest
from sasl_client import Scram
from scramp import ScramClient, ScramException, ScramMechanism

from raylog.security import scram
from raylog.security.sasl import AuthenticationError, Continue, Done, NobodysCredentials, ScramExchange

NOBODY = NobodysCredentials(b"a secret of the cluster")
MECHANISMS = [each.sasl_name for each in scram.ScramMechanism]


def kept(mechanism: scram.ScramMechanism, password: str) -> scram.ScramCredential:
    salted = scram.salted_password(mechanism, password, b"some salt of 12", 4_096)
    return scram.credential_of(mechanism, salted, b"some salt of 12", 4_096)


def exchanged(mechanism_name: str, password: str) -> Done:
    """scramp's client with ``password`` at a listener that keeps ``secret``."""
    mechanism = next(each for each in scram.ScramMechanism if each.sasl_name == mechanism_name)
    client = ScramClient([mechanism_name], "alice,=", password)
    server = ScramExchange(mechanism, {("alice,=", mechanism): kept(mechanism, "secret")}, NOBODY, "ours")
    first = server.receive(client.get_client_first().encode())
    assert isinstance(first, Continue)
    client.set_server_first(first.reply.decode())
    done = server.receive(client.get_client_final().encode())
    assert isinstance(done, Done)
    client.set_server_final(done.reply.decode())
    return done


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_scramps_client_gets_in_with_the_password_and_believes_the_server(mechanism: str) -> None:
    assert exchanged(mechanism, "secret").user == "alice,="
    with pytest.raises(AuthenticationError):
        exchanged(mechanism, "another")


def refused_by_scramp(client: Scram, keeps: str = "secret") -> str:
    """What scramp's server says to a client with the right password."""
    mechanism = ScramMechanism("SCRAM-SHA-256")
    server = mechanism.make_server(lambda user: mechanism.make_auth_info(keeps))
    with pytest.raises(ScramException) as raised:
        server.set_client_first(client.first().decode())
        server.set_client_final(client.final(server.get_server_first().encode()).decode())
    return str(raised.value)


def test_scramps_server_takes_no_delegation_token() -> None:
    client = Scram("a token's id", "secret")
    client.bare += ",tokenauth=true"
    assert "must start with a letter followed by a '='" in refused_by_scramp(client)


def test_scramps_server_takes_no_name_of_whose_rights_even_its_own() -> None:
    client = Scram("alice", "secret")
    client.header = "n,a=alice,"
    assert "authzid must be empty" in refused_by_scramp(client)


def test_scramps_server_prepares_names_that_kafka_leaves_alone() -> None:
    told: list[str] = []
    server = ScramMechanism("SCRAM-SHA-256").make_server(lambda user: told.append(user))
    with pytest.raises(ScramException, match="Unknown user"):
        server.set_client_first(Scram("\u00aa", "secret").first().decode())
    assert told == ["a"], "another user"
    refused_by_scramp(Scram("a\nb", "secret"))
