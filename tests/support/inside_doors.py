"""The doors of the inside links: the servers of the controller, the Broker and the hosts of replicas, before and after the secret is
proven.

Whoever knows the secret may do anything: end the cluster, retire a machine, speak for the controller. A request that would do so is
sent in such bytes only as are no request, and the others as they come.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any, Final, get_args, get_origin, get_type_hints

from acl_cases import TOPIC
from authorized import Clients
from fast_feed import Ask, Door
from fed_frames import is_harmless
from feed_doors import framed, is_decoded
from hostile_frames import real_frames

from raylog.kafka import table
from raylog.kafka.context import RequestContext
from raylog.types import BROKER_SLOT, node_id
from raylog.wire import private
from raylog.wire.frames import decode_response
from raylog.wire.handshake import ClientHandshake, Peer
from raylog.wire.server import Server

SHARES: Final = {"stranger": 4, "member": 5, "node": 5}
_HARMLESS: Final = {
    private.AWAIT_LEADER,
    private.CLUSTER_STATUS,
    private.FIND_CONTROLLER,
    private.DESCRIBE_QUORUM,
    private.CANCEL,
    private.LOCATE_RECORDS,
    private.COLLECT_METRICS,
    private.DESCRIBE_EVENTS,
    private.READ_LOGS,
    private.HANDSHAKE,
    private.JOIN_TRANSACTION,
    private.KEEP_TRANSACTION,
    private.END_SHARED_TRANSACTION,
    table.PRODUCE.key,
    table.OFFSET_FETCH.key,
    table.FIND_COORDINATOR.key,
    table.API_VERSIONS.key,
}


def inside_servers(clients: Clients) -> dict[str, Server]:
    """By place; a host that has replicas of users' topics, and one of coordinators."""
    running = clients.running
    broker = node_id(0, BROKER_SLOT)
    found = {"controller": running.controller._server, "broker": running.launcher.servers[broker]._server}
    for node, host in sorted(running.launcher.servers.items()):
        if node != broker:
            has_topic = host._names.id_of_name(TOPIC) == clients.topic_id
            found["replicas" if has_topic else "coordinators"] = host._server
    return found


def inside_doors(clients: Clients) -> list[Door]:
    """A stranger's, a member's and a node's, for each server."""
    found = []
    broker = clients.running.launcher.servers[node_id(0, BROKER_SLOT)]
    own = Peer(broker._spec.node_id, broker._spec.incarnation)
    real = real_frames(clients.topic_id)
    for place, server in inside_servers(clients).items():
        frames = sorted(
            {
                *(framed(each) for each in private_requests(server)),
                *(each for each in real if _key(each) in server.versions),
            }
        )
        wrapped = [_from_broker(each) for each in frames]
        port = server.ports[0]
        hands = handshakes(server.cluster_id)
        found.append(Door(f"stranger at {place}", server, port, frames, hands, SHARES["stranger"], is_sequence=True))
        for who, caller, sent in (("member", Peer(), frames), ("node", own, wrapped)):
            found.append(
                Door(
                    f"{who} at {place}",
                    server,
                    port,
                    sent,
                    [[each] for each in sent],
                    SHARES[who],
                    log_in=_proof(server, caller),
                    is_taken=is_harmless_inside,
                )
            )
    return found


def is_harmless_inside(frame: bytes) -> bool:
    """Whether it changes nothing for good, or is no request."""
    return _key(frame) in _HARMLESS or is_harmless(frame) or not is_decoded(frame)


def private_requests(server: Server) -> list[Any]:
    """Two of each that the server answers: one of plain values, one of large ones."""
    kinds = [kind for key, kind in sorted(private._requests.items()) if key in server.versions]
    return [_filled(kind, is_large) for kind in kinds for is_large in (False, True)]


def handshakes(cluster_id: str) -> list[list[bytes]]:
    """What a stranger can say: the right cluster and SCRAM's first message, and a proof of nothing."""
    first = "n,,n=raylog,r=rOprNGfwEbeRWgbNEkqO"
    proof = "c=biws,r=rOprNGfwEbeRWgbNEkqO,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    found = []
    for cluster, opening in ((cluster_id, first), ("another", first), (cluster_id, ""), (cluster_id, "y,a=x,n=,r=")):
        opened = framed(private.HandshakeMessage(cluster_id=cluster, scram=opening))
        for node in (-1, 0, 1 << 62):
            found.append([opened, framed(private.HandshakeMessage(scram=proof, node_id=node, incarnation=node))])
    return found


def _filled(kind: type, is_large: bool) -> Any:
    hints = get_type_hints(kind)
    return kind(**{each.name: _value(hints[each.name], is_large) for each in dataclasses.fields(kind)})


def _value(hint: Any, is_large: bool) -> Any:
    """Of that type."""
    origin, inner = get_origin(hint) or hint, [each for each in get_args(hint) if each is not type(None)]
    if origin is tuple:
        return (_value(inner[0], is_large),) * (3 if is_large else 1) if inner and inner[0] is not Any else ((1, 2),)
    if origin is dict:
        return {"a": _value(inner[1], is_large)} if inner and inner[1] is not Any else {"a": 1}
    plain = {int: (1, (1 << 31) - 1), str: (TOPIC, "x" * 40), bool: (False, True), bytes: (b"x" * 16, b"y" * 64)}
    if origin in plain:
        return plain[origin][is_large]
    if origin is float:
        return 1e300 if is_large else 1.0
    if dataclasses.is_dataclass(origin):
        return _filled(origin, is_large)
    return _value(inner[0], is_large) if inner else None


def _from_broker(frame: bytes) -> bytes:
    """The same request as a Broker passes it on for a client."""
    context = RequestContext("User:fuzz", "PLAINTEXT", "127.0.0.1", "fuzz").header_field()
    return frame[:8] + context + frame[14:]


def _proof(server: Server, caller: Peer) -> Callable[[Ask], Awaitable[None]]:
    async def log_in(ask: Ask) -> None:
        assert server.secret is not None
        hands = ClientHandshake(server.secret, server.cluster_id, caller=caller)
        message: private.HandshakeMessage | None = hands.start()
        while message is not None:
            message = hands.receive(decode_response(private.HANDSHAKE, 0, await ask(framed(message))))

    return log_in


def _key(frame: bytes) -> int:
    return int.from_bytes(frame[:2], "big", signed=True)
