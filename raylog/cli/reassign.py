"""``raylog reassign``: what Kafka's ``kafka-reassign-partitions`` does, with its JSON and its
words.

A plan is ``{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}]}``; its
``log_dirs`` are paths of disks, one for each replica, or ``any``. ``execute`` prints the current assignment, which is
the plan of the way back. The words on stdout are Kafka's; ``verify`` exits with 1 while something
is in progress or is not as the plan says. As in Kafka, ``--throttle`` and
``--replica-alter-log-dirs-throttle`` are taken off again by ``verify``, once no reassignment at all
and no move between disks of the plan is in progress, and by ``cancel``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, Folder, Timeout, find_cluster
from raylog.cli.output import AsJson, comma_joined, place, print_json, print_text
from raylog.cli.remote import ClusterApp
from raylog.errors import ConfigError, RaylogError
from raylog.types import TopicPartition

if TYPE_CHECKING:
    from raylog.client.sync import AdminClient

app = ClusterApp(help="Move replicas between brokers, and change how many there are.", no_args_is_help=True)

Plan = dict[TopicPartition, tuple[int, ...]]
Replica = tuple[str, int, int]
"""A topic, a partition and a broker."""
Places = dict[Replica, str]
"""Paths of disks."""
PlanFile = Annotated[
    Path,
    typer.Option(
        "--reassignment-json-file",
        exists=True,
        dir_okay=False,
        help="The plan, as generate prints it.",
        show_default=False,
    ),
]
Throttle = Annotated[
    int | None,
    typer.Option(
        "--throttle",
        help="Maximum bytes per second that each broker sends, and receives, for moves.",
        show_default=False,
    ),
]
DiskThrottle = Annotated[
    int | None,
    typer.Option(
        "--replica-alter-log-dirs-throttle",
        help="Maximum bytes per second that each broker copies between its disks for moves.",
        show_default=False,
    ),
]
PreserveThrottles = Annotated[bool, typer.Option("--preserve-throttles", help="Leave throttles as they are.")]


@app.command("generate")
def generate(
    topics_to_move_json_file: Annotated[
        Path,
        typer.Option(
            exists=True,
            dir_okay=False,
            help='Topics as {"topics": [{"topic": "t"}], "version": 1}.',
            show_default=False,
        ),
    ],
    broker_list: Annotated[str, typer.Option(help="The brokers to spread them over, as 0,1,2.", show_default=False)],
    disable_rack_aware: Annotated[bool, typer.Option("--disable-rack-aware", help="Ignore racks.")] = False,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Propose a plan that spreads topics evenly over brokers and keeps their replication factors.
    Nothing is moved.
    """
    from raylog.client.admin.reassignment_plans import spread

    topics = topics_of(topics_to_move_json_file.read_text())
    wanted = brokers_of(broker_list)
    with find_cluster(folder, address, timeout).admin() as admin:
        current = current_plan(admin, topics)
        racks = {info.broker: info.rack for info in admin.describe_cluster().brokers}
    unknown = [broker for broker in wanted if broker not in racks]
    if unknown:
        raise ConfigError(f"--broker-list: there is no live broker {', '.join(map(str, unknown))}")
    proposed = spread(current, {broker: None if disable_rack_aware else racks[broker] for broker in wanted})
    if as_json:
        print_json({"current": as_document(current), "proposed": as_document(proposed)})
    else:
        print_text("Current partition replica assignment", json.dumps(as_document(current)), "")
        print_text("Proposed partition reassignment configuration", json.dumps(as_document(proposed)))


