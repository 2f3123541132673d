"""What the acts of ``make demo`` have in common: a folder that goes with each, progress, what is
said when one fails, and figures.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from raylog.cli.entry import INTERRUPTED
from raylog.errors import RaylogError

WIDTH_MAX = 80


def console() -> Console:
    """As wide as the terminal, but not so wide that figures are lost in it."""
    return Console(width=min(WIDTH_MAX, Console().width))


@contextmanager
def stage(console: Console, name: str) -> Iterator[tuple[Path, Progress]]:
    """A folder for an act's data, removed after it, and its progress. SystemExit, after a line that
    says why, where it can't go on.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"raylog-{name}-"))
    columns = (TextColumn("{task.description:<28}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(SpinnerColumn(), *columns, console=console) as progress:
            yield folder, progress
    except RaylogError as error:
        console.print(f"[red]The {name} failed:[/] {error}", highlight=False)
        console.print("raylog doctor says whether this machine lacks something.")
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        console.print("Interrupted.")
        raise SystemExit(INTERRUPTED) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def print_figures(console: Console, rows: Iterable[tuple[str, str]]) -> None:
    """What an act has found out, a line each."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for row in rows:
        table.add_row(*row)
    console.print(table, highlight=False)
