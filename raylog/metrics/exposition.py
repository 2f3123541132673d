"""The text that Prometheus reads: its own format 0.0.4, and OpenMetrics 1.0.0.

They differ in the name of a counter's family, which in OpenMetrics lacks ``_total``, and in the last
line. A label's value escapes backslash, quote and line feed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from raylog.metrics.distributions import distributions
from raylog.metrics.metric import BOUND, Metric, MetricType
from raylog.metrics.registry import Labels, Samples
from raylog.metrics.table import METRICS

PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PUSHED_MEANING: Final = "pushed by clients"
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
    """The samples in the order of the table, then what clients have pushed; metrics without a
    series are left out.
    """
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
        if metric.type is MetricType.HISTOGRAM:
            lines += _histograms(metric, series)
            continue
        for labels, value in sorted(series.items()):
            lines.append(_line(metric.name, zip(metric.labels, labels, strict=True), value))
    for pushed in samples.pushed:
        is_counter = pushed.type is MetricType.COUNTER
        family = pushed.name.removesuffix("_total") if is_open and is_counter else pushed.name
        lines += [f"# HELP {family} {PUSHED_MEANING}", f"# TYPE {family} {pushed.type.value}"]
        lines += [_line(pushed.name, pairs, value) for pairs, value in sorted(pushed.series.items())]
    if is_open:
        lines.append("# EOF")
    return "\n".join(lines) + "\n"


def _histograms(metric: Metric, series: Mapping[Labels, float]) -> Iterator[str]:
    """Of each the counts up to every bound, with those below, and the sum."""
    for each in distributions(series):
        named = tuple(zip(metric.labels, each.labels, strict=True))
        for bound, count in each.cumulative():
            yield _line(f"{metric.name}_bucket", (*named, (BOUND, bound)), count)
        yield _line(f"{metric.name}_sum", named, each.sum_ms)
        yield _line(f"{metric.name}_count", named, each.count)


def _line(name: str, labels: Iterable[tuple[str, str]], value: float) -> str:
    named = ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in labels)
    return f"{name}{{{named}}} {_number(value)}" if named else f"{name} {_number(value)}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
