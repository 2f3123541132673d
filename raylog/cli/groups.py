"""``raylog groups``: what Kafka's ``kafka-consumer-groups`` does, with its options and its columns.

``reset-offsets`` prints what it would do; only ``--execute`` does it, and only to a group without
members. ``--export`` prints the plan as CSV for ``--from-file``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylog.cli import offset_resets
from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, Folder, Timeout, find_cluster
from raylog.cli.offset_resets import CommittedPlace, Rule
from raylog.cli.output import AsJson, notice, print_columns, print_json, print_text
from raylog.cli.remote import ClusterApp
from raylog.cli.watching import Watch, watched
from raylog.errors import ConfigError
from raylog.types import TopicPartition

if TYPE_CHECKING:
    from raylog.client.admin.groups import GroupDescription
    from raylog.client.sync import AdminClient

app = ClusterApp(
    help="Consumer groups: list and describe them, reset their offsets, delete them.", no_args_is_help=True
)

Groups = Annotated[list[str] | None, typer.Option("--group", help="A group; may be repeated.", show_default=False)]
AllGroups = Annotated[bool, typer.Option("--all-groups", help="All groups.")]
Group = Annotated[str, typer.Option("--group", help="The group.", show_default=False)]


@app.command("list")
def list_groups(
    state: Annotated[
        str | None,
        typer.Option("--state", help="Only groups in these states, as Stable,Empty. Shows states.", show_default=False),
    ] = None,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """List all groups."""
    states = [each.strip() for each in (state or "").split(",") if each.strip()]
    with find_cluster(folder, address, timeout).admin() as admin:
        found = admin.list_groups(states=states)
    if as_json:
        print_json([{"group": each.group_id, "type": each.protocol_type, "state": each.state} for each in found])
    elif states:
        print_columns(["GROUP", "STATE"], [(each.group_id, each.state) for each in found])
    else:
        print_text(*(each.group_id for each in found))


@app.command("describe")
def describe(
    group: Groups = None,
    all_groups: AllGroups = False,
    offsets: Annotated[bool, typer.Option("--offsets", help="How far the group has read (the default).")] = False,
    members: Annotated[bool, typer.Option("--members", help="Its members, and how much they read.")] = False,
    state: Annotated[bool, typer.Option("--state", help="Its state and its coordinator.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Which partitions each member reads, and the leader epochs of offsets.")
    ] = False,
    watch: Watch = None,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Show groups: their offsets and lag, their members, or their state; with --watch, as they change."""
    if offsets + members + state > 1:
        raise typer.BadParameter("give one of --offsets, --members and --state")
    with find_cluster(folder, address, timeout).admin() as admin:

        def show() -> None:
            found = admin.describe_groups(_named(admin, group, all_groups))
            missing = [each.group_id for each in found.values() if each.state == "Dead" and not all_groups]
            if missing:
                raise ConfigError(f"there is no group {', '.join(map(repr, missing))}: see `raylog groups list`")
            if members:
                rows = [row for each in found.values() for row in member_rows(each)]
            elif state:
                rows = [state_row(each) for each in found.values()]
            else:
                rows = [row for each in found.values() for row in _offset_rows(admin, each)]
            for each in found.values():
                if not each.has_members and not state:
                    notice(f"Consumer group '{each.group_id}' has no active members.")
            _print(rows, verbose=verbose, as_json=as_json)

        if watch is None:
            show()
        else:
            watched(show, watch, as_json=as_json)


def _print(rows: list[dict[str, Any]], *, verbose: bool, as_json: bool) -> None:
    if as_json:
        print_json(rows)
    elif rows:
        columns = [column for column in rows[0] if verbose or column not in _VERBOSE]
        print_columns(
            [_TITLES[column] for column in columns], [[_text(row[column]) for column in columns] for row in rows]
        )


