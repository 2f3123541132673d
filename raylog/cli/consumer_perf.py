"""``raylog consumer-perf``: how fast one member of a group reads, with the options and lines of Kafka's
``kafka-consumer-perf-test``.

Records are read as objects, by ``consume``. The time that the group needs to assign partitions is
shown apart from the rest, the time of fetching.
"""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylog.cli.client_properties import (
    CommandProperty,
    ConsumerFile,
    MoreProperties,
    PrintMetrics,
    cluster_of,
    properties_of,
    refuse_metrics,
)
from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, ConnectTimeout, Folder
from raylog.cli.output import AsJson, notice, print_json, print_text

if TYPE_CHECKING:
    from raylog.client.sync import Consumer

MIB = 1024 * 1024
POLL_S = 0.1
RECORDS_AT_ONCE = 10_000
TOO_FEW = (
    "WARNING: Exiting before consuming the expected number of records: timeout ({} ms) exceeded. "
    "You can use the --timeout option to increase the timeout."
)
COLUMNS = "data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec"
TIMES = "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
MILLISECONDS = "\x01"  # stands for them in a format: strftime has none
JAVA_TIME = {
    "yyyy": "%Y",
    "yy": "%y",
    "MM": "%m",
    "dd": "%d",
    "HH": "%H",
    "hh": "%I",
    "mm": "%M",
    "ss": "%S",
    "SSS": MILLISECONDS,
    "a": "%p",
    "Z": "%z",
}
"""Letters of Java's SimpleDateFormat, and strftime's."""

Include = Annotated[
    str | None, typer.Option(help="Read the topics whose names match a regular expression.", show_default=False)
]
NumRecords = Annotated[
    int | None,
    typer.Option("--num-records", "--messages", min=1, help="How many records to read.", show_default=False),
]


