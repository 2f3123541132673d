"""What ``flights_pipeline.py`` must come to: the same sums in one go over the tables of the package, without topics, Spark or time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flights_stream import LATE_MINUTES, VISIBILITY_MILES

from raylog.cli.flights import read_table

Table = dict[str, Any]
"""By ``origin/carrier/day``: ``{"all": [flights, departed, minutes], "late": n, "bands": [[flights, departed, minutes], …]}``."""


@dataclass(frozen=True, slots=True)
class Differences:
    """Keys that are not as they must be."""

    missing: list[str]
    unexpected: list[str]
    different: list[str]

    def __len__(self) -> int:
        return len(self.missing) + len(self.unexpected) + len(self.different)


def recomputed(days: int = 365) -> Table:
    """The table of the first so many days of 2013."""
    weather = read_table("weather").select(["origin", "time_hour", "visib"])
    flights = read_table("flights").join(weather, ["origin", "time_hour"], join_type="left outer")
    dates = sorted(set(zip(flights["month"].to_pylist(), flights["day"].to_pylist(), strict=True)))[:days]
    wanted = {date: f"2013-{date[0]:02}-{date[1]:02}" for date in dates}
    table: Table = {}
    columns = ("origin", "carrier", "month", "day", "dep_delay", "visib")
    for origin, carrier, month, day, minutes, visibility in zip(*(flights[each].to_pylist() for each in columns)):
        if (date := wanted.get((month, day))) is None:
            continue
        row = table.setdefault(
            f"{origin}/{carrier}/{date}", {"all": [0, 0, 0], "late": 0, "bands": [[0, 0, 0] for _ in VISIBILITY_MILES]}
        )
        row["late"] += minutes is not None and minutes > LATE_MINUTES
        counts = [row["all"]]
        if visibility is not None:
            counts.append(row["bands"][sum(visibility >= miles for miles in VISIBILITY_MILES) - 1])
        for each in counts:
            each[0] += 1
            each[1] += minutes is not None
            each[2] += minutes or 0
    return table


def differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> Differences:
    """What is not equal, key by key."""
    return Differences(
        missing=sorted(expected.keys() - found.keys()),
        unexpected=sorted(found.keys() - expected.keys()),
        different=sorted(key for key in expected.keys() & found.keys() if found[key] != expected[key]),
    )
