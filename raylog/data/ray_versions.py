"""What Ray Data's interfaces for sources and sinks look like in the Ray that is installed, from 2.37
on.

They changed more than once. Everything that depends on the release is here, and asks the interface
itself, not for a version number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from inspect import signature
from typing import Any

from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask, datasink

from raylog.ranges.sending import SentRows


def wanted_columns(source: Datasource) -> Iterable[str] | None:
    """The columns that a Dataset uses of this source; None: all, or this Ray does not say."""
    ask: Callable[[], Iterable[str] | None] | None = getattr(source, "get_projection_map", None)
    return None if ask is None else ask()


def says_columns() -> bool:
    """Whether this Ray can tell a source which columns are used."""
    return hasattr(Datasource, "get_projection_map")


def read_task(
    blocks: Callable[[], Iterable[Any]],
    *,
    num_rows: int | None = None,
    size_bytes: int | None,
    schema: Any,
    row_limit: int | None,
) -> ReadTask:
    """A task that reads ``blocks``: Arrow tables of the Arrow ``schema``, with so many rows and
    bytes in all, None where nobody knows.
    """
    untyped: Any = BlockMetadata
    known = {each.name for each in fields(untyped)}
    with_schema = {"schema": schema} if "schema" in known else {}
    metadata = untyped(num_rows=num_rows, size_bytes=size_bytes, exec_stats=None, input_files=None, **with_schema)
    options = {"schema": schema, "per_task_row_limit": row_limit}
    taken = signature(ReadTask).parameters
    untyped = ReadTask
    task: ReadTask = untyped(blocks, metadata, **{name: value for name, value in options.items() if name in taken})
    return task


def hands_over_results() -> bool:
    """Whether this Ray gives ``on_write_complete`` what each task returned. 2.40 does not."""
    known: Any = getattr(datasink, "WriteResult", None)
    return known is None or "write_returns" in {each.name for each in fields(known)}


def sent_by_tasks(write_result: Any) -> list[SentRows]:
    """What each write task sent, from what ``on_write_complete`` is given.

    Most releases give what each task returned. 2.40 gives a DataFrame with Ray's own
    count of each.
    """
    tasks = getattr(write_result, "write_returns", write_result)
    return [
        SentRows(int(each["write_result"].iloc[0].num_rows)) if hasattr(each, "iloc") else SentRows(*each)
        for each in tasks
    ]