@app.command("execute")
def execute(
    plan_file: PlanFile,
    additional: Annotated[
        bool,
        typer.Option(
            "--additional",
            help="Allow this while other moves are in progress. A partition that is moving already gets this target and throttle instead.",
        ),
    ] = False,
    throttle: Throttle = None,
    replica_alter_log_dirs_throttle: DiskThrottle = None,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Start a plan. The moves go on after the command has returned; `verify` shows their progress.

    Exits with 1 if a partition was refused; the others move.
    """
    limit = checked_throttle(throttle)
    disk_limit = checked_throttle(replica_alter_log_dirs_throttle, "--replica-alter-log-dirs-throttle")
    plan, places = plan_of(plan_file.read_text()), disks_of(plan_file.read_text())
    with find_cluster(folder, address, timeout).admin() as admin:
        if not additional and (ongoing := admin.list_reassignments()):
            raise ConfigError(
                f"Cannot execute because there is an existing partition assignment in progress ({named(ongoing)}). "
                "Use --additional to override"
            )
        current = current_plan(admin, sorted({each.topic for each in plan}))
        current = {each: replicas for each, replicas in current.items() if each in plan}
        results = admin.reassign(plan, throttle_bytes=limit)
        is_under_way = {each for each, error in results.items() if error is None}
        places = {each: path for each, path in places.items() if TopicPartition(*each[:2]) in is_under_way}
        moves = admin.move_to_disks(places, throttle_bytes=disk_limit)
    stuck = {each: error for each, error in moves.items() if error is not None}
    moving = [each for each in moves if each not in stuck]
    failed = {each: error for each, error in results.items() if error is not None}
    started = [each for each in results if each not in failed]
    if as_json:
        document = {"current": as_document(current), "started": _plain(started), "failed": _failures(failed)}
        disks = _disks_json(moving, stuck, places)
        print_json(document | {"throttle": limit, "disk_throttle": disk_limit if places else None} | disks)
    else:
        print_text("Current partition replica assignment", "", json.dumps(as_document(current)), "")
        print_text("Save this to use as the --reassignment-json-file option during rollback")
        print_text(*_throttling(limit, disk_limit if places else None))
        if started:
            print_text(f"Successfully started partition reassignments for {named(started)}")
        print_text(*(f"Error reassigning {named([each])}: {error}" for each, error in failed.items()))
        for each in sorted(moving):
            print_text(f"Successfully started moving log directory to {places[each]} for replica {replica_named(each)}")
        print_text(*(f"Error moving replica {replica_named(each)}: {error}" for each, error in stuck.items()))
    if failed or stuck:
        raise typer.Exit(1)


@app.command("verify")
def verify(
    plan_file: PlanFile,
    preserve_throttles: PreserveThrottles = False,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Show for each partition of a plan whether its move is complete. Exits with 1 unless all are.

    When nothing moves any more, the throttles are removed.
    """
    plan, places = plan_of(plan_file.read_text()), disks_of(plan_file.read_text())
    cleared: Cleared = None
    with find_cluster(folder, address, timeout).admin() as admin:
        states, disks = status_of(admin, plan), disk_states(admin, places)
        is_moving = IN_PROGRESS in disks.values() or bool(admin.list_reassignments())
        if not preserve_throttles and not is_moving:
            cleared = admin.clear_throttles({each.topic for each in plan}, disk_moves=True)
    is_done = all(state == DONE for state in (*states.values(), *disks.values()))
    if as_json:
        partitions = [{"topic": each.topic, "partition": each.partition, "status": s} for each, s in states.items()]
        replicas = [dict(zip(_REPLICA, (*each, places[each], state), strict=True)) for each, state in disks.items()]
        document = {"partitions": partitions, "done": is_done, "throttles_cleared": cleared is not None}
        print_json(document | ({"replicas": replicas} if places else {}))
    else:
        print_text("Status of partition reassignment:")
        print_text(*(f"Reassignment of partition {named([each])} {_WORDS[state]}" for each, state in states.items()))
        for each, state in disks.items():
            print_text(f"Reassignment of replica {'-'.join(map(str, each))} {_DISK_WORDS[state]}")
        print_text(*_clearing(cleared))
    if not is_done:
        raise typer.Exit(1)


@app.command("cancel")
def cancel(
    plan_file: PlanFile,
    preserve_throttles: PreserveThrottles = False,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Cancel the moves of a plan that are in progress. Replicas that were added are deleted, and
    those that were to be removed stay. Replicas on their way to the disks of the plan stay where
    they are.

    Exits with 1 if a move could not be cancelled.
    """
    plan, places = plan_of(plan_file.read_text()), disks_of(plan_file.read_text())
    with find_cluster(folder, address, timeout).admin() as admin:
        ongoing = admin.list_reassignments(plan)
        results = admin.reassign(dict.fromkeys(sorted(ongoing))) if ongoing else {}
        homes = homes_of_moving(admin, places)
        stays = admin.move_to_disks(homes)
        topics = {each.topic for each in plan}
        cleared = None if preserve_throttles else admin.clear_throttles(topics, disk_moves=True)
    failed = {each: error for each, error in results.items() if error is not None}
    stuck = {each: error for each, error in stays.items() if error is not None}
    cancelled = [each for each in results if each not in failed]
    if as_json:
        document = {"cancelled": _plain(cancelled), "failed": _failures(failed)}
        disks = _cancelled_json(homes, stuck) if places else {}
        print_json(document | {"throttles_cleared": cleared is not None} | disks)
    elif cancelled or failed:
        if cancelled:
            print_text(f"Successfully cancelled partition reassignments for: {named(cancelled)}")
        print_text(*(f"Error cancelling {named([each])}: {error}" for each, error in failed.items()))
    else:
        print_text("None of the specified partition reassignments are active.")
    if not as_json:
        print_text(*_cancelling(homes, stuck), *_clearing(cleared))
    if failed or stuck:
        raise typer.Exit(1)


@app.command("list")
def list_(
    folder: Folder = None, address: Address = None, timeout: Timeout = CONNECT_TIMEOUT_S, as_json: AsJson = False
) -> None:
    """List the reassignments that are in progress."""
    with find_cluster(folder, address, timeout).admin() as admin:
        ongoing = admin.list_reassignments()
    if as_json:
        print_json(
            [
                {
                    "topic": each.topic,
                    "partition": each.partition,
                    "replicas": list(found.replicas),
                    "adding_replicas": list(found.adding),
                    "removing_replicas": list(found.removing),
                }
                for each, found in sorted(ongoing.items())
            ]
        )
    elif ongoing:
        print_text("Current partition reassignments:")
        for each, found in sorted(ongoing.items()):
            moves = [
                f"{word} replicas: {comma_joined(brokers)}"
                for word, brokers in (("adding", found.adding), ("removing", found.removing))
                if brokers
            ]
            print_text(f"{named([each])}: replicas: {comma_joined(found.replicas)}. {'. '.join(moves)}.")
    else:
        print_text("No partition reassignments found.")


# ------------------------------------------------------------------ plans as JSON

DONE, IN_PROGRESS, FAILED = "completed", "in progress", "failed"
_WORDS = {
    DONE: "is completed.",
    IN_PROGRESS: "is still in progress.",
    FAILED: "failed: its replicas are not those of the plan, and nothing is in progress.",
}


_DISK_WORDS = {
    DONE: "completed successfully.",
    IN_PROGRESS: "is still in progress.",
    FAILED: "failed: it is not on the disk of the plan, and is not on its way there.",
}
_REPLICA = ("topic", "partition", "broker", "log_dir", "status")


def _disks_json(
    moving: Sequence[Replica], stuck: Mapping[Replica, RaylogError | None], places: Places
) -> dict[str, Any]:
    """What ``execute`` has begun to move between disks, and what not; nothing if the plan names
    none.
    """
    if not places:
        return {}
    named_by = ("topic", "partition", "broker")
    begun = [dict(zip(named_by, each, strict=True)) | {"log_dir": places[each]} for each in moving]
    refused = [dict(zip(named_by, each, strict=True)) | {"error": str(error)} for each, error in stuck.items()]
    return {"disk_moves_started": begun, "disk_moves_failed": refused}


def _cancelled_json(homes: Places, stuck: Mapping[Replica, RaylogError]) -> dict[str, Any]:
    """The replicas that stay on these disks, and those whose move goes on."""
    stays = [dict(zip(_REPLICA, (*each, path), strict=False)) for each, path in homes.items() if each not in stuck]
    refused = [dict(zip(_REPLICA, each, strict=False)) | {"error": str(error)} for each, error in stuck.items()]
    return {"disk_moves_cancelled": stays, "disk_moves_failed": refused}


def _cancelling(homes: Places, stuck: Mapping[Replica, RaylogError]) -> list[str]:
    """Kafka's words: it cancels a move by another one, back to where the replica is."""
    if not homes:
        return ["None of the specified partition moves are active."]
    return [
        f"Successfully started moving log directory to {path} for replica {replica_named(each)}"
        if each not in stuck
        else f"Error moving replica {replica_named(each)}: {stuck[each]}"
        for each, path in sorted(homes.items())
    ]


def status_of(admin: AdminClient, plan: Plan) -> dict[TopicPartition, str]:
    """Of each partition of a plan: completed, in progress, or neither."""
    ongoing = admin.list_reassignments(plan)
    current = current_plan(admin, sorted({each.topic for each in plan}), forgiving=True)
    return {
        each: IN_PROGRESS if each in ongoing else DONE if current.get(each) == replicas else FAILED
        for each, replicas in sorted(plan.items())
    }


def current_plan(admin: AdminClient, topics: Sequence[str], *, forgiving: bool = False) -> Plan:
    """The replicas that topics have now; one that is not there raises, or is left out."""
    known = admin.describe_topics(None if forgiving else topics)
    return {
        TopicPartition(name, part.partition): part.replicas
        for name, topic in known.items()
        if name in topics
        for part in topic.partitions
    }


def plan_of(text: str) -> Plan:
    """The plan of a JSON document of Kafka's; ConfigError names what is wrong with it."""
    plan: Plan = {}
    try:
        document = json.loads(text)
        if int(document.get("version", 1)) != 1:
            raise ConfigError(f"a plan of version {document['version']}: this raylog reads version 1")
        for each in document["partitions"]:
            key = TopicPartition(str(each["topic"]), int(each["partition"]))
            if key in plan:
                raise ConfigError(f"the plan names {named([key])} twice")
            replicas = tuple(int(broker) for broker in each["replicas"])
            if not replicas or len(set(replicas)) != len(replicas):
                raise ConfigError(f"the plan gives {named([key])} the replicas {list(replicas)}: none, or one twice")
            if (log_dirs := each.get("log_dirs")) is not None and len(log_dirs) != len(replicas):
                raise ConfigError(
                    f"the plan gives {named([key])} {len(replicas)} replicas and {len(log_dirs)} log dirs"
                )
            plan[key] = replicas
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            'not {"version": 1, "partitions": [{"topic": …, "partition": …, "replicas": […]}]}: '
            f"{type(error).__name__} {error}"
        ) from None
    if not plan:
        raise ConfigError("the plan names no partition")
    return plan


def disks_of(text: str) -> Places:
    """The paths of disks that a plan, which is one, names for its replicas."""
    return {
        (str(each["topic"]), int(each["partition"]), int(broker)): str(path)
        for each in json.loads(text)["partitions"]
        for broker, path in zip(each["replicas"], each.get("log_dirs", ()), strict=False)
        if path != "any"
    }


def disk_states(admin: AdminClient, places: Places) -> dict[Replica, str]:
    """Of each replica for which a plan names a disk: there, on its way, or neither."""
    found = admin.describe_log_dirs() if places else {}
    states = {}
    for (topic, partition, broker), path in sorted(places.items()):
        key, log_dir = TopicPartition(topic, partition), found.get(broker, {}).get(path)
        if log_dir is None or key not in log_dir.replicas:
            states[topic, partition, broker] = FAILED
        else:
            states[topic, partition, broker] = IN_PROGRESS if key in log_dir.future else DONE
    return states


def homes_of_moving(admin: AdminClient, places: Places) -> Places:
    """Of the replicas that are on their way to the disk of the plan: the disk where each is."""
    found = admin.describe_log_dirs() if places else {}
    homes = {}
    for (topic, partition, broker), path in places.items():
        key, dirs = TopicPartition(topic, partition), found.get(broker, {})
        if path in dirs and key in dirs[path].future:
            held = (each.path for each in dirs.values() if key in each.replicas and key not in each.future)
            if home := next(held, None):
                homes[topic, partition, broker] = home
    return homes


def replica_named(replica: Replica) -> str:
    """As Kafka names a replica."""
    topic, partition, broker = replica
    return f"{topic}-{partition} with broker {broker}"


def topics_of(text: str) -> list[str]:
    """The topics of ``{"topics": [{"topic": "t"}], "version": 1}``."""
    try:
        topics = [str(each["topic"]) for each in json.loads(text)["topics"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f'not {{"topics": [{{"topic": …}}], "version": 1}}: {type(error).__name__} {error}') from None
    if not topics:
        raise ConfigError("no topic is named")
    return topics


def brokers_of(text: str) -> list[int]:
    try:
        brokers = [int(each) for each in text.split(",")]
    except ValueError:
        raise ConfigError(f"--broker-list {text!r} is not of the form 0,1,2") from None
    if len(set(brokers)) != len(brokers):
        raise ConfigError(f"--broker-list {text} names a broker twice")
    return brokers


def as_document(plan: Mapping[TopicPartition, Sequence[int]]) -> dict[str, Any]:
    """A plan as Kafka writes it."""
    return {
        "version": 1,
        "partitions": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "replicas": list(replicas),
                "log_dirs": ["any"] * len(replicas),
            }
            for each, replicas in sorted(plan.items())
        ],
    }


