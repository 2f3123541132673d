"""A source for Spark's Structured Streaming: it answers how far the stream goes and what lies
between two places.

Spark 3.5 has no Python API for sources. But a source is a Java interface (``Source``), which a
Python object can implement (a py4j proxy, as with ``foreachBatch``), and a plan may hold one
directly (``spark_private.streaming_frame``). So this source works like Spark's own: its places are in
Spark's checkpoint (``checkpoint.place``), and watermarks, windows, joins, sinks and triggers are
Spark's.

Between two places lie the entries after the first up to the second, read from their files in the
ledger. A file is removed only once its entry is committed, so a repeated batch reads the same
ranges. When a query restarts, Spark also requests its last committed batch but does not read it, so
committed entries may be missing; any other missing entry is an error.

Each task of a batch has preferred hosts: ranges whose replicas are on the same hosts share tasks.
Spark counts the records that tasks read as the batch's input.

Entries are removed as one checkpoint advances, so a query with another checkpoint is refused.
Errors raised here, on a py4j thread for each query, end the query and become its exception. Spark
may start and stop a query several times with the same source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from raylog.errors import ConfigError
from raylog.ranges.entries import StreamEntry
from raylog.ranges.ledger import StreamLedger
from raylog.ranges.splitting import OffsetRange
from raylog.spark.checkpoint import CheckpointProgress, entry_number, place, query_of
from raylog.spark.spark_private import as_offset, no_limit, running_query, streaming_batch, tasks_frame
from raylog.spark.stream_planner import StreamPlanner

Records = Callable[[Any], Any]


class LedgerSource:
    """Of one ledger, for the query whose checkpoint is that directory.

    ``records``: turns a DataFrame with a row for each task into a batch. ``tasks``: tasks per batch
    if there are enough ranges, a few more if replicas are on different hosts. A task with several
    ranges has at most ``task_offsets_max`` offsets. ``offsets_max``: the most offsets of a batch.
    """

    def __init__(
        self,
        spark: Any,
        ledger: StreamLedger,
        checkpoint: Path,
        planner: StreamPlanner,
        *,
        records: Records,
        tasks: int,
        task_offsets_max: int | None = None,
        offsets_max: int | None = None,
    ) -> None:
        self._spark = spark
        self._ledger = ledger
        self._checkpoint = checkpoint
        self._planner = planner
        self._records = records
        self._tasks = tasks
        self._task_offsets_max = task_offsets_max
        self._offsets_max = offsets_max
        self._query: str | None = None  # the query that is known to own the checkpoint
        self._last: int | None = None  # the last entry for an available-now query

    # ------------------------------------------------------------------ Spark's names: Source, SupportsTriggerAvailableNow

    def schema(self) -> Any:
        return self._batch([""], [()]).schema()

    def prepareForTriggerAvailableNow(self) -> None:
        self._planner.plan_all()
        self._last = max(self._ledger.numbers(), default=0)

    def getDefaultReadLimit(self) -> Any:
        return no_limit(self._spark)

    def latestOffset(self, start: Any, limit: Any) -> Any:
        """Return the place up to which the next batch reads; ``start`` if there is nothing new."""
        self._check_query()
        self._planner.check()
        begun = 0 if start is None else self._entry_of(start.json())
        there = [each for each in self._ledger.numbers() if each > begun and (self._last is None or each <= self._last)]
        if not there:
            return start
        return as_offset(self._spark, place(self._ledger.name, self._last_of_batch(there)))

    def reportLatestOffset(self) -> Any:
        return None

    def getOffset(self) -> Any:
        raise NotImplementedError("Spark calls latestOffset instead")

    def initialOffset(self) -> Any:
        raise NotImplementedError("the first batch of a stream has no start")

    def deserializeOffset(self, text: str) -> Any:
        return as_offset(self._spark, text)

    def getBatch(self, start: Any, end: Any) -> Any:
        """Return the records between two places, as a streaming DataFrame of the JVM."""
        self._check_query()
        begun = self._entry_of(start.get().json()) if start.isDefined() else 0
        parts = self._parts(begun, self._entry_of(end.json()))
        groups = bundled([part for part, _ in parts], self._tasks, self._task_offsets_max)
        tasks = ["\n".join(parts[index][1] for index in group) for group in groups]
        return self._batch(tasks, [parts[group[0]][0].hosts for group in groups])

    def commit(self, end: Any) -> None:
        """Nothing to do: the planner follows the checkpoint."""

    def stop(self) -> None:
        self._last = None

    def toString(self) -> str:
        return f"raylog[{self._ledger.name}]"

    def hashCode(self) -> int:
        return id(self) & 0x7FFFFFFF

    def equals(self, other: Any) -> bool:
        return other is self

    class Java:
        implements = (
            "org.apache.spark.sql.execution.streaming.Source",
            "org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow",
        )

    # ------------------------------------------------------------------ entries

    def _batch(self, tasks: Sequence[str], hosts: Sequence[Sequence[str]]) -> Any:
        return streaming_batch(self._records(tasks_frame(self._spark, tasks, hosts)))

    def _check_query(self) -> None:
        query = running_query(self._spark)
        if query is None or query == self._query:
            return
        if query != query_of(self._checkpoint):
            raise ConfigError(
                f'the query\'s .option("checkpointLocation", …) is not {self._checkpoint}, the checkpoint that read_stream was given for '
                f"{self._ledger.name}: give it that one, or, for another query, call read_stream again with its checkpoint"
            )
        self._query = query

    def _last_of_batch(self, there: Sequence[int]) -> StreamEntry:
        """Return the last of these entries that belongs to the next batch."""
        if self._offsets_max is None:
            return self._ledger.entry(there[-1])
        last = self._ledger.entry(there[0])
        left = self._offsets_max - _offsets(last)
        for number in there[1:]:
            entry = self._ledger.entry(number)
            left -= _offsets(entry)
            if left < 0:
                break
            last = entry
        return last

    def _entry_of(self, text: str) -> int:
        number = entry_number(text, self._ledger.name)
        if number is None:
            raise ConfigError(
                f"the checkpoint has {text} in the place of stream {self._ledger.name}: it belongs to another query, or its streams "
                "were in another order; give this one a checkpoint of its own"
            )
        return number

    def _parts(self, begun: int, end: int) -> list[tuple[OffsetRange, str]]:
        found: list[tuple[OffsetRange, str]] = []
        for number in range(begun + 1, end + 1):
            try:
                found += self._ledger.parts(number)
            except FileNotFoundError:
                if number > self._committed():
                    raise ConfigError(
                        f"entry {number} of {self._ledger.directory} is gone, and the query has not read it: "
                        "remove the whole checkpoint directory to start again"
                    ) from None
        return found

    def _committed(self) -> int:
        progress = CheckpointProgress(self._checkpoint, self._ledger.name)
        progress.refresh()
        return progress.committed


def bundled(parts: Sequence[OffsetRange], tasks: int, task_offsets_max: int | None = None) -> list[list[int]]:
    """Group ranges into tasks (by index): only ranges with the same hosts share one, with about
    equal offsets.

    There are ``tasks`` of them; fewer if there are fewer ranges; more if there are more sets of
    hosts, each of which needs one, or if a task with several ranges would exceed
    ``task_offsets_max``.
    """
    by_hosts: dict[tuple[str, ...], list[int]] = {}
    for index, part in enumerate(parts):
        by_hosts.setdefault(tuple(sorted(part.hosts)), []).append(index)
    total = sum(len(part) + 1 for part in parts)
    bundles: list[list[int]] = []
    for _, indices in sorted(by_hosts.items()):
        size = sum(len(parts[index]) + 1 for index in indices)
        count = min(len(indices), max(1, round(tasks * size / total)))
        made: list[list[int]] = [[] for _ in range(count)]
        loads = [0] * count
        for index in sorted(indices, key=lambda index: (-len(parts[index]), index)):
            lightest = min(range(len(made)), key=lambda number: loads[number])
            if (
                task_offsets_max is not None
                and made[lightest]
                and loads[lightest] + len(parts[index]) > task_offsets_max
            ):
                lightest = len(made)
                made.append([])
                loads.append(0)
            made[lightest].append(index)
            loads[lightest] += max(1, len(parts[index]))
        bundles += [sorted(bundle) for bundle in made]
    return bundles


def _offsets(entry: StreamEntry) -> int:
    return sum(len(each) for each in entry.ranges)