def consumer_perf(
    topic: Annotated[str | None, typer.Option(help="The topic to read.", show_default=False)] = None,
    include: Include = None,
    num_records: NumRecords = None,
    group: Annotated[str | None, typer.Option(help="The group; by default a new one.", show_default=False)] = None,
    from_latest: Annotated[
        bool, typer.Option("--from-latest", help="Begin at the end where the group has no offset.")
    ] = False,
    fetch_size: Annotated[int | None, typer.Option(min=1, help="max.partition.fetch.bytes; by default 1 MiB.")] = None,
    socket_buffer_size: Annotated[
        int | None, typer.Option(min=-1, help="receive.buffer.bytes; by default 2 MiB.")
    ] = None,
    timeout: Annotated[int, typer.Option(min=0, help="Milliseconds without a record after which to end.")] = 10_000,
    show_detailed_stats: Annotated[
        bool, typer.Option("--show-detailed-stats", help="A line for each interval, none for the whole.")
    ] = False,
    reporting_interval: Annotated[int, typer.Option(min=1, help="Milliseconds between these lines.")] = 5_000,
    hide_header: Annotated[bool, typer.Option("--hide-header", help="Without the names of columns.")] = False,
    date_format: Annotated[str, typer.Option(help="As for Java's SimpleDateFormat.")] = "yyyy-MM-dd HH:mm:ss:SSS",
    command_property: CommandProperty = None,
    consumer_config: ConsumerFile = None,
    more: MoreProperties = None,
    print_metrics: PrintMetrics = False,
    folder: Folder = None,
    address: Address = None,
    connect_timeout: ConnectTimeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Read records as a member of a group and measure the rate, as kafka-consumer-perf-test does.

    --command-config FILE has options of the consumer. Exits with 1 if there were fewer records
    before the time-out. `raylog perf consume` measures batches instead.
    """
    refuse_metrics(print_metrics)
    if num_records is None or (topic is None) == (include is None):
        raise typer.BadParameter("give --num-records, and one of --topic and --include")
    topics = [topic] if topic is not None else _pattern_of(include or "")
    clock = _format_of(date_format)
    properties = properties_of(consumer_config, None, command_property, more)
    cluster, options = cluster_of(properties, folder, address, connect_timeout)
    given = {
        "group.id": group,
        "auto.offset.reset": "latest" if from_latest else None,
        "max.partition.fetch.bytes": fetch_size,
        "receive.buffer.bytes": socket_buffer_size,
    }
    settings = _defaults() | options | {name: value for name, value in given.items() if value is not None}
    lines = _Lines(clock, is_detailed=show_detailed_stats, is_quiet=as_json, interval_s=reporting_interval / 1_000)
    if not hide_header:
        lines.print_header()
    with cluster.consumer(**{name.replace(".", "_"): value for name, value in settings.items()}) as consumer:
        progress, ended = _read(consumer, topics, lines, num_records, timeout / 1_000)
    lines.print_end(progress, ended)
    if progress.records < num_records:
        notice(TOO_FEW.format(timeout))
        raise typer.Exit(1)


def _defaults() -> dict[str, Any]:
    """Of Kafka's tool, where they are not the consumer's."""
    return {
        "group.id": f"perf-consumer-{random.randrange(100_000)}",
        "auto.offset.reset": "earliest",
        "max.partition.fetch.bytes": MIB,
        "receive.buffer.bytes": 2 * MIB,
    }


def _pattern_of(include: str) -> re.Pattern[str]:
    try:
        return re.compile(include)
    except re.error as error:
        raise typer.BadParameter(f"--include {include!r} is no regular expression: {error}") from None


def _read(
    consumer: Consumer, topics: list[str] | re.Pattern[str], lines: _Lines, num_records: int, timeout_s: float
) -> tuple[ReadProgress, float]:
    """Read so many records, or until none came for so long. Returns what was read, and when it
    ended.
    """
    progress = ReadProgress()
    consumer.subscribe(
        topics,
        on_assigned=lambda partitions: progress.assigned(),
        on_revoked=lambda partitions: progress.revoked(),
    )
    now = read_at = progress.begun
    while progress.records < num_records and now - read_at <= timeout_s:
        records = consumer.consume(min(num_records - progress.records, RECORDS_AT_ONCE), timeout=POLL_S)
        now = time.perf_counter()
        if records:
            read_at = now
        progress.records += len(records)
        progress.size_bytes += sum(len(each.key or b"") + len(each.value or b"") for each in records)
        lines.maybe_print(progress, now)
    return progress, now


@dataclass(slots=True)
class ReadProgress:
    """What was read, and for how long the group assigned partitions meanwhile."""

    begun: float = field(default_factory=time.perf_counter)
    records: int = 0
    size_bytes: int = 0
    rebalances_s: float = 0.0
    rebalance_begun: float | None = None

    def __post_init__(self) -> None:
        self.rebalance_begun = self.begun

    def revoked(self) -> None:
        self.rebalance_begun = time.perf_counter()

    def assigned(self) -> None:
        if self.rebalance_begun is not None:
            self.rebalances_s += time.perf_counter() - self.rebalance_begun
            self.rebalance_begun = None

    def since(self, before: ReadProgress, now: float) -> tuple[float, float, float, float, float, float]:
        """Since an earlier one: MiB and records per second, ms of rebalances and of fetching, MiB
        and records per second of fetching.
        """
        elapsed_s = max(now - before.begun, 1e-9)
        rebalances_s = self.rebalances_s - before.rebalances_s
        fetching_s = max(elapsed_s - rebalances_s, 1e-9)
        megabytes, records = (self.size_bytes - before.size_bytes) / MIB, self.records - before.records
        rates = megabytes / elapsed_s, records / elapsed_s, 1_000 * rebalances_s, 1_000 * fetching_s
        return *rates, megabytes / fetching_s, records / fetching_s


class _Lines:
    """Prints one line at the end, or one for each interval."""

    def __init__(self, clock: str, *, is_detailed: bool, is_quiet: bool, interval_s: float) -> None:
        self._clock = clock
        self._is_detailed = is_detailed and not is_quiet
        self._is_quiet = is_quiet
        self._interval_s = interval_s
        self._begun_at = time.time()
        self._before: ReadProgress | None = None

    def print_header(self) -> None:
        """The names of columns."""
        if not self._is_quiet:
            print_text(("time, threadId, " if self._is_detailed else "start.time, end.time, ") + f"{COLUMNS}, {TIMES}")

    def maybe_print(self, progress: ReadProgress, now: float) -> None:
        """A detailed line, if one is due."""
        before = self._before or ReadProgress(progress.begun)
        if self._is_detailed and now - before.begun >= self._interval_s:
            print_text(f"{self._time(time.time())}, 0, {_row(progress, before, now)}")
            self._before = replace(progress, begun=now)

    def print_end(self, progress: ReadProgress, now: float) -> None:
        """The line of the whole, unless there were detailed ones; or the document."""
        start = ReadProgress(progress.begun)
        if self._is_quiet:
            _print_document(progress, start, now)
        elif not self._is_detailed:
            ended_at = self._begun_at + now - progress.begun
            print_text(f"{self._time(self._begun_at)}, {self._time(ended_at)}, {_row(progress, start, now)}")

    def _time(self, seconds: float) -> str:
        moment = datetime.fromtimestamp(seconds).astimezone()
        return moment.strftime(self._clock).replace(MILLISECONDS, f"{moment.microsecond // 1_000:03d}")


def _row(progress: ReadProgress, before: ReadProgress, now: float) -> str:
    megabytes_s, records_s, rebalances_ms, fetching_ms, fetched_mb_s, fetched_s = progress.since(before, now)
    return (
        f"{progress.size_bytes / MIB:.4f}, {megabytes_s:.4f}, {progress.records}, {records_s:.4f}, "
        f"{rebalances_ms:.0f}, {fetching_ms:.0f}, {fetched_mb_s:.4f}, {fetched_s:.4f}"
    )


def _print_document(progress: ReadProgress, start: ReadProgress, now: float) -> None:
    megabytes_s, records_s, rebalances_ms, fetching_ms, fetched_mb_s, fetched_s = progress.since(start, now)
    print_json(
        {
            "records": progress.records,
            "bytes": progress.size_bytes,
            "seconds": round(now - progress.begun, 6),
            "records_per_s": round(records_s, 1),
            "mib_per_s": round(megabytes_s, 3),
            "rebalance_ms": round(rebalances_ms, 1),
            "fetch_ms": round(fetching_ms, 1),
            "fetch_records_per_s": round(fetched_s, 1),
            "fetch_mib_per_s": round(fetched_mb_s, 3),
        }
    )


def _format_of(java: str) -> str:
    """A SimpleDateFormat for strftime. BadParameter for letters that are not known here."""
    parts = re.findall(r"([A-Za-z])(\1*)|'([^']*)'|([^A-Za-z'])", java)
    found = []
    for letter, more, quoted, other in parts:
        if letter and letter + more not in JAVA_TIME:
            known = ", ".join(JAVA_TIME)
            raise typer.BadParameter(f"--date-format {java!r}: {letter + more} is not known here, only {known}")
        found.append(JAVA_TIME[letter + more] if letter else (quoted or other).replace("%", "%%"))
    return "".join(found)
