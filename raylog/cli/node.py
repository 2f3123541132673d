"""``raylog node``: what a Ray node says of its disks when it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raylog.cli.output import AsJson, print_json

app = typer.Typer(help="A Ray node and its disks.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """A Ray node and its disks."""


@app.command("resources")
def resources(
    folders: Annotated[list[Path], typer.Argument(help="Formatted folders, one per disk, or folders of such folders.")],
    as_json: AsJson = False,
) -> None:
    """Print the --resources of a Ray node from its disks' folders (always JSON).

    ray start --resources="$(raylog node resources /disk1 /disk2)"
    """
    from raylog.placement.groups import node_resources

    print_json(node_resources(disk_folders(folders)))


def disk_folders(folders: list[Path]) -> list[Path]:
    """The disks among these folders and their direct subfolders; a folder without any stands for itself (and fails)."""
    found: list[Path] = []
    for folder in folders:
        if (folder / "meta.properties").exists() or not folder.is_dir():
            found.append(folder)
            continue
        inside = sorted(each for each in folder.iterdir() if (each / "meta.properties").exists())
        found.extend(inside or [folder])
    return found
