"""The page of ``raylog top``, drawn with rich from the figures of its document."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from raylog.cli.top_figures import ACTOR_ORDERS, TOPIC_ORDERS, PageOrder, Row

KEYS = "q quit · topics by i in, o out, r records, n name · actors by c CPU, m memory, d delay"
Draw = Callable[[list[Row], PageOrder], Table]
_FRAME_LINES = 4  # totals, health, a blank line and the keys
_TABLE_LINES = 3  # a blank line, the title and the header


def page(document: Row, order: PageOrder, *, height: int | None, note: str = "") -> RenderableType:
    """``height`` in lines, shared out among the tables; None shows every row. ``note`` says why the
    figures are not those of now.
    """
    tables: list[tuple[Draw, list[Row]]] = [
        (_brokers, document["brokers"]),
        (_controllers(document["quorum"]), document["controllers"] or []),
        (_topics, document["topics"]),
        (_groups, document["groups"]),
        (_followers, document["followers"]),
        *([] if document["actors"] is None else [(_actors, document["actors"])]),
    ]
    filled = [(draw, rows) for draw, rows in tables if rows]
    counts = _shared_out([len(rows) for _, rows in filled], height)
    drawn: list[RenderableType] = []
    for (draw, rows), count in zip(filled, counts, strict=True):
        table: Table = draw(rows[:count], order)
        if count < len(rows):
            table.title = f"{table.title}, {count} of {len(rows)}"
        drawn += ["", table]
    foot = Text(note or KEYS, style="yellow" if note else "dim", no_wrap=True, overflow="ellipsis")
    return Group(_totals(document), _health(document), *drawn, "", foot)


def _shared_out(wanted: list[int], height: int | None) -> list[int]:
    """How many rows each table has, so that all fit; at least one. Small tables leave their lines to
    large ones.
    """
    if height is None:
        return wanted
    room = height - _FRAME_LINES - _TABLE_LINES * len(wanted)
    counts = [0] * len(wanted)
    for place, index in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        counts[index] = max(1, min(wanted[index], room // (len(wanted) - place)))
        room -= counts[index]
    return counts


def _totals(document: Row) -> Text:
    at = datetime.fromtimestamp(document["time_ms"] / 1_000).astimezone().isoformat(" ", "seconds")[:19]
    total = document["total"]
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{at}  {document['cluster_id']}  ", style="dim")
    line.append(f"in {_rate(total['bytes_in_per_s'])}, {_count(total['records_in_per_s'])} records/s", style="bold")
    line.append(f"  out {_rate(total['bytes_out_per_s'])}", style="bold")
    line.append(f"  copied {_rate(total['replication_bytes_in_per_s'])}")
    return line


def _health(document: Row) -> Text:
    wrong = [
        f"{name}: {_first(document[key])}"
        for key, name in (
            ("leaderless", "without a leader"),
            ("under_replicated", "under-replicated"),
            ("silent", "processes that do not answer"),
        )
        if document[key]
    ]
    away = [each["broker"] for each in document["brokers"] if not each["live"]]
    if away:
        wrong.append(f"brokers away: {_first(away)}")
    lost = [each["broker"] for each in document["controllers"] or () if each["reachable"] is False]
    if lost:
        wrong.append(f"controllers that cannot be reached: those of broker {_first(lost)}")
    return Text(
        "; ".join(wrong) or "every partition has a leader and all its replicas in sync",
        style="red" if wrong else "green",
        no_wrap=True,
        overflow="ellipsis",
    )


def _first(names: list[Any], shown: int = 3) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(map(str, names[:shown])) + more


def _table(title: str, *columns: str, sorted_by: str = "") -> Table:
    """Columns whose name ends in a space hold text, the others numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim", box=None, pad_edge=False)
    for column in columns:
        is_text, name = column.endswith(" "), column.strip()
        shown = f"{name}▼" if name == sorted_by else name
        table.add_column(shown, justify="left" if is_text else "right", no_wrap=True, overflow="ellipsis")
    return table


def _brokers(rows: list[Row], order: PageOrder) -> Table:
    table = _table("Brokers", "broker", "rack ", "state ", "leads", "replicas", "out of sync", "disks")
    for row in rows:
        state = "live" if row["live"] else "[red]away[/]"
        table.add_row(
            *(str(row["broker"]), escape(row["rack"] or "-"), state, _count(row["leads"]), _count(row["replicas"])),
            *(_bad(row["out_of_sync"]), str(row["disks"])),
        )
    return table


