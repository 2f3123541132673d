"""The doors of a fuzzed cluster: what is sent in at each, and who has to log in first."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from authorized import Clients
from fast_feed import DOORS, Ask, Door
from fed_frames import SUPER_USER, is_harmless, seeds, split
from hostile_frames import PASSWORD, TOKENS, USER, real_frames, sasl_frames
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from sasl_client import Scram

from raylog.errors import ProtocolError
from raylog.wire.frames import (
    client_id_field,
    decode_request_body,
    decode_request_header,
    decode_response,
    encode_request,
)

SHARES = {"open": 55, "sasl": 15, "login": 20, "super": 10}
"""Of a hundred sessions. Those of ``sasl`` are short, as a connection has one attempt."""
SCRAM = "SCRAM-SHA-256"


def outside_doors(clients: Clients, corpus: Path) -> list[Door]:
    """Those where Kafka clients come in, before and after authentication. ``corpus``: sessions that the guided fuzzer has kept."""
    server = clients.running.launcher.servers[0].router.server
    ports = {"sasl" if each.has_sasl else "open": each for each in server.ports if each.ssl is None}
    kept = kept_sessions(corpus)
    for data in seeds(clients.topic_id):
        kept[DOORS[data[0]]].append(split(data[1:])[0])
    real, tokens = real_frames(clients.topic_id), sasl_frames(TOKENS)
    more = [each for sessions in kept.values() for frames in sessions for each in frames if len(each) >= 8]
    frames = sorted({*real, *filter(is_decoded, more)})
    anyone = [*frames, *tokens]
    harmless = [each for each in frames if is_harmless(each)]
    return [
        Door("open", server, ports["open"], anyone, kept["open"], SHARES["open"]),
        Door("sasl", server, ports["sasl"], anyone, kept["sasl"], SHARES["sasl"], is_sequence=True),
        Door("login", server, ports["sasl"], frames, kept["login"], SHARES["login"], log_in=by_scram(USER)),
        Door(
            "super",
            server,
            ports["sasl"],
            harmless,
            kept["super"],
            SHARES["super"],
            log_in=by_scram(SUPER_USER),
            is_taken=is_harmless,
            others=frames,
        ),
    ]


def kept_sessions(corpus: Path) -> defaultdict[str, list[list[bytes]]]:
    """By door, in the order of the files' names."""
    found: defaultdict[str, list[list[bytes]]] = defaultdict(list)
    for file in sorted(corpus.iterdir()) if corpus.is_dir() else []:
        data = file.read_bytes()
        frames = split(data[1:])[0]
        if frames:
            found[DOORS[data[0] % len(DOORS)]].append(frames)
    return found


def is_decoded(frame: bytes) -> bool:
    """Whether it is a request. One that is not ends its connection, however it is changed."""
    try:
        header, position = decode_request_header(frame)
        decode_request_body(frame, header, position, ignore_rest=True)
    except ProtocolError:
        return False
    return True


def by_scram(user: str) -> Any:
    """A login as that user."""

    async def log_in(ask: Ask) -> None:
        scram = Scram(user, PASSWORD, SCRAM)
        assert (await asked(ask, 17, 1, mechanism=SCRAM)).error_code is ErrorCode.none
        first = await asked(ask, 36, 2, auth_bytes=scram.first())
        last = await asked(ask, 36, 2, auth_bytes=scram.final(first.auth_bytes))
        assert last.error_code is ErrorCode.none, last

    return log_in


async def asked(ask: Ask, key: int, version: int, **fields: Any) -> Any:
    return decode_response(key, version, await ask(framed(load_request_schema(key, version)(**fields))))


def framed(entity: Any, field: bytes | None = None) -> bytes:
    """A request without its size."""
    return b"".join(encode_request(entity, 7, client_id_field("fuzz") if field is None else field))[4:]
