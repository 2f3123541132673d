"""``raylog quorum``: the controllers as they see each other, in the words of Kafka's
``kafka-metadata-quorum``.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from raylog.cli import controllers
from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, Folder, Timeout, find_cluster
from raylog.cli.output import AsJson, notice, print_json, print_table, print_text
from raylog.cli.remote import ClusterApp

app = ClusterApp(help="The controllers: who is active, who follows, how far; move them.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Show which controller is active, and how far the others have followed; move them."""


app.command("move")(controllers.move)


@app.command("status")
def status(
    folder: Folder = None, address: Address = None, timeout: Timeout = CONNECT_TIMEOUT_S, as_json: AsJson = False
) -> None:
    """Show the quorum of the controllers. The active controller is asked, or any that answers.

    Exits with 1 if none is active, or a voter can't be reached or is recovering. Through the
    listeners of brokers the last two are not known.
    """
    cluster = find_cluster(folder, address, timeout, must_serve=False)
    quorum = cluster.quorum()
    if as_json:
        print_json(quorum)
    else:
        _print(quorum)
    are_well = all(voter["reachable"] is not False and not voter.get("recovering") for voter in quorum["voters"])
    if not quorum["told_by"]["is_active"] or not are_well:
        raise typer.Exit(1)


@app.command("describe")
def describe(
    status: Annotated[bool, typer.Option("--status", help="Who leads, how far, who votes.")] = False,
    replication: Annotated[bool, typer.Option("--replication", help="How far each controller is.")] = False,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Print what `kafka-metadata-quorum describe` prints, and nothing else."""
    if status == replication:
        raise typer.BadParameter("give one of --status and --replication")
    quorum = find_cluster(folder, address, timeout, must_serve=False).quorum()
    if status:
        if as_json:
            print_json(_status(quorum))
        else:
            print_text(*_status_lines(quorum))
        return
    rows = [
        {
            "NodeId": member["broker"],
            "LogEndOffset": member["log_end_offset"],
            "Lag": member["lag"],
            "LastFetchTimestamp": member["last_fetch_timestamp"],
            "LastCaughtUpTimestamp": member["last_caught_up_timestamp"],
            "Status": role,
        }
        for member, role in _members(quorum)
    ]
    if as_json:
        print_json(rows)
    else:
        print_text("\t".join(rows[0]), *("\t".join(map(str, row.values())) for row in rows))


def _status(quorum: dict[str, Any]) -> dict[str, Any]:
    """By Kafka's names."""
    return {
        "ClusterId": quorum["cluster_id"],
        "LeaderId": quorum["leader_id"],
        "LeaderEpoch": quorum["leader_epoch"],
        "HighWatermark": quorum["high_watermark"],
        "MaxFollowerLag": quorum["max_follower_lag"],
        "MaxFollowerLagTimeMs": quorum["max_follower_lag_time_ms"],
        "CurrentVoters": [voter["broker"] for voter in quorum["voters"]],
        "CurrentObservers": [observer["broker"] for observer in quorum["observers"]],
    }


def _status_lines(quorum: dict[str, Any]) -> list[str]:
    return [f"{name + ':':24}{value}" for name, value in _status(quorum).items()]


def _members(quorum: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """The leader first, as Kafka has it."""
    voters = [(each, "Leader" if each["broker"] == quorum["leader_id"] else "Follower") for each in quorum["voters"]]
    voters.sort(key=lambda member: member[1] != "Leader")
    return voters + [(each, "Observer") for each in quorum["observers"]]


def _print(quorum: dict[str, Any]) -> None:
    told_by = quorum["told_by"]
    print_text(*_status_lines(quorum))
    if quorum.get("planned"):
        print_text(f"{'Planned:':24}{list(quorum['planned'])}")
    print_text("")
    rows = [
        [
            member["broker"],
            member["log_end_offset"],
            member["lag"],
            role + ", recovering" * bool(member.get("recovering")),
            {True: "yes", False: "no", None: "-"}[member["reachable"]],
            member["endpoint"] or "-",
            member["directory_id"],
        ]
        for member, role in _members(quorum)
    ]
    print_table(["NodeId", "LogEndOffset", "Lag", "Status", "Reachable", "Endpoint", "DirectoryId"], rows)
    if not told_by["is_active"]:
        notice(
            f"no controller is active: the one of broker {told_by['broker']} tells this; -1 is what only the active one knows"
        )
    recovering = [str(voter["broker"]) for voter in quorum["voters"] if voter.get("recovering")]
    if recovering:
        notice(
            f"the disk of the controller of broker {', '.join(recovering)} has lost metadata: it copies them from the others, and takes "
            f"no part in elections until then; its log names the file"
        )
    away = [str(voter["broker"]) for voter in quorum["voters"] if voter["reachable"] is False]
    if away:
        notice(
            f"the controller of broker {', '.join(away)} can't be reached: see `raylog status`, and Ray's logs of the ControllerActor"
        )
