"""``raylog brokers``: what is done to a whole broker before its machine is touched, and afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, ConnectTimeout, Folder, Timeout, find_cluster
from raylog.cli.controllers import free_of_controller
from raylog.cli.from_outside import status_from_outside
from raylog.cli.output import AsJson, comma_joined, notice, print_json, print_table, print_text, progress_bar
from raylog.cli.reassign import Throttle, as_document, checked_throttle, named
from raylog.cli.remote import ClusterApp
from raylog.errors import ClusterError, error_for
from raylog.types import TopicPartition

if TYPE_CHECKING:
    from raylog.client.sync import AdminClient
    from raylog.cluster import Cluster

app = ClusterApp(help="List brokers, take leaders away from one, give them back, remove one.", no_args_is_help=True)

Broker = Annotated[int, typer.Argument(min=0, help="The broker's id.", show_default=False)]
POLL_S = 0.2


@app.command("list")
def list_(
    folder: Folder = None, address: Address = None, timeout: Timeout = CONNECT_TIMEOUT_S, as_json: AsJson = False
) -> None:
    """List brokers with the replicas that they hold and the partitions that they lead.

    Through the listeners of brokers it is not known who is being drained, and which disks are
    offline.
    """
    cluster = find_cluster(folder, address, timeout)
    brokers = _known_outside(cluster) if cluster.address.is_outside else _known_inside(cluster)
    if as_json:
        print_json(brokers)
        return
    rows = []
    for each in brokers:
        state_name = "away" if not each["live"] else "draining" if each["draining"] else "live"
        offline = len(each["offline_disks"] or ())
        disks = f"{len(each['disks'])}, {offline} offline" if offline else str(len(each["disks"]))
        rows.append(
            [
                *(each["broker"], each["rack"] or "-", state_name, each["replicas"], each["leads"]),
                *(each["listener"] or "-", disks),
            ]
        )
    print_table(["broker", "rack", "state", "replicas", "leads", "Kafka clients", "disks"], rows)


def _known_inside(cluster: Cluster) -> list[dict[str, Any]]:
    state = cluster.status()
    parts = [part for topic in state["topics"] for part in topic["partitions"]]
    return [
        {
            "broker": broker["id"],
            "rack": broker["rack"],
            "listener": broker["listener"],
            "live": broker["live"],
            "draining": broker["draining"],
            "replicas": sum(broker["id"] in part["replicas"] for part in parts),
            "leads": sum(part["leader"] == broker["id"] for part in parts),
            "disks": broker["disks"],
            "offline_disks": broker["offline_disks"],
        }
        for broker in state["brokers"]
    ]


def _known_outside(cluster: Cluster) -> list[dict[str, Any]]:
    return [{"broker": each.pop("id"), **each} for each in status_from_outside(cluster)["brokers"]]


@app.command("drain")
def drain(
    broker: Broker,
    timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for partitions that nobody else can lead yet.")
    ] = 60.0,
    folder: Folder = None,
    address: Address = None,
    connect_timeout: ConnectTimeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Move every leader away from a broker and keep leaders away until `undrain`. You can then stop
    the broker, and no client waits.

    Its replicas stay and follow. Exits with 1 if the broker still leads a partition after the
    timeout.
    """
    with find_cluster(folder, address, connect_timeout).admin() as admin:
        deadline = time.monotonic() + timeout
        progress = admin.drain_broker(broker)
        moved = list(progress.moved)
        if progress.remaining and timeout:
            notice(f"{len(progress.remaining)} partitions have nobody else in sync to lead them; waiting")
        while progress.remaining and time.monotonic() < deadline:
            time.sleep(POLL_S)
            before = set(progress.remaining)
            progress = admin.drain_broker(broker)
            moved += sorted(before - set(progress.remaining))
    if as_json:
        print_json(
            {
                "broker": broker,
                "moved": [{"topic": each.topic, "partition": each.partition} for each in moved],
                "remaining": [{"topic": each.topic, "partition": each.partition} for each in progress.remaining],
            }
        )
    else:
        print_text(f"Broker {broker} is drained: {len(moved)} leaders moved, {len(progress.remaining)} remain")
        print_text(*(f"  {each.topic}-{each.partition}: nobody else is in sync" for each in progress.remaining))
    if progress.remaining:
        raise typer.Exit(1)