def checked_throttle(throttle: int | None, option: str = "--throttle") -> int | None:
    """The limit, None for none (Kafka's −1)."""
    if throttle is None or throttle == -1:
        return None
    if throttle < 0:
        raise ConfigError(f"{option} {throttle}: bytes per second are at least 0; -1 is no limit")
    return throttle


def _throttling(limit: int | None, disk_limit: int | None) -> list[str]:
    """Kafka's words for the throttles that were set."""
    if limit is None and disk_limit is None:
        return []
    lines = [
        "Warning: You must run --verify periodically, until the reassignment completes, to ensure the throttle is removed."
    ]
    if limit is not None:
        lines.append(f"The inter-broker throttle limit was set to {limit} B/s")
    if disk_limit is not None:
        lines.append(f"The replica-alter-dir throttle limit was set to {disk_limit} B/s")
    return lines


Cleared = tuple[list[int], list[str]] | None


def _clearing(cleared: Cleared) -> list[str]:
    """Kafka's words for the throttles that were taken off brokers and topics."""
    if cleared is None:
        return []
    brokers, topics = cleared
    return [
        f"Clearing broker-level throttles on broker{_plural(brokers)} {comma_joined(brokers)}",
        f"Clearing topic-level throttles on topic{_plural(topics)} {','.join(topics)}",
    ]


def _plural(found: Sequence[Any]) -> str:
    return "" if len(found) == 1 else "s"


def named(partitions: Any) -> str:
    return ",".join(f"{each.topic}-{each.partition}" for each in sorted(partitions))


def _plain(partitions: Any) -> list[dict[str, Any]]:
    return [place(each) for each in sorted(partitions)]


def _failures(failed: Mapping[TopicPartition, RaylogError]) -> list[dict[str, Any]]:
    return [
        {"topic": each.topic, "partition": each.partition, "error": str(error)}
        for each, error in sorted(failed.items())
    ]