def _rule(
    to_earliest: bool,
    to_latest: bool,
    to_current: bool,
    to_offset: int | None,
    shift_by: int | None,
    to_datetime: str | None,
    by_duration: str | None,
    from_file: Path | None,
) -> Rule:
    """The one rule that the options name; BadParameter for none or several."""
    rules = [Rule("earliest")] * to_earliest + [Rule("latest")] * to_latest + [Rule("current")] * to_current
    rules += [Rule("offset", to_offset)] if to_offset is not None else []
    rules += [Rule("shift", shift_by)] if shift_by is not None else []
    rules += [Rule("time", offset_resets.parse_moment(to_datetime))] if to_datetime is not None else []
    if by_duration is not None:
        since_ms = time.time() * 1000 - offset_resets.parse_duration(by_duration).total_seconds() * 1000
        rules.append(Rule("time", round(since_ms)))
    if from_file is not None:
        rules.append(Rule("file", file=offset_resets.parse_file(from_file.read_text(encoding="utf-8"))))
    if len(rules) != 1:
        raise typer.BadParameter(
            "give one of --to-earliest, --to-latest, --to-current, --to-offset, --shift-by, --to-datetime, --by-duration, --from-file"
        )
    return rules[0]


def _print_plan(group: str, plan: Mapping[TopicPartition, int], *, as_csv: bool, as_json: bool) -> None:
    if as_csv:
        print_text(*offset_resets.export(plan))
    elif as_json:
        print_json(
            [
                {"group": group, "topic": key.topic, "partition": key.partition, "new_offset": plan[key]}
                for key in sorted(plan)
            ]
        )
    else:
        rows = [(group, key.topic, str(key.partition), str(plan[key])) for key in sorted(plan)]
        print_columns(["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"], rows)


@app.command("reset-offsets")
def reset_offsets(
    group: Group,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Reset all topics that the group has offsets for.")
    ] = False,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", help="TOPIC or TOPIC:0,1; may be repeated.", show_default=False)
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first offset.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="To the committed offset; to the end if there is none.")
    ] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", help="To this offset.", show_default=False)] = None,
    shift_by: Annotated[
        int | None,
        typer.Option("--shift-by", help="Move this many offsets forward, or back if negative.", show_default=False),
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option("--to-datetime", help="To the first record since YYYY-MM-DDTHH:mm:SS.sss.", show_default=False),
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option("--by-duration", help="To the first record of the last PnDTnHnMnS.", show_default=False),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option("--from-file", help="To the offsets in a CSV file: topic,partition,offset.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, change nothing (the default).")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Reset the offsets.")] = False,
    export: Annotated[bool, typer.Option("--export", help="Print the plan as CSV.")] = False,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Set the offsets from which a group continues. The group must have no members."""
    if dry_run + execute + export > 1:
        raise typer.BadParameter("give one of --dry-run, --execute and --export")
    rule = _rule(to_earliest, to_latest, to_current, to_offset, shift_by, to_datetime, by_duration, from_file)
    if (all_topics + bool(topic)) != (rule.file is None):
        raise typer.BadParameter("say of what: --all-topics or --topic; a file says it itself")
    with find_cluster(folder, address, timeout).admin() as admin:
        plan = planned(admin, group, rule, offset_resets.parse_scope(topic or ()))
        if execute:
            admin.alter_group_offsets(group, plan)
    _print_plan(group, plan, as_csv=export, as_json=as_json)
    if not execute and not export:
        notice("Nothing was changed: give --execute to do it.")


@app.command("delete")
def delete(
    group: Groups = None,
    all_groups: AllGroups = False,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Delete groups with all their offsets. They must have no members."""
    with find_cluster(folder, address, timeout).admin() as admin:
        names = _named(admin, group, all_groups)
        admin.delete_groups(names)
    if as_json:
        print_json({"deleted": names})
    else:
        print_text(f"Deletion of requested consumer groups ({', '.join(map(repr, names))}) was successful.")


def planned(
    admin: AdminClient, group: str, rule: Rule, scope: Mapping[str, tuple[int, ...] | None]
) -> dict[TopicPartition, int]:
    """The new offsets. ``scope`` empty: all topics of the group, or what the file names. Raises
    ConfigError for a group with members.
    """
    found = admin.describe_groups([group])[group]
    if found.has_members:
        raise ConfigError(
            f"offsets can only be reset if the group {group!r} is inactive, but its state is {found.state}: stop its members first"
        )
    committed = admin.list_group_offsets(group)
    keys = _in_scope(admin, rule, scope, committed)
    earliest = admin.list_offsets(dict.fromkeys(keys, "earliest"))
    latest = admin.list_offsets(dict.fromkeys(keys, "latest"))
    at_time = admin.list_offsets(dict.fromkeys(keys, rule.value)) if rule.kind == "time" else {}
    plan = {}
    for key in keys:
        known = committed.get(key)
        timely = at_time.get(key)
        place = CommittedPlace(
            earliest[key].offset,
            latest[key].offset,
            None if known is None else known.offset,
            timely.offset if timely is not None and timely.offset >= 0 else None,
        )
        plan[key] = offset_resets.new_offset(rule, key, place)
    return plan


def _in_scope(
    admin: AdminClient,
    rule: Rule,
    scope: Mapping[str, tuple[int, ...] | None],
    committed: Iterable[TopicPartition],
) -> list[TopicPartition]:
    if rule.file is not None:
        return sorted(rule.file)
    whole = scope or dict.fromkeys(key.topic for key in committed)
    topics = admin.describe_topics(sorted(whole)) if whole else {}
    keys = []
    for name, numbers in whole.items():
        count = len(topics[name].partitions)
        beyond = [number for number in numbers or () if number >= count]
        if beyond:
            raise ConfigError(f"topic {name!r} has no partition {beyond[0]}: it has {count}")
        keys += [TopicPartition(name, number) for number in (range(count) if numbers is None else numbers)]
    return sorted(keys)


# ------------------------------------------------------------------ what is shown


_VERBOSE = ("assignment", "leader_epoch")  # columns that are shown when asked for, as Kafka's tool does
_TITLES = {
    "group": "GROUP",
    "topic": "TOPIC",
    "partition": "PARTITION",
    "leader_epoch": "LEADER-EPOCH",
    "current_offset": "CURRENT-OFFSET",
    "log_end_offset": "LOG-END-OFFSET",
    "lag": "LAG",
    "member": "CONSUMER-ID",
    "instance": "GROUP-INSTANCE-ID",
    "host": "HOST",
    "client": "CLIENT-ID",
    "partitions": "#PARTITIONS",
    "assignment": "ASSIGNMENT",
    "coordinator": "COORDINATOR",
    "strategy": "ASSIGNMENT-STRATEGY",
    "state": "STATE",
    "members": "#MEMBERS",
}


def member_rows(group: GroupDescription) -> list[dict[str, Any]]:
    return [
        {
            "group": group.group_id,
            "member": member.member_id,
            "instance": member.group_instance_id,
            "host": member.host,
            "client": member.client_id,
            "partitions": len(member.assignment),
            "assignment": _assignment(member.assignment),
        }
        for member in group.members
    ]


def state_row(group: GroupDescription) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "coordinator": group.coordinator,
        "strategy": group.protocol,
        "state": group.state,
        "members": len(group.members),
    }


