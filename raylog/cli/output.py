"""How commands speak: results on stdout (text or JSON), notices and progress on stderr, so that a
pipe sees results only.

With ``--json`` a command prints one JSON document, or one document a line where it streams. Text is
for people and may change; JSON keys are for scripts and stay.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from raylog.types import TopicPartition

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of text.")]


def print_json(document: Any) -> None:
    """One JSON document on one line."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False, default=_plain) + "\n")


def print_text(*lines: str) -> None:
    """Lines as they are: no markup, no wrapping (tabs and columns survive a pipe)."""
    for line in lines:
        sys.stdout.write(line + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """A table for people; numbers are aligned right."""
    cells = [[_cell(each) for each in row] for row in rows]
    table = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for index, name in enumerate(columns):
        numeric = bool(cells) and all(_is_number(row[index]) for row in cells)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*row)
    Console().print(table)


def print_columns(titles: Sequence[str], rows: Iterable[Sequence[str]], *, between: str = "  ") -> None:
    """Columns as wide as they need be, as Kafka's tools have them: names and ids are long there."""
    lines = [list(titles), *map(list, rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(titles))]
    print_text(
        *(between.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)
    )


def notice(line: str) -> None:
    """A line on stderr that is no result: what happened, what to do next."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def progress_bar(*, quiet: bool = False) -> Progress:
    """A progress display on stderr; nothing is drawn where stderr is no terminal, or with
    ``quiet``.
    """
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=quiet or not sys.stderr.isatty(),
        transient=True,
    )


def text_or_base64(name: str, value: bytes | None) -> dict[str, str | None]:
    """A record's key or value as a JSON field: text if it is UTF-8, else ``<name>Base64``."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(value).decode()}


def place(key: TopicPartition) -> dict[str, Any]:
    """A partition in a document, by Kafka's names."""
    return {"topic": key.topic, "partition": key.partition}


def comma_joined(numbers: Iterable[int]) -> str:
    """Ids as Kafka's tools print them."""
    return ",".join(map(str, numbers))


def _plain(value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    return str(value)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace(".", "", 1).lstrip("-").isdigit()
