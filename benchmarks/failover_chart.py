"""Draws ``docs/failover.png`` from ``results/failover.json``: every run a dot, on a logarithmic scale, the median written beside.

The picture carries a digest of the figures that it shows (a text chunk of the PNG), so that ``report.py --check`` and the tests can
tell whether it is current without drawing anything.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from pathlib import Path
from typing import Any

CHART = Path(__file__).resolve().parent.parent / "docs" / "failover.png"
COLOURS = {"raylog": "#1f77b4", "Apache Kafka": "#d62728"}
SAME_PROCESS = "leader's node killed"  # Kafka has one process per broker: its leader killed is its node killed
STANDS_FOR = "leader process killed"
TICKS = {10: "10 ms", 100: "0.1 s", 1000: "1 s", 10_000: "10 s"}


def shown(result: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Case → contestant → every pause in ms, as the chart shows them."""
    return {
        case: {name: each["values"] for name, each in contestants.items()}
        for case, contestants in result["cases"].items()
    }


def digest(result: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(shown(result), sort_keys=True).encode()).hexdigest()


def is_current(result: dict[str, Any], chart: Path = CHART) -> bool:
    """Whether the picture shows these figures."""
    return chart.exists() and digest(result).encode() in chart.read_bytes()


def draw(result: dict[str, Any], chart: Path = CHART) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cases = shown(result)
    rows: list[tuple[str, str, list[float], bool]] = []
    for case, contestants in cases.items():
        for name in COLOURS:
            values = contestants.get(name)
            stands_in = values is None and name != "raylog" and case == SAME_PROCESS
            if stands_in:
                values = cases.get(STANDS_FOR, {}).get(name)
            if values:
                rows.append((case, name, values, stands_in))
    figure, axes = pyplot.subplots(figsize=(9.5, 0.5 * len(rows) + 1.4))
    place, labels, last = 0.0, {}, None
    for case, name, values, stands_in in rows:
        place += 1.0 if case == last else 1.6
        last = case
        labels.setdefault(case, []).append(place)
        spread = [place + 0.5 * (index / max(1, len(values) - 1) - 0.5) for index in range(len(values))]
        axes.scatter(
            values,
            spread,
            s=13,
            alpha=0.25 if stands_in else 0.65,
            color=COLOURS[name],
            linewidths=0,
            label=name if case == rows[0][0] else None,
        )
        median = statistics.median(values)
        axes.plot([median, median], [place - 0.36, place + 0.36], color=COLOURS[name], linewidth=2)
        text = f"{median:,.0f} ms" if median < 1000 else f"{median / 1000:.1f} s"
        text += " (the broker's one process)" if stands_in else ""
        side = "left" if max(values) < 3000 else "right"
        at = max(values) * 1.15 if side == "left" else min(values) / 1.15
        axes.text(at, place, text, va="center", ha=side, fontsize=8, color=COLOURS[name])
    axes.set_xscale("log")
    axes.set_xlim(8, 60_000)
    axes.set_xticks(list(TICKS), list(TICKS.values()))
    axes.set_yticks([statistics.mean(places) for places in labels.values()], list(labels))
    axes.invert_yaxis()
    axes.grid(axis="x", which="major", alpha=0.3)
    axes.set_title(
        "Longest time without an acknowledgement around a fault (acks=all, RF 3); every run a dot, the median a bar",
        fontsize=9.5,
        loc="left",
    )
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.07), ncol=2, frameon=False, fontsize=9)
    figure.savefig(chart, dpi=110, bbox_inches="tight", metadata={"Digest": digest(result)})
    pyplot.close(figure)
