"""A server that passes requests on by their bytes: small and large ones, in order, and the answers back."""

from __future__ import annotations

import asyncio
import datetime
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.produce.v9.response import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from wire_ends import client_of, produce, raw, server_of

from raylog.wire.connection import Connection
from raylog.wire.frames import client_id_field, encode_request
from raylog.wire.request import Request

pytestmark = pytest.mark.core

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def answer_about(records: bytes) -> ProduceResponse:
    """Names the records by their size and their last byte; as long as they are."""
    partition = PartitionProduceResponse(
        index=0,
        error_code=ErrorCode.none,
        base_offset=len(records) * 256 + records[-1],
        log_append_time=None,
        record_errors=(),
        error_message="".join(map(chr, bytes(records[:30_000])))[:30_000] if len(records) < 100_000 else None,
    )
    topic = TopicProduceResponse(name="t", partition_responses=(partition,))
    return ProduceResponse(responses=(topic,), throttle_time=datetime.timedelta(0))


def test_requests_and_answers_pass_whole_and_in_order(run: Run) -> None:
    """Sizes on either side of where frames are copied, handed on as views, or come in pieces."""
    rng = random.Random(1)
    sizes = [1, 100, 4_050, 4_100, 20_000, 65_300, 65_450, 65_536, 65_700, 100_000, 1_000_000, 5_000_000]
    sent = [bytes([rng.randrange(1, 100)]) * rng.choice(sizes) for _ in range(120)]

    async def work() -> None:
        def passed(request: Request) -> None:
            assert request.frame is not None

            def heard(frame: Any, error: Exception | None) -> None:
                assert error is None
                request.pass_on(frame)

            frame = request.frame
            behind.pass_on(
                frame, request.position, len(frame), request.guarded(heard), context=request.context, timeout_ms=20_000
            )

        back = server_of({0: lambda request: request.reply(answer_about(records_of(request)))}, borrows_records=True)
        behind: Connection = await client_of(await back.start())
        front = server_of({0: passed}, ordered=True, secret=None, undecoded=(0,))
        client = await client_of(await front.start(), secret=None)
        try:
            answers = await asyncio.gather(*(client.send(produce(each)) for each in sent))
            assert answers == [answer_about(each) for each in sent]
        finally:
            client.abort()
            behind.abort()
            await front.stop(grace_s=0)
            await back.stop(grace_s=0)

    def records_of(request: Request) -> bytes:
        return bytes(request.body.topic_data[0].partition_data[0].records)

    run(work())


def test_a_body_is_decoded_when_it_is_asked_for_even_later(run: Run) -> None:
    parked: list[Request] = []

    async def work() -> None:
        server = server_of({0: parked.append}, ordered=True, secret=None, undecoded=(0,))
        client = await client_of(await server.start(), secret=None)
        replies = [client.send(produce(bytes([number]) * 50_000)) for number in range(1, 9)]
        while len(parked) < 8:
            await asyncio.sleep(0.001)
        for request in parked:
            records = request.body.topic_data[0].partition_data[0].records
            request.reply(answer_about(records))
        found = [(await reply).responses[0].partition_responses[0].base_offset for reply in replies]
        assert found == [50_000 * 256 + number for number in range(1, 9)]
        client.close()
        await server.stop()

    run(work())


def test_a_malformed_body_is_refused_like_any_frame_that_makes_no_sense(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        server = server_of({0: lambda request: request.reply(request.body)}, secret=None, undecoded=(0,))
        reader, writer = await raw(await server.start())
        frame = b"".join(encode_request(produce(), 1, client_id_field("c")))
        writer.write(frame[:17] + b"\xff" * (len(frame) - 17))
        assert await reader.read() == b""
        writer.close()
        assert server.refused_connections == 1 and server.in_flight_bytes == 0
        await server.stop()

    run(work())
    assert "closing the connection of" in caplog.text and "Traceback" not in caplog.text
