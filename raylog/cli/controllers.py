"""``raylog quorum move``, and what ``raylog brokers remove`` does of it: controllers go to other
brokers, one at a time, while the cluster serves.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, ConnectTimeout, Folder, find_cluster
from raylog.cli.output import AsJson, notice, print_json, print_text
from raylog.errors import ClusterError, RaylogError
from raylog.types import CONTROLLER_COUNTS

if TYPE_CHECKING:
    from raylog.client.sync import AdminClient
    from raylog.cluster import Cluster

POLL_S = 0.2
_Brokers = Annotated[
    str | None,
    typer.Option("--brokers", metavar="ID,…", help="The brokers that shall hold a controller: 1, 3 or 5 of them."),
]
_Count = Annotated[
    int | None,
    typer.Option("--count", min=1, help="How many there shall be; those that are there stay where they are."),
]
_Patience = Annotated[float, typer.Option(min=0, help="Seconds to wait for the controllers to get there.")]


def move(
    brokers: _Brokers = None,
    count: _Count = None,
    timeout: _Patience = 120.0,
    folder: Folder = None,
    address: Address = None,
    connect_timeout: ConnectTimeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Have other brokers hold the controllers, or more or fewer. The cluster serves meanwhile.

    One controller at a time joins, catches up and votes; then those that are planned no more leave.
    If you interrupt the command, or it times out, they go on. A later plan replaces an earlier one.
    """
    wanted = _broker_ids(brokers)
    if bool(wanted) == (count is not None):
        raise typer.BadParameter("give one of --brokers and --count")
    cluster = find_cluster(folder, address, connect_timeout)
    deadline = time.monotonic() + timeout
    with cluster.admin() as admin:
        before = cluster.quorum()
        planned = admin.plan_controllers(wanted, count=count or 0)
        quorum = await_planned(cluster, planned, deadline)
    if as_json:
        print_json({"before": seats(before), "controllers": list(planned), "leader": quorum["leader_id"]})
    else:
        print_text(f"The controllers are on broker {_named(planned)}; that of broker {quorum['leader_id']} is active")


def seats(quorum: dict[str, Any]) -> list[int]:
    """The brokers whose controllers vote."""
    return sorted(voter["broker"] for voter in quorum["voters"])


def free_of_controller(cluster: Cluster, admin: AdminClient, broker: int, deadline: float) -> tuple[int, ...] | None:
    """Move the controller of that broker, if it has one or shall have: to another broker, else there
    are fewer from now on. Returns the brokers that hold the controllers then; None if nothing was
    to do.

    ClusterError if no other broker can hold one, and if they are not there at the deadline.
    """
    quorum = cluster.quorum()
    now = list(quorum["planned"] or seats(quorum))
    if broker not in (*now, *seats(quorum), *(each["broker"] for each in quorum["observers"])):
        return None
    planned = _without(broker, now, cluster.status()["brokers"], quorum["leader_id"])
    if not planned:
        raise ClusterError(
            f"broker {broker} holds the cluster's controller, and no other broker is live to take it: start another one first"
        )
    if len(planned) < len(now):
        notice(
            f"no other broker can take the controller of broker {broker}: of {len(now)} controllers {len(planned)} "
            f"stay{'s' * (len(planned) == 1)}, on broker {_named(planned)}"
        )
    elif broker in now:
        newcomer = next(each for each in planned if each not in now)
        notice(f"the controller of broker {broker} moves to broker {newcomer}")
    admin.plan_controllers(planned)
    await_planned(cluster, planned, deadline)
    return planned


def _without(broker: int, now: list[int], brokers: list[dict[str, Any]], leader: int) -> tuple[int, ...]:
    """As many controllers as there are, or as may be, on other brokers; those that are there stay."""
    able = {each["id"] for each in brokers if each["live"] and not each["draining"] and each["id"] != broker}
    staying = [each for each in now if each != broker]
    staying.sort(key=lambda each: (each != leader, each not in able, each))
    candidates = [*staying, *sorted(able.difference(staying))]
    count = max((each for each in CONTROLLER_COUNTS if each <= min(len(now), len(candidates))), default=0)
    return tuple(sorted(candidates[:count]))


def await_planned(cluster: Cluster, planned: tuple[int, ...], deadline: float) -> dict[str, Any]:
    """The quorum, once the controllers of these brokers vote and no other is there."""
    quorum: dict[str, Any] = {}
    while True:
        try:
            quorum = cluster.quorum()
        except RaylogError as error:
            if not error.retriable and not isinstance(error, ClusterError):
                raise
        else:
            others = [each["broker"] for each in quorum["observers"]]
            if quorum["told_by"]["is_active"] and seats(quorum) == list(planned) and not others:
                return quorum
        if time.monotonic() > deadline:
            there = f"those of broker {_named(seats(quorum))} vote" if quorum else "no controller answers"
            raise ClusterError(
                f"the controllers are not on broker {_named(planned)} yet: {there}; they go on, see `raylog quorum status`"
            )
        time.sleep(POLL_S)


def _broker_ids(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(each) for each in text.split(",")) if text is not None else ()
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of broker ids, such as 0,1,2") from None


def _named(brokers: list[int] | tuple[int, ...]) -> str:
    return ", ".join(map(str, brokers))
