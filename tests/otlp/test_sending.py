"""A collector is asked for a bounded time, and no more of its answer is read than one would have."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from raylog.errors import RaylogError
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
    [("", "/"), ("/", "/"), ("/v1/metrics", "/v1/metrics"), ("/as/it/is?key=1&b=", "/as/it/is?key=1&b=")],
)
def test_a_request_goes_to_the_path_and_the_query_of_its_url(asked: str, target: str) -> None:
    from otlp_receiver import otlp_receiver

    with otlp_receiver() as receiver:
        receiver.answer = (204, b"")
        assert post(f"{receiver.endpoint}{asked}", 60_000).send(b"") == b""
        assert [each.path for each in receiver.pushes] == [target]


@pytest.mark.parametrize("status", [300, 404, 500])
def test_every_other_answer_than_success_is_an_error(status: int) -> None:
    from otlp_receiver import otlp_receiver

    with otlp_receiver() as receiver:
        receiver.answer = (status, b"")
        with pytest.raises(RaylogError, match=f"answers {status}"):
            post(receiver.endpoint, 60_000).send(b"")


def test_names_and_values_of_headers_are_percent_encoded() -> None:
    found = settings_for("TRACES", "http://a", 1, {"OTEL_EXPORTER_OTLP_HEADERS": "a%2Db=c%3Dd%2Ce, f = g=h "})
    assert found.headers == {"a-b": "c=d,e", "f": "g=h"}


def test_a_collector_that_answers_drop_by_drop_is_given_up_in_time() -> None:
    with answering(b"x", 0.05) as url, pytest.raises(TimeoutError, match=r"^no answer within 0.5 s$"):
        post(url, 500).send(b"")


def test_an_answer_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "ANSWER_BYTES_MAX", 1 << 18)
    with answering(bytes(1 << 17), 0.001) as url, pytest.raises(HttpAnswerTooLongError):
        post(url, 60_000).send(b"")
