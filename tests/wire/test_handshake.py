"""The handshake's two halves against each other and against plain scramp."""

import hashlib

import pytest
from scramp import ScramClient

from raylog.wire.handshake import ClientHandshake, HandshakeError, Peer, ServerHandshake, WrongPeerError
from raylog.wire.private import HandshakeMessage, HandshakeReply

SERVER = Peer(65538, 4711)
CLIENT = Peer(131074, 99)


def shake(client: ClientHandshake, server: ServerHandshake) -> None:
    message: HandshakeMessage | None = client.start()
    while message is not None:
        message = client.receive(server.receive(message))


def test_both_ends_learn_who_the_other_is() -> None:
    client = ClientHandshake("secret", "cluster", caller=CLIENT, expect=SERVER)
    server = ServerHandshake(b"secret", "cluster", identity=SERVER)
    shake(client, server)
    assert client.peer == SERVER
    assert server.peer == CLIENT


def test_a_caller_without_the_secret_is_refused_and_learns_nothing() -> None:
    client = ClientHandshake("guess", "cluster")
    server = ServerHandshake("secret", "cluster", identity=SERVER)
    first = server.receive(client.start())
    assert (first.node_id, first.incarnation) == (-1, 0)
    final = client.receive(first)
    assert final is not None
    with pytest.raises(HandshakeError, match="secret"):
        server.receive(final)
    assert server.peer is None


def test_a_server_without_the_secret_is_refused() -> None:
    """It cannot make the salted keys, so the best it can do is to agree to everything."""
    client = ClientHandshake("secret", "cluster")
    impostor = ServerHandshake("guess", "cluster")
    final = client.receive(impostor.receive(client.start()))
    assert final is not None
    with pytest.raises(HandshakeError, match="secret"):
        client.receive(HandshakeReply(scram="v=" + "A" * 43 + "=", node_id=1, incarnation=1))
    assert client.peer is None


def test_another_cluster_is_refused_before_any_proof() -> None:
    with pytest.raises(HandshakeError, match="another cluster"):
        ServerHandshake("secret", "mine").receive(ClientHandshake("secret", "yours").start())


@pytest.mark.parametrize("expected", [Peer(65538, 4712), Peer(65539, 4711)])
def test_a_neighbour_on_a_reused_port_is_refused(expected: Peer) -> None:
    client = ClientHandshake("secret", "cluster", expect=expected)
    with pytest.raises(WrongPeerError, match="node 65538 incarnation 4711 answers"):
        shake(client, ServerHandshake("secret", "cluster", identity=SERVER))
    assert client.peer is None


def test_the_secret_does_not_travel() -> None:
    seen: list[str] = []
    client = ClientHandshake("open sesame", "cluster")
    server = ServerHandshake("open sesame", "cluster")
    message: HandshakeMessage | None = client.start()
    while message is not None:
        reply = server.receive(message)
        seen += [message.scram, reply.scram]
        message = client.receive(reply)
    for text in seen:
        assert "open sesame" not in text and b"open sesame".hex() not in text


def test_a_recorded_proof_does_not_open_another_connection() -> None:
    client = ClientHandshake("secret", "cluster")
    start = client.start()
    final = client.receive(ServerHandshake("secret", "cluster").receive(start))
    assert final is not None
    later = ServerHandshake("secret", "cluster")
    later.receive(start)
    with pytest.raises(HandshakeError):
        later.receive(final)


def test_plain_scramp_is_understood() -> None:
    """Our client computes its proof itself, to keep the stretched secret; the server must take anybody's."""
    server = ServerHandshake("secret", "cluster", identity=SERVER)
    plain = ScramClient(["SCRAM-SHA-256"], "raylog", b"secret".hex())
    reply = server.receive(HandshakeMessage(cluster_id="cluster", scram=plain.get_client_first()))
    plain.set_server_first(reply.scram)
    reply = server.receive(HandshakeMessage(scram=plain.get_client_final()))
    plain.set_server_final(reply.scram)
    assert server.peer == Peer()


@pytest.mark.parametrize("scram", ["", "n,,", "n,,n=x,r=", "y,,n=raylog,r=abc,m=1", "\0" * 50, "n,,n=raylog,r=ä"])
def test_malformed_scram_is_refused(scram: str) -> None:
    with pytest.raises(HandshakeError):
        ServerHandshake("secret", "cluster").receive(HandshakeMessage(cluster_id="cluster", scram=scram))


def test_a_server_that_asks_for_millions_of_iterations_is_refused() -> None:
    client = ClientHandshake("secret", "cluster")
    nonce = client.start().scram.partition("r=")[2]
    with pytest.raises(HandshakeError, match="9999999 iterations"):
        client.receive(HandshakeReply(scram=f"r={nonce}x,s={'QUJDREVGR0hJSktM'},i=9999999"))


def test_shaking_hands_again_derives_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is what costs: thousands of hashes."""
    derive, derived = hashlib.pbkdf2_hmac, list[bytes]()

    def noted(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        derived.append(password)
        return derive(name, password, salt, iterations)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", noted)
    for _ in range(3):
        shake(ClientHandshake("kept", "cluster"), ServerHandshake("kept", "cluster"))
    assert derived == [b"kept".hex().encode()]
