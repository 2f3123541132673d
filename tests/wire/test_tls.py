"""A listener that speaks TLS: the same frames, small and large, behind a certificate."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from kio.schema.produce.v9.response import ProduceResponse
from wire_ends import EMPTY_REPLY, produce, read_frame, server_of

from raylog.kafka.context import EXTERNAL
from raylog.wire.frames import client_id_field, decode_response, encode_request
from raylog.wire.request import Request
from raylog.wire.server import Server

pytestmark = pytest.mark.core

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A self-signed one for 127.0.0.1, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a broker")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "broker.pem"
    pem, no_password = serialization.Encoding.PEM, serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, no_password)
    path.write_bytes(private + made.public_bytes(pem))
    return path


def server_behind(certificate: Path, carried: list[bytes]) -> Server:
    def handle(request: Request) -> None:
        carried.append(bytes(request.body.topic_data[0].partition_data[0].records))
        assert (request.context.listener, request.context.client_host) == (EXTERNAL, "127.0.0.1")
        request.reply(EMPTY_REPLY)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return server_of({0: handle}, secret=None, ordered=True, listener=EXTERNAL, ssl=context)


def test_requests_of_all_sizes_are_answered_behind_tls(run: Run, certificate: Path) -> None:
    sent = [bytes([65 + number]) * size for number, size in enumerate((1, 5_000, 70_000, 3_000_000))]

    async def work() -> None:
        carried: list[bytes] = []
        server = server_behind(certificate, carried)
        endpoint = await server.start()
        trusting = ssl.create_default_context(cafile=str(certificate))
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=trusting)
        for number, records in enumerate(sent):
            writer.writelines(encode_request(produce(records), number, client_id_field("c")))
        for number in range(len(sent)):
            frame = await read_frame(reader)
            assert frame[:4] == number.to_bytes(4, "big")
            assert decode_response(0, 9, frame) == ProduceResponse(responses=(), throttle_time=datetime.timedelta(0))
        assert carried == sent
        writer.close()
        await writer.wait_closed()
        await server.stop()

    run(work())


def test_who_speaks_plainly_or_trusts_nobody_gets_nothing(run: Run, certificate: Path) -> None:
    async def work() -> None:
        carried: list[bytes] = []
        server = server_behind(certificate, carried)
        endpoint = await server.start()
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        writer.writelines(encode_request(produce(), 1, client_id_field("c")))
        try:
            assert len(await reader.read()) < 20, "an alert at most"
        except ConnectionError:
            pass
        writer.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection(endpoint.host, endpoint.port, ssl=ssl.create_default_context())
        assert not carried
        await server.stop()

    run(work())
