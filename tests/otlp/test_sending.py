"""A collector is asked for a bounded time, and no more of its answer is read than one would have."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from raylog.errors import ConfigError, RaylogError
from raylog.http_questions import HttpAnswerTooLongError
from raylog.otlp import sending
from raylog.otlp.sending import OtlpPost, settings_for

pytestmark = pytest.mark.core


@contextmanager
def answering(part: bytes, pause_s: float) -> Iterator[str]:
    """A collector whose answer goes on until its client is gone; the URL."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connected, _ = listening.accept()
        with connected:
            connected.recv(1 << 16)
            connected.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
            connected.settimeout(pause_s)
            while True:
                try:
                    if not connected.recv(1 << 16):
                        return
                except TimeoutError:
                    pass
                except OSError:
                    return
                try:
                    connected.sendall(part)
                except OSError:
                    return

    served = threading.Thread(target=serve)
    served.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1/metrics"
    finally:
        served.join(60)
        listening.close()
        assert not served.is_alive(), "the connection has ended"


def post(url: str, timeout_ms: int) -> OtlpPost:
    return OtlpPost(settings_for("METRICS", url, 1_000, {"OTEL_EXPORTER_OTLP_TIMEOUT": str(timeout_ms)}))


@pytest.mark.parametrize(
    ("asked", "target"),
    [
        ("", "/"),
        ("/", "/"),
        ("/v1/metrics", "/v1/metrics"),
        ("/as/it/is?key=1&b=", "/as/it/is?key=1&b="),
        ("?key=1", "/?key=1"),
    ],
)
def test_a_request_goes_to_the_path_and_the_query_of_its_url(asked: str, target: str) -> None:
    from otlp_receiver import otlp_receiver

    with otlp_receiver() as receiver:
        receiver.answer = (204, b"")
        assert post(f"{receiver.endpoint}{asked}", 60_000).send(b"") == b""
        assert [each.path for each in receiver.pushes] == [target]


@pytest.mark.parametrize("status", [200, 299])
def test_an_answer_of_success_has_a_body(status: int) -> None:
    from otlp_receiver import otlp_receiver

    with otlp_receiver() as receiver:
        receiver.answer = (status, b"taken")
        assert post(receiver.endpoint, 60_000).send(b"") == b"taken"


@pytest.mark.parametrize(("status", "reason"), [(102, "Processing"), (300, "Multiple Choices"), (404, "Not Found")])
def test_every_other_answer_than_success_is_an_error(status: int, reason: str) -> None:
    from otlp_receiver import otlp_receiver

    with otlp_receiver() as receiver:
        receiver.answer = (status, b"")
        with pytest.raises(RaylogError, match=f"^it answers {status} {reason}$"):
            post(receiver.endpoint, 60_000).send(b"")


def test_names_and_values_of_headers_are_percent_encoded() -> None:
    found = settings_for("TRACES", "http://a", 1, {"OTEL_EXPORTER_OTLP_HEADERS": "a%2Db=c%3Dd%2Ce, f = g=h "})
    assert found.headers == {"a-b": "c=d,e", "f": "g=h"}


def test_a_collector_that_answers_drop_by_drop_is_given_up_in_time() -> None:
    begun = time.monotonic()
    with answering(b"x", 0.05) as url, pytest.raises(TimeoutError, match=r"^no answer within 0.5 s$"):
        post(url, 500).send(b"")
    assert time.monotonic() - begun < 30


def test_an_answer_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "ANSWER_BYTES_MAX", 1 << 18)
    with answering(bytes(1 << 17), 0.001) as url, pytest.raises(HttpAnswerTooLongError):
        post(url, 60_000).send(b"")


# ------------------------------------------------------------------ TLS


@contextmanager
def tls_receiver(folder: Path, hosts: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """The URL of a collector with a certificate for these hosts, else for 127.0.0.1, and the file of its
    authority.
    """
    from certificates import Authority
    from otlp_receiver import otlp_receiver

    authority = Authority(folder)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(authority.signed("collector", hosts=hosts))
    with otlp_receiver(tls) as receiver:
        yield receiver.endpoint, str(authority.certificate)


def secure_post(url: str, **environment: str) -> OtlpPost:
    named = {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in environment.items()}
    return OtlpPost(settings_for("TRACES", url, 1_000, named))


def test_a_collector_is_known_by_the_authorities_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tls_receiver(tmp_path) as (url, ca):
        monkeypatch.setenv("SSL_CERT_FILE", ca)
        assert secure_post(url).send(b"") == b""


def test_a_collector_of_another_name_is_not_sent_to(tmp_path: Path) -> None:
    with (
        tls_receiver(tmp_path, hosts=["elsewhere"]) as (url, ca),
        pytest.raises(ssl.SSLCertVerificationError, match=r"127.0.0.1"),
    ):
        secure_post(url, CERTIFICATE=ca).send(b"")


@pytest.mark.parametrize("text", ["", "no PEM", None])
@pytest.mark.parametrize("name", ["CERTIFICATE", "CLIENT_CERTIFICATE"])
def test_files_of_certificates_that_cannot_be_used_are_refused_with_the_reason(
    tmp_path: Path, name: str, text: str | None
) -> None:
    path = tmp_path / "file.pem"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=r"^the certificates for https://a cannot be used: .") as refused:
        secure_post("https://a", **{name: str(path)})
    assert str(refused.value).endswith(f": {refused.value.__cause__}")