def _offset_rows(admin: AdminClient, group: GroupDescription) -> list[dict[str, Any]]:
    committed = admin.list_group_offsets(group.group_id)
    readers = {key: member for member in group.members for key in member.assignment}
    keys = sorted({*committed, *readers})
    existing = admin.describe_topics()
    known = [key for key in keys if key.topic in existing]
    ends = admin.list_offsets(dict.fromkeys(known, "latest"))
    rows = []
    for key in keys:
        current = committed[key].offset if key in committed else None
        end = ends[key].offset if key in ends else None
        reader = readers.get(key)
        rows.append(
            {
                "group": group.group_id,
                "topic": key.topic,
                "partition": key.partition,
                "leader_epoch": committed[key].leader_epoch if current is not None else None,
                "current_offset": current,
                "log_end_offset": end,
                "lag": None if current is None or end is None else max(0, end - current),
                "member": None if reader is None else reader.member_id,
                "host": None if reader is None else reader.host,
                "client": None if reader is None else reader.client_id,
            }
        )
    return rows


def _assignment(keys: Iterable[TopicPartition]) -> str:
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(keys):
        by_topic.setdefault(topic, []).append(number)
    return ", ".join(f"{topic}({','.join(map(str, numbers))})" for topic, numbers in by_topic.items())


def _text(value: Any) -> str:
    return "-" if value is None or value == "" else str(value)


def _named(admin: AdminClient, names: Sequence[str] | None, all_groups: bool) -> list[str]:
    if bool(names) == all_groups:
        raise typer.BadParameter("name groups with --group, or say --all-groups")
    return list(names or (each.group_id for each in admin.list_groups()))
