"""``raylog metrics``: what goes with the metrics that brokers show."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from raylog.cli.output import AsJson, print_json, print_text
from raylog.errors import ConfigError

RAYS_FOLDER = Path("/tmp/ray/session_latest/metrics/grafana/dashboards")
"""From which Ray provisions the dashboards of its Grafana, on the head's machine."""

app = typer.Typer(help="Dashboards and alert rules for the metrics of brokers.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Write dashboards and alert rules (docs/metrics.md says how brokers show metrics)."""


@app.command("dashboards")
def dashboards(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="By default, the folder of Ray's dashboards on the machine of its head.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write Grafana's dashboards, and Prometheus's alert rules, into a folder.

    Grafana shows dashboards of Ray's folder by itself. The rules are a file for `rule_files` of
    prometheus.yml.
    """
    from raylog.metrics.dashboards import files

    if folder is None:
        if not RAYS_FOLDER.is_dir():
            raise ConfigError(f"no Ray has its dashboards in {RAYS_FOLDER} on this machine: name a folder")
        folder = RAYS_FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files().items():
            beside = folder / f".{name}.new"
            beside.write_text(content, encoding="utf-8")
            os.replace(beside, folder / name)
    except OSError as error:
        raise ConfigError(f"the dashboards cannot be written to {folder}: {error.strerror or error}") from error
    written = [str(folder / name) for name in files()]
    if as_json:
        print_json(written)
    else:
        print_text(*written)
