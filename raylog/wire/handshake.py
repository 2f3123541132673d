"""How two processes of one cluster recognise each other: SCRAM-SHA-256 over the cluster's secret,
both ways.

The client opens with its cluster id and SCRAM's first message; the server answers with salt and
nonce; the client proves that it knows the secret; the server proves it too and says which actor and
incarnation it is. The secret never travels. A client that demands a certain actor refuses any
other: a port may have been reused by a neighbour. Before the proof a stranger learns nothing but
that something listens here, and that his cluster id is wrong if it is.

::

    client                                      server
    Handshake(cluster_id, scram=client-first) →
                                              ← HandshakeReply(scram=server-first)
    Handshake(scram=client-final, who calls)  →
                                              ← HandshakeReply(scram=server-final, who answers)

SCRAM stretches the secret with 4,096 rounds, about a millisecond. The result is kept per (secret,
salt), and the salt is made of the cluster id, so that a process pays once per cluster: reconnecting
after a death must not cost more than the round trips. A random salt would protect a weak, shared
password; the secret is random and belongs to one cluster.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from dataclasses import dataclass
from functools import cache
from typing import Final

from scramp import ScramClient, ScramException, ScramMechanism
from scramp.core import ClientStage, ScramServer

from raylog.errors import ProtocolError
from raylog.wire.internal_tls import Secret, secret_bytes
from raylog.wire.private import HandshakeMessage, HandshakeReply

HANDSHAKE_BYTES_MAX: Final = 4096
"""Of one message."""
MECHANISM: Final = "SCRAM-SHA-256"
ITERATIONS: Final = 4096  # the least that RFC 7677 allows
_USER: Final = "raylog"


class HandshakeError(ProtocolError):
    """The other end is not who it should be: no knowledge of the secret, another cluster, another
    actor.
    """


class WrongPeerError(HandshakeError):
    """The other end knows the secret and is another actor, or another incarnation, than was
    demanded.
    """


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end, as it says itself after proving the secret.

    ``node_id`` −1: a client, no server actor.
    """

    node_id: int = -1
    incarnation: int = 0


def _password(secret: Secret) -> str:
    """The secret as text that SASL's preparation of strings leaves alone."""
    return secret_bytes(secret).hex()


def _salt(cluster_id: str) -> bytes:
    return hashlib.sha256(b"raylog handshake salt\0" + cluster_id.encode()).digest()[:16]


@cache
def _salted_password(password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)


@cache
def _server_keys(password: str, cluster_id: str) -> tuple[bytes, bytes, bytes, int]:
    """Salt, stored key, server key and iterations, as scramp's server asks for them."""
    salt = _salt(cluster_id)
    salted = _salted_password(password, salt, ITERATIONS)
    stored_key = hashlib.sha256(_hmac(salted, b"Client Key")).digest()
    return salt, stored_key, _hmac(salted, b"Server Key"), ITERATIONS


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


class _CachingScramClient(ScramClient):  # type: ignore[misc]
    """scramp's client with the stretched secret remembered across connections."""

    def get_client_final(self) -> str:
        self._set_stage(ClientStage.get_client_final)
        iterations = int(self.iterations)
        if iterations > 16 * ITERATIONS:  # an impostor would have us compute for seconds
            raise ScramException(f"the server asks for {iterations} iterations")
        salted = _salted_password(self.password.password, bytes(self.salt), iterations)
        client_key = _hmac(salted, b"Client Key")
        binding = b64encode(self.gs2_header.make_cbind_input(None)).decode()
        without_proof = f"c={binding},r={self.nonce}"
        message = f"{self.client_first_bare},{self.server_first},{without_proof}".encode()
        signature = _hmac(hashlib.sha256(client_key).digest(), message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self.server_signature = _hmac(_hmac(salted, b"Server Key"), message)
        return f"{without_proof},p={b64encode(proof).decode()}"


class ClientHandshake:
    """The client's half: ``start()``, then ``receive`` every reply until it gives None; then
    ``peer`` is known.
    """

    def __init__(
        self, secret: Secret, cluster_id: str, *, caller: Peer | None = None, expect: Peer | None = None
    ) -> None:
        self._scram = _CachingScramClient([MECHANISM], _USER, _password(secret))
        self._cluster_id = cluster_id
        self._caller = caller or Peer()
        self._expect = expect
        self._proof_sent = False
        self.peer: Peer | None = None

    def start(self) -> HandshakeMessage:
        return HandshakeMessage(cluster_id=self._cluster_id, scram=self._scram.get_client_first())

    def receive(self, reply: HandshakeReply) -> HandshakeMessage | None:
        """The next message, or None when the other end has proved itself. Raises HandshakeError if
        it has not.
        """
        try:
            if not self._proof_sent:
                self._scram.set_server_first(reply.scram)
                self._proof_sent = True
                return HandshakeMessage(
                    scram=self._scram.get_client_final(),
                    node_id=self._caller.node_id,
                    incarnation=self._caller.incarnation,
                )
            self._scram.set_server_final(reply.scram)
        except ScramException as error:
            raise HandshakeError(f"the server does not know this cluster's secret ({error})") from None
        peer = Peer(reply.node_id, reply.incarnation)
        if self._expect is not None and peer != self._expect:
            raise WrongPeerError(
                f"node {peer.node_id} incarnation {peer.incarnation} answers where node {self._expect.node_id} "
                f"incarnation {self._expect.incarnation} was expected"
            )
        self.peer = peer
        return None


class ServerHandshake:
    """The server's half, one per connection:

    ``receive`` every message and send what it gives; done when ``peer`` is known.
    """

    def __init__(self, secret: Secret, cluster_id: str, *, identity: Peer | None = None) -> None:
        self._password = _password(secret)
        self._cluster_id = cluster_id
        self._identity = identity or Peer()
        self._scram: ScramServer | None = None
        self.peer: Peer | None = None

    def receive(self, message: HandshakeMessage) -> HandshakeReply:
        """The reply. Raises HandshakeError, and then the connection has to be closed."""
        try:
            if self._scram is None:
                if not hmac.compare_digest(message.cluster_id.encode(), self._cluster_id.encode()):
                    raise HandshakeError("the caller looks for another cluster")
                mechanism = ScramMechanism(MECHANISM)
                self._scram = mechanism.make_server(lambda _user: _server_keys(self._password, self._cluster_id))
                self._scram.set_client_first(message.scram)
                return HandshakeReply(scram=self._scram.get_server_first())
            self._scram.set_client_final(message.scram)
            final = self._scram.get_server_final()
        except ScramException as error:
            raise HandshakeError(f"the caller does not know this cluster's secret ({error})") from None
        self.peer = Peer(message.node_id, message.incarnation)
        return HandshakeReply(scram=final, node_id=self._identity.node_id, incarnation=self._identity.incarnation)
