"""``raylog doctor``: whether this machine can run raylog, and the command that mends what can't."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from raylog.cli.checks import Finding, Level, Workload, judge, recommended_open_files
from raylog.cli.output import AsJson, print_json

_SIGNS = {Level.OK: "[green]ok[/]     ", Level.WARNING: "[yellow]warning[/]", Level.FAILURE: "[red]failure[/]"}


def doctor(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Disks, or the folder of an embedded cluster.", show_default=False)
    ] = None,
    partitions: Annotated[
        int, typer.Option(min=1, help="How many replicas this machine is to hold, if it does not hold more already.")
    ] = 100,
    partition_bytes: Annotated[int, typer.Option(min=1, help="Bytes that each replica retains.")] = 10 * 1024**3,
    segment_bytes: Annotated[int, typer.Option(min=1, help="The segment.bytes of the replicas.")] = 1024**3,
    as_json: AsJson = False,
) -> None:
    """Check open files, replicas per process, threads, memory maps, /dev/shm, disks, ports, Ray's
    version and token, Java, OOM scores and the C kernel.

    Exits with 1 if a check fails; warnings don't count. Each finding that is not ok prints the
    command that mends it.
    """
    from raylog.cli.machine import look

    workload = Workload(partitions, partition_bytes, segment_bytes)
    findings = judge(look(folders or [Path("raylog-data")]), workload)
    if as_json:
        print_json(
            {
                "recommended_open_files": recommended_open_files(workload),
                "findings": [_plain(finding) for finding in findings],
            }
        )
    else:
        console = Console(highlight=False, soft_wrap=True)
        for finding in findings:
            console.print(f"{_SIGNS[finding.level]}  {escape(finding.check)}: {escape(finding.found)}")
            if finding.remedy:
                console.print(f"         → {escape(finding.remedy)}")
    if any(finding.level is Level.FAILURE for finding in findings):
        raise typer.Exit(1)


def _plain(finding: Finding) -> dict[str, str]:
    return {
        "check": finding.check,
        "level": finding.level.value,
        "found": finding.found,
        "remedy": finding.remedy,
    }
