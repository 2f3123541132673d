"""A receiver of OpenTelemetry's metrics and spans over HTTP, as a collector is one, that decodes what it gets by Google's protobuf."""

from __future__ import annotations

import gzip
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Series = dict[tuple[str, frozenset[tuple[str, str]]], Any]
"""The data points by name and attributes."""


@dataclass(frozen=True, slots=True)
class Push:
    """One request. ``message`` is an ExportMetricsServiceRequest, or an ExportTraceServiceRequest."""

    path: str
    headers: dict[str, str]
    message: Any

    @property
    def resource(self) -> dict[str, str]:
        (found,) = self.message.resource_spans if self.is_of_spans else self.message.resource_metrics
        return {each.key: each.value.string_value for each in found.resource.attributes}

    @property
    def is_of_spans(self) -> bool:
        return self.path.endswith("/traces")

    @property
    def spans(self) -> list[Any]:
        """The messages named Span."""
        if not self.is_of_spans:
            return []
        return [span for one in self.message.resource_spans for each in one.scope_spans for span in each.spans]

    @property
    def metrics(self) -> dict[str, Any]:
        """The messages named Metric, by name."""
        return {each.name: each for one in self.message.resource_metrics for each in one.scope_metrics[0].metrics}

    @property
    def series(self) -> Series:
        found: Series = {}
        for name, metric in self.metrics.items():
            for point in getattr(metric, metric.WhichOneof("data")).data_points:
                key = (name, frozenset((each.key, each.value.string_value) for each in point.attributes))
                assert key not in found, f"{key}: a second time"
                found[key] = point
        return found

    def value(self, name: str, **labels: str) -> float | None:
        point = self.series.get((name, frozenset(labels.items())))
        return None if point is None else point.as_double


class Receiver:
    """``answer``: the status and the body of the next answers."""

    def __init__(self) -> None:
        self.pushes: list[Push] = []
        self.answer: tuple[int, bytes] = (200, b"")
        self.endpoint = ""
        self.free = threading.Event()  # while it is not set, no request is answered
        self.free.set()

    @property
    def spans(self) -> list[Any]:
        return [span for each in list(self.pushes) for span in each.spans]


@contextmanager
def otlp_receiver(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Listens on a free port of 127.0.0.1."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Content-Encoding"] == "gzip":
                body = gzip.decompress(body)
            kind = ExportTraceServiceRequest if self.path.endswith("/traces") else ExportMetricsServiceRequest
            message = kind.FromString(body)
            receiver.pushes.append(Push(self.path, {k.lower(): v for k, v in self.headers.items()}, message))
            receiver.free.wait()
            status, content = receiver.answer
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    receiver.endpoint = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
    try:
        yield receiver
    finally:
        receiver.free.set()
        server.shutdown()
        server.server_close()
        thread.join(60)
