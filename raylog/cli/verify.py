"""``raylog verify``: all replicas of a live cluster, compared byte for byte below their high
watermarks, over the network.

Exit code 0 says that every replica was compared and all are the same (in the end, with --repair); 1
that some differ, or that some could not be compared. In words, what was checked and what was found;
with --json the same as one document.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, Folder, Timeout, find_cluster
from raylog.cli.output import AsJson, print_json, print_text, progress_bar

if TYPE_CHECKING:
    from raylog.client.admin.verification import PartitionReport, Verification


def verify(
    topics: Annotated[
        list[str] | None,
        typer.Argument(help="Names of topics; without any, all topics, including internal ones.", show_default=False),
    ] = None,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for a replica that is away or behind before it is left out.")
    ] = 30.0,
    repair: Annotated[
        bool, typer.Option("--repair", help="Replace wrong copies with copies from the other replicas.")
    ] = False,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Compare all replicas byte for byte below the high watermark while the cluster runs.

    Also checks the CRC of every batch, that offsets ascend without a gap, and that leader epochs
    never decrease and agree with the leaders' histories. For a compacted topic, compares the last
    record of each key. Exits with 1 and names the first difference (offset, replica, what differs),
    or a replica that could not be compared.

    With --repair, a copy with a wrong CRC, or one that differs from the majority of the replicas,
    is cut at the first difference and copied again; then the partition is compared again. A copy of
    a compacted topic is replaced as a whole if its last records differ from those of the leader and
    of a majority of the ISR. Nothing is changed if it is unclear which copy is right. Exits with 0
    if all replicas are the same in the end.
    """
    with find_cluster(folder, address, timeout).admin() as admin, progress_bar(quiet=as_json) as progress:
        described = admin.describe_topics(topics or None)
        total = sum(len(each.partitions) for each in described.values())
        task = progress.add_task("comparing partitions", total=total)
        verification = admin.verify_replicas(
            sorted(described), patience=patience, on_partition=lambda report: progress.advance(task), repair=repair
        )
    if as_json:
        print_json(as_plain(verification))
    else:
        print_text(verification.words())
    if not verification.holds:
        raise typer.Exit(1)


def as_plain(verification: Verification) -> dict[str, Any]:
    """The verification for JSON."""
    first = verification.first_difference
    return {
        "identical": verification.holds,
        "first_difference": None if first is None else _plain_difference(first),
        "repairs": [asdict(repair) for repair in verification.repairs],
        "not_repaired": verification.undecided,
        "partitions": [
            {
                "topic": report.topic,
                "partition": report.partition,
                "leader": report.leader,
                "compared_brokers": list(report.compared),
                "left_out": {str(broker): why for broker, why in sorted(report.left_out.items())},
                "start_offset": report.start,
                "end_offset": report.end,
                "batches": report.batches,
                "records": report.records,
                "bytes": report.size_bytes,
                "difference": None if report.difference is None else _plain_difference(report),
            }
            for report in verification.partitions
        ],
    }


def _plain_difference(report: PartitionReport) -> dict[str, Any]:
    assert report.difference is not None
    return {
        "topic": report.topic,
        "partition": report.partition,
        "offset": report.difference.offset,
        "brokers": list(report.difference.brokers),
        "what": report.difference.what,
    }