@app.command("undrain")
def undrain(
    broker: Broker,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Let a broker lead again. Its leaders come back within minutes, or at once by `raylog
    leader-election`.
    """
    with find_cluster(folder, address, timeout).admin() as admin:
        admin.undrain_broker(broker)
    if as_json:
        print_json({"broker": broker, "draining": False})
    else:
        print_text(f"Broker {broker} may lead again; to bring its leaders back now:")
        print_text("  raylog leader-election --election-type preferred --all-topic-partitions")


@app.command("remove")
def remove(
    broker: Broker,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for its replicas to move.")] = 3600.0,
    throttle: Throttle = None,
    folder: Folder = None,
    address: Address = None,
    connect_timeout: ConnectTimeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Move everything off a broker and forget it.

    The command moves the broker's controller, if it has one, to another broker. It drains the
    broker, reassigns its replicas to the others and unregisters it. Nothing else moves. If no other
    broker can take the controller, the cluster has fewer from then on. If you interrupt it, or it
    times out, run it again to continue. A broker that is gone for good is removed the same way: its
    replicas are copied from those that are left.

    Through the listeners of brokers it cannot be drained first, and a controller cannot be moved.
    What new topics place on it meanwhile is moved, too.
    """
    limit = checked_throttle(throttle)
    cluster = find_cluster(folder, address, connect_timeout)
    deadline = time.monotonic() + timeout
    with cluster.admin() as admin:
        controllers = _free_of_controller(cluster, admin, broker, deadline)
        if not cluster.address.is_outside:
            admin.drain_broker(broker)
        plan, total = _move_off(cluster, admin, broker, limit, deadline, quiet=as_json)
        if limit is not None:
            admin.clear_throttles({each.topic for each in plan})
        _await(
            lambda: not _deleting(cluster, admin, broker),
            deadline,
            lambda: f"broker {broker} still deletes folders",
        )
        admin.unregister_broker(broker)
    if as_json:
        moved_to = [
            {"topic": each.topic, "partition": each.partition, "replicas": list(replicas)}
            for each, replicas in plan.items()
        ]
        print_json({"broker": broker, "controllers": controllers, "moved": moved_to, "unregistered": True})
    else:
        print_text(f"Broker {broker} is removed: {total} replicas moved")
        if controllers is not None:
            print_text(f"The controllers are on broker {comma_joined(controllers)}")
        print_text("Take its folder away, or the next `raylog up` on it makes it a broker again")


def _free_of_controller(cluster: Cluster, admin: AdminClient, broker: int, deadline: float) -> tuple[int, ...] | None:
    """What ``free_of_controller`` does, unless the replicas cannot be moved off the broker: nothing
    is begun in vain. ClusterError from outside, where controllers cannot be moved.
    """
    from raylog.client.admin.reassignment_plans import without

    if not cluster.address.is_outside:
        without(_targets(admin), broker, _receiving(cluster, admin))
        return free_of_controller(cluster, admin, broker, deadline)
    if any(each["broker"] == broker for each in cluster.quorum()["voters"]):
        raise ClusterError(
            f"a controller lives on broker {broker}, and it cannot be moved through the listeners of brokers: run "
            "`raylog quorum move` on a node of the cluster first"
        )
    return None


def _move_off(
    cluster: Cluster, admin: AdminClient, broker: int, limit: int | None, deadline: float, *, quiet: bool
) -> tuple[dict[TopicPartition, tuple[int, ...]], int]:
    """Reassign what a broker holds until it holds nothing. Returns the new replicas, and how many
    replicas there were.
    """
    from raylog.client.admin.reassignment_plans import without

    plan: dict[TopicPartition, tuple[int, ...]] = {}
    total = 0
    with progress_bar(quiet=quiet) as progress:
        task = progress.add_task(f"moving replicas off broker {broker}", total=None)
        while held := set(_held(admin, broker)):
            racks = {each: rack for each, rack in _receiving(cluster, admin).items() if each != broker}
            step = without(_targets(admin), broker, racks)
            _reassign(admin, step, limit)
            plan |= step
            total += len(held)
            progress.update(task, total=total)

            def moved(held: set[TopicPartition] = held, total: int = total) -> bool:
                left = len(held & set(_held(admin, broker)))
                progress.update(task, completed=total - left)
                return left == 0

            _await(moved, deadline, lambda: f"{named(_held(admin, broker))} are still moving")
    return plan, total


def _receiving(cluster: Cluster, admin: AdminClient) -> dict[int, str | None]:
    """The brokers that may be given replicas, with their racks: those that are there and, as far as
    is known, not drained.
    """
    if cluster.address.is_outside:
        described = admin.describe_cluster(include_fenced=True)
        return {each.broker: each.rack for each in described.brokers if not each.is_fenced}
    brokers = cluster.status()["brokers"]
    return {each["id"]: each["rack"] for each in brokers if each["live"] and not each["draining"]}


def _reassign(admin: AdminClient, plan: Mapping[TopicPartition, tuple[int, ...]], limit: int | None) -> None:
    """Begin what the plan says. Raises what the first partition says that cannot be moved."""
    refused = {each: error for each, error in admin.reassign(plan, throttle_bytes=limit).items() if error}
    if refused:
        each, error = next(iter(refused.items()))
        raise error_for(error.code, f"{len(refused)} partitions cannot be moved; {named([each])}: {error}")


@app.command("rebalance")
def rebalance(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan, as `reassign` takes it; move nothing.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for replicas to move.")] = 3600.0,
    throttle: Throttle = None,
    folder: Folder = None,
    address: Address = None,
    connect_timeout: ConnectTimeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Spread bytes and leaders evenly over the live brokers, moving as little as possible. Use it
    when you have added a broker, or topics have grown.

    Brokers that are being drained receive nothing and keep what they have; through the listeners
    of brokers it is not known which, and they count as the others. If you interrupt the command, or
    it times out, the moves that have begun go on. Run it again for the rest.
    """
    from raylog.client.admin.reassignment_plans import balanced

    limit = checked_throttle(throttle)
    cluster = find_cluster(folder, address, connect_timeout)
    deadline = time.monotonic() + timeout
    with cluster.admin() as admin:
        racks = _receiving(cluster, admin)
        if cluster.address.is_outside:
            notice(f"Which brokers are being drained is not known here: all count, {comma_joined(sorted(racks))}")
        sizes = {key: max(found.values()) for key, found in admin.replica_sizes().items()}
        plan = balanced(_targets(admin), sizes, racks)
        if dry_run:
            print_json(as_document(plan))
            return
        before = _bytes_held(admin, racks)
        if plan:
            _reassign(admin, plan, limit)
            with progress_bar(quiet=as_json) as progress:
                task = progress.add_task("moving replicas", total=len(plan))

                def moved() -> bool:
                    left = len(admin.list_reassignments(plan))
                    progress.update(task, completed=len(plan) - left)
                    return left == 0

                _await(moved, deadline, lambda: f"{named(admin.list_reassignments(plan))} are still moving")
            if limit is not None:
                admin.clear_throttles({each.topic for each in plan})
        elected = sum(error is None for error in admin.elect_leaders().values())
        after = _bytes_held(admin, racks)
    if as_json:
        held = [{"broker": each, "bytes_before": before[each], "bytes": after[each]} for each in sorted(racks)]
        print_json({"moved": as_document(plan)["partitions"], "leaders_moved": elected, "brokers": held})
    else:
        print_text(f"{len(plan)} partitions changed their replicas or their order, {elected} leaders moved")
        print_table(["broker", "bytes before", "bytes"], [[each, before[each], after[each]] for each in sorted(racks)])


def _bytes_held(admin: AdminClient, brokers: Iterable[int]) -> dict[int, int]:
    held = dict.fromkeys(brokers, 0)
    for found in admin.replica_sizes().values():
        for broker, size in found.items():
            if broker in held:
                held[broker] += size
    return held


def _targets(admin: AdminClient) -> dict[TopicPartition, tuple[int, ...]]:
    """The replicas that each partition has, or will have when what is in progress is done."""
    ongoing = admin.list_reassignments()
    return {
        key: tuple(each for each in part.replicas if key not in ongoing or each not in ongoing[key].removing)
        for name, topic in admin.describe_topics().items()
        for part in topic.partitions
        for key in [TopicPartition(name, part.partition)]
    }


def _held(admin: AdminClient, broker: int) -> list[TopicPartition]:
    return [
        TopicPartition(name, part.partition)
        for name, topic in admin.describe_topics().items()
        for part in topic.partitions
        if broker in part.replicas
    ]


def _deleting(cluster: Cluster, admin: AdminClient, broker: int) -> bool:
    """Whether a broker that is there has folders left to delete."""
    if cluster.address.is_outside:
        return any(each.replicas for each in admin.describe_log_dirs().get(broker, {}).values())
    state = cluster.status()
    is_live = any(each["id"] == broker and each["live"] for each in state["brokers"])
    return is_live and any(actor["broker"] == broker and actor["removals"] for actor in state["actors"])


def _await(done: Callable[[], bool], deadline: float, reason: Callable[[], str]) -> None:
    while not done():
        if time.monotonic() > deadline:
            raise ClusterError(f"{reason()}; run the command again to go on")
        time.sleep(POLL_S)