def _controllers(quorum: Row | None) -> Draw:
    def draw(rows: list[Row], order: PageOrder) -> Table:
        assert quorum is not None, "controllers without a quorum"
        epoch, end = quorum["epoch"], _count(quorum["high_watermark"])
        columns = ("broker", "role ", "pid", "log end", "lag", "CPU", "memory", "loop delay")
        table = _table(f"Controllers, epoch {epoch}, {end} entries committed", *columns)
        for row in rows:
            role = row["role"] + ", recovering" * bool(row["recovering"])
            table.add_row(
                *(str(row["broker"]), "[red]away[/]" if row["reachable"] is False else role, str(row["pid"] or "-")),
                *(_known(row["log_end_offset"]), _bad(row["lag"]) if row["lag"] >= 0 else "-", *_used(row)),
            )
        return table

    return draw


def _topics(rows: list[Row], order: PageOrder) -> Table:
    names = {"bytes_in_per_s": "in", "records_in_per_s": "records/s", "bytes_out_per_s": "out", "topic": "topic"}
    columns = ("topic ", "partitions", "in", "records/s", "out", "copied", "out of sync")
    table = _table("Topics", *columns, sorted_by=names[TOPIC_ORDERS[order.topics]])
    for row in rows:
        table.add_row(
            *(escape(row["topic"]), _count(row["partitions"]), _rate(row["bytes_in_per_s"])),
            *(_count(row["records_in_per_s"]), _rate(row["bytes_out_per_s"])),
            *(_rate(row["replication_bytes_in_per_s"]), _bad(row["under_replicated"])),
        )
    return table


def _groups(rows: list[Row], order: PageOrder) -> Table:
    table = _table("Groups", "group ", "lag", "partitions", "furthest behind ", sorted_by="lag")
    for row in rows:
        worst = row["worst"]
        place = "-" if worst is None else f"{worst['topic']}-{worst['partition']}: {_count(worst['lag'])}"
        table.add_row(escape(row["group"]), _count(row["lag"]), _count(row["partitions"]), escape(place))
    return table


def _followers(rows: list[Row], order: PageOrder) -> Table:
    table = _table("Slowest followers", "partition ", "broker", "leader", "lag", "in sync ", sorted_by="lag")
    for row in rows:
        table.add_row(
            *(escape(f"{row['topic']}-{row['partition']}"), str(row["broker"]), str(row["leader"]), _count(row["lag"])),
            "yes" if row["in_sync"] else "[red]no[/]",
        )
    return table


def _actors(rows: list[Row], order: PageOrder) -> Table:
    names = {"cpu": "CPU", "memory_bytes": "memory", "event_loop_delay_s": "loop delay"}
    columns = ("broker", "process ", "pid", "CPU", "memory", "loop delay", "leads", "replicas")
    table = _table("Busiest actors", *columns, sorted_by=names[ACTOR_ORDERS[order.actors]])
    for row in rows:
        table.add_row(
            *(str(row["broker"]), f"{row['kind']} {row['node_id']}", str(row["pid"] or "-")),
            *(*_used(row), _count(row["leaders"]), _count(row["replicas"])),
        )
    return table


def _used(row: Row) -> tuple[str, str, str]:
    """CPU, memory and delay of the event loop."""
    cpu, delay, memory = row["cpu"], row["event_loop_delay_s"], row["memory_bytes"]
    return (
        "-" if cpu is None else f"{cpu:.0%}",
        "-" if memory is None else _bytes(memory),
        "-" if delay is None else f"{delay * 1_000:,.0f} ms",
    )


def _known(value: int) -> str:
    """Of the quorum's numbers, which are negative where they are not known."""
    return _count(value) if value >= 0 else "-"


def _bad(count: int) -> str:
    return f"[red]{count:,}[/]" if count else "0"


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{_bytes(value)}/s"


def _bytes(value: float) -> str:
    for unit in ("B", "KB", "MB"):
        if abs(value) < 999.5:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1_000
    return f"{value:,.1f} GB"
