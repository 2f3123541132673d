"""Spans of traces, and OpenTelemetry's ExportTraceServiceRequest that they are sent in
(opentelemetry-proto 1.x)::

    ExportTraceServiceRequest  1 ResourceSpans
    ResourceSpans  1 Resource    2 ScopeSpans
    ScopeSpans     1 Scope    2 Span…
    Span           1 trace id    2 span id    4 parent's id    5 name    6 kind    7 start time    8 end time
                   9 KeyValue…    15 Status (2 message, 3 code)

``fields`` has the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from raylog.otlp.fields import attributes, fixed, nested, number, signal_request, text

_ERROR = 2  # of Status.code


class SpanKind(Enum):
    INTERNAL = 1
    SERVER = 2


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """Times are nanoseconds since 1970. ``error``: why the operation has failed; "": it has not."""

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    name: str
    kind: SpanKind
    start_ns: int
    end_ns: int
    attributes: tuple[tuple[str, str | int], ...]
    error: str = ""


def export_request(spans: Iterable[TraceSpan], resource: Mapping[str, str], *, version: str) -> bytes:
    """``resource``: whose spans these are."""
    return signal_request(resource.items(), version, b"".join(nested(2, _span(each)) for each in spans))


def _span(span: TraceSpan) -> bytes:
    return (
        nested(1, span.trace_id)
        + nested(2, span.span_id)
        + nested(4, span.parent_id)
        + text(5, span.name)
        + number(6, span.kind.value)
        + fixed(7, span.start_ns)
        + fixed(8, span.end_ns)
        + attributes(9, span.attributes)
        + (nested(15, text(2, span.error) + number(3, _ERROR)) if span.error else b"")
    )
