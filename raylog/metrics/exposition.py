"""The text that Prometheus reads: its own format 0.0.4, and OpenMetrics 1.0.0.

They differ in the name of a counter's family, which in OpenMetrics lacks ``_total``, and in the last
line. A label's value escapes backslash, quote and line feed.
"""

from __future__ import annotations

from typing import Final

from raylog.metrics.metric import MetricType
from raylog.metrics.registry import Samples
from raylog.metrics.table import METRICS

PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_OPENMETRICS_TYPE = "application/openmetrics-text"
_VERSIONS = (None, "0.0.1", "1.0.0")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def content_type(accept: str) -> str:
    """The format for a scraper that sent this Accept header: OpenMetrics if it prefers that."""
    openmetrics = others = 0.0
    for each in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in each.split(";"))
        given = dict(parameter.partition("=")[::2] for parameter in parameters)
        try:
            weight = float(given.get("q", "1"))
        except ValueError:
            weight = 0.0
        if kind == _OPENMETRICS_TYPE and given.get("version") in _VERSIONS:
            openmetrics = max(openmetrics, weight)
        elif kind in ("text/plain", "text/*", "*/*"):
            others = max(others, weight)
    return OPENMETRICS if openmetrics and openmetrics >= others else PROMETHEUS


def exposition(samples: Samples, format: str = PROMETHEUS) -> str:
    """The samples in the order of the table; metrics without a series are left out."""
    is_open = format == OPENMETRICS
    lines: list[str] = []
    for metric in METRICS.values():
        series = samples.of(metric)
        if not series:
            continue
        is_counter = metric.type is MetricType.COUNTER
        family = metric.name.removesuffix("_total") if is_open and is_counter else metric.name
        meaning = metric.meaning.translate(_ESCAPES) if is_open else metric.meaning
        lines += [f"# HELP {family} {meaning}", f"# TYPE {family} {metric.type.value}"]
        for labels, value in sorted(series.items()):
            named = ",".join(f'{n}="{v.translate(_ESCAPES)}"' for n, v in zip(metric.labels, labels, strict=True))
            lines.append(f"{metric.name}{{{named}}} {_number(value)}" if named else f"{metric.name} {_number(value)}")
    if is_open:
        lines.append("# EOF")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
