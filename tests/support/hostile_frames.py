"""Requests of every API and version that a listener serves, changed at random, and a client that sends them and counts what comes back.

As a program it is that client, in a process of its own::

    python hostile_frames.py '{"frames": 1000, "seed": 1, "open": ["127.0.0.1", 9092], "sasl": ["127.0.0.1", 9093],
    "topic_id": "…", "kept": "a folder"}'

It prints a JSON object of counters. A frame whose outcome (API, version, errors) is new joins those that are changed further.
"""

from __future__ import annotations

import asyncio
import json
import random
import struct
import sys
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from acl_cases import CASES, USUAL, _filled
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from raylog.kafka import table
from raylog.kafka.spec import ServerKind
from raylog.wire.frames import client_id_field, decode_response, encode_request
from raylog.wire.private_transactions import (
    EndSharedTransactionRequest,
    JoinTransactionRequest,
    KeepTransactionRequest,
)

HOSTILE: Final = tuple(
    number.to_bytes(size, "big", signed=number < 0)
    for size in (1, 2, 4, 8)
    for number in (0, 1, -1, -2, (1 << (8 * size - 1)) - 1, -(1 << (8 * size - 1)), 1 << (8 * size - 2))
) + (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff\x01", b"\x80" * 6, b"\xc3\x28", b"\0" * 16)
FRAMES_OF_CONNECTION: Final = 16
CONNECTIONS: Final = 32
HEADER_BYTES: Final = 14  # of requests whose client id has four letters
PATIENCE_S: Final = 0.3
KINDS: Final = ("open",) * 12 + ("sasl",) * 3 + ("login",)
CORPUS_MAX: Final = 4_000
USER, PASSWORD = "fuzz", "a secret"


def real_frames(topic_id: uuid.UUID) -> list[bytes]:
    """A request of each API and version that a Broker serves to clients, without sizes in front."""
    found: list[Any] = [case.body(version, topic_id) for case in CASES for version in case.spec.versions]
    known = {case.spec for case in CASES}
    for spec in set(table.served_by(ServerKind.BROKER)) - known:
        found += [_filled(load_request_schema(spec.key, version), USUAL) for version in spec.versions]
    found += [
        JoinTransactionRequest("x", 1, 0),
        KeepTransactionRequest("x", 1, 0),
        EndSharedTransactionRequest("x", 1, 0, True),
    ]
    frames = [b"".join(encode_request(each, 7, client_id_field("fuzz")))[4:] for each in found]
    return sorted(frames)


def sasl_frames(tokens: Sequence[bytes]) -> list[bytes]:
    """Handshakes, and tokens in requests."""
    handshakes = [
        load_request_schema(17, version)(mechanism=mechanism)
        for version in (0, 1)
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI")
    ]
    told = [load_request_schema(36, version)(auth_bytes=token) for version in (0, 1, 2) for token in tokens]
    return [b"".join(encode_request(each, 7, client_id_field("fuzz")))[4:] for each in (*handshakes, *told)]


TOKENS: Final = (
    f"\0{USER}\0{PASSWORD}".encode(),
    b"\0nobody\0x",
    b"n,,n=fuzz,r=abc",
    b"n,,n=fuzz,r=abc,tokenauth=true",
    b"n,a=fuzz,n=fuzz,r=abc,ext=1",
    b"c=biws,r=abc,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
)


def changed(chance: random.Random, frame: bytes, others: Sequence[bytes], times: int | None = None) -> bytes:
    """A frame with up to four changes, most of them behind its header."""
    data = bytearray(frame)
    for _ in range(times or chance.choice((1, 1, 1, 2, 3, 4))):
        header = HEADER_BYTES if len(data) > HEADER_BYTES and chance.random() < 0.95 else 0
        at = header + chance.randrange(len(data) + 1 - header)
        end = min(len(data), at + chance.choice((1, 2, 4, 8, 16)))
        match chance.randrange(9):
            case 0 if data:
                data[at % len(data)] ^= 1 << chance.randrange(8)
            case 1 if data:
                data[at % len(data)] = chance.randrange(256)
            case 2 | 3:
                value = chance.choice(HOSTILE)
                data[at : at + len(value)] = value
            case 4:
                data[at:end] = b""
            case 5:
                data[at:at] = data[at:end] * chance.choice((1, 2, 50))
            case 6:
                other = chance.choice(others)
                data[at:] = other[chance.randrange(len(other) + 1) :]
            case 7 if chance.random() < 0.2:
                data[2:4] = chance.randrange(20).to_bytes(2, "big")  # the version
            case 8:
                del data[at:]
            case _:
                pass
    return bytes(data[:100_000])


def errors_of(entity: Any) -> frozenset[str]:
    """The names of all errors that stand in an answer."""
    found: set[str] = set()
    waiting = [entity]
    while waiting:
        each = waiting.pop()
        if isinstance(each, ErrorCode):
            found.add(each.name)
        elif isinstance(each, tuple):
            waiting.extend(each)
        elif hasattr(each, "__dataclass_fields__"):
            waiting.extend(getattr(each, name) for name in each.__dataclass_fields__)
    return frozenset(found - {"none"} or {"none"})


class HostileClient:
    """Sends frames to two listeners until so many have had an outcome."""

    def __init__(
        self, frames: int, seed: int, topic_id: uuid.UUID, open_: tuple[str, int], sasl: tuple[str, int]
    ) -> None:
        self.chance = random.Random(seed)
        self.wanted = frames
        self.places = {"open": open_, "sasl": sasl}
        self.real = real_frames(topic_id)
        self.corpus = {
            "open": [*self.real, *sasl_frames(TOKENS)],
            "sasl": [*sasl_frames(TOKENS), *self.real[::5]],
        }
        self.outcomes: Counter[str] = Counter()
        self.frames: Counter[str] = Counter()
        self.seen: set[tuple[Any, ...]] = set()

    async def work(self) -> None:
        await asyncio.gather(*(self._connect_again() for _ in range(CONNECTIONS)))

    async def _connect_again(self) -> None:
        while sum(self.frames.values()) < self.wanted:
            kind = self.chance.choice(KINDS)
            try:
                await self._connect(kind)
            except (OSError, asyncio.IncompleteReadError):
                self.outcomes["the connection breaks"] += 1

    async def _connect(self, kind: str) -> None:
        place = "open" if kind == "open" else "sasl"
        reader, writer = await asyncio.open_connection(*self.places[place])
        try:
            if kind == "login":
                for frame in (sasl_frames(TOKENS)[4], sasl_frames(TOKENS[:1])[-1]):
                    writer.write(struct.pack(">i", len(frame)) + frame)
                    await self._answer(reader)
            await self._throw(kind, place, reader, writer)
        finally:
            writer.close()

    async def _throw(self, kind: str, place: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        corpus = self.corpus["open" if kind == "login" else place]
        sent = []
        for number in range(FRAMES_OF_CONNECTION):
            frame = self.chance.choice(corpus)
            if self.chance.random() < 0.4:
                frame = changed(self.chance, frame, self.real)
            sent.append(frame[:4] + struct.pack(">i", number) + frame[8:] if len(frame) >= 8 else frame)
        pieces = [struct.pack(">i", len(each)) + each for each in sent]
        if self.chance.random() < 0.02:
            pieces[-1] = self.chance.choice(HOSTILE)[:4].rjust(4, b"\0") + sent[-1]
        writer.write(b"".join(pieces))
        waiting = 0
        while waiting < len(sent):
            self.frames[kind] += 1
            try:
                answer = await asyncio.wait_for(self._answer(reader), PATIENCE_S)
            except TimeoutError:
                self._note(sent[waiting], corpus, "it waits, or is not whole")
                return
            except (OSError, asyncio.IncompleteReadError):
                self._note(sent[waiting], corpus, "the connection is closed")
                return
            number = int.from_bytes(answer[:4], "big")
            if not waiting <= number < len(sent):
                self.outcomes["an answer to nothing"] += 1
                return
            self.frames[kind] += number - waiting
            self.outcomes["no answer is due"] += number - waiting  # to a Produce with acks=0
            self._note(sent[number], corpus, *self._told(sent[number], answer))
            waiting = number + 1

    @staticmethod
    async def _answer(reader: asyncio.StreamReader) -> bytes:
        size = int.from_bytes(await reader.readexactly(4), "big")
        return await reader.readexactly(size)

    @staticmethod
    def _told(frame: bytes, answer: bytes) -> list[str]:
        key, version = struct.unpack(">hh", frame[:4])
        if key == table.API_VERSIONS.key and version not in table.API_VERSIONS.versions:
            version = 0  # in which it tells those that are spoken
        try:
            return sorted(errors_of(decode_response(key, version, answer)))
        except Exception as error:
            return [f"an answer that is not decoded: {type(error).__name__}"]

    def _note(self, frame: bytes, corpus: list[bytes], *outcomes: str) -> None:
        self.outcomes.update(outcomes)
        signature = (frame[:4], outcomes)
        is_spoken = int.from_bytes(frame[:2], "big") in table.BY_KEY
        if is_spoken and signature not in self.seen and len(corpus) < CORPUS_MAX and 8 < len(frame) < 4_000:
            self.seen.add(signature)
            corpus.append(frame)


def main(arguments: dict[str, Any]) -> None:
    client = HostileClient(
        arguments["frames"],
        arguments["seed"],
        uuid.UUID(arguments["topic_id"]),
        tuple(arguments["open"]),
        tuple(arguments["sasl"]),
    )
    from fed_frames import kept_frames  # which imports this module

    client.corpus["open"] += kept_frames(Path(arguments["kept"]))
    asyncio.run(client.work())
    print(json.dumps({"frames": client.frames, "outcomes": client.outcomes, "signatures": len(client.seen)}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
