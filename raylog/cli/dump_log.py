"""``raylog dump-log``: a replica's files in words, offline, in the format of Apache Kafka's own
tool.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Annotated

import typer

from raylog.cli.log_files import EPOCHS_FILE, SUFFIXES, as_offsets, entries_of, is_dumpable, text
from raylog.cli.metadata_files import is_metadata
from raylog.cli.output import AsJson, print_json, print_text
from raylog.errors import ConfigError, DiskError
from raylog.records.batch import Buffer
from raylog.types import METADATA_TOPIC


def dump_log(
    paths: Annotated[
        list[Path], typer.Argument(help="Files, or a partition's folder for all its files.", show_default=False)
    ],
    deep: Annotated[
        bool, typer.Option("--deep-iteration", help="Print the records inside each batch, too.", show_default=False)
    ] = False,
    contents: Annotated[
        bool, typer.Option("--print-data-log", help="Print keys and values (implies --deep-iteration).")
    ] = False,
    offsets_decoder: Annotated[
        bool,
        typer.Option(
            "--offsets-decoder",
            help="Print keys and values of __consumer_offsets as JSON: commits, groups and their members.",
        ),
    ] = False,
    cluster_metadata_decoder: Annotated[
        bool,
        typer.Option(
            "--cluster-metadata-decoder", help="Take only a controller's files, whose records are printed in any case."
        ),
    ] = False,
    transaction_log_decoder: Annotated[
        bool,
        typer.Option("--transaction-log-decoder", help="Refused: records of __transaction_state are not printed yet."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Decode .log, .index, .timeindex, .snapshot and leader-epoch-checkpoint files, and those of a
    controller's folder.

    Works on files of raylog and of Apache Kafka, without a cluster. Exits with 1 if a file is
    damaged.
    """
    if transaction_log_decoder:
        raise ConfigError("--transaction-log-decoder: records of __transaction_state are not printed yet")
    if offsets_decoder and cluster_metadata_decoder:
        raise typer.BadParameter("give one of --offsets-decoder and --cluster-metadata-decoder")
    damaged = False
    files = _files(paths)
    if cluster_metadata_decoder and (others := [path for path in files if not is_metadata(path)]):
        raise ConfigError(
            f"--cluster-metadata-decoder: {others[0]} is no file of a controller of raylog's; those are in {METADATA_TOPIC}-0"
        )
    for path in files:
        data = _content(path)
        if not as_json:
            print_text(f"Dumping {path}")
            if path.suffix == ".log" and path.stem.isdecimal():
                print_text(f"Log starting offset: {int(path.stem)}")
        read = as_offsets if offsets_decoder else None
        for entry in entries_of(path, data, deep=deep, contents=contents or offsets_decoder, read=read):
            damaged = damaged or "fault" in entry
            if as_json:
                print_json({"file": str(path)} | entry)
            else:
                print_text(text(entry))
    if damaged:
        raise typer.Exit(1)


def _files(paths: list[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(each for each in path.iterdir() if is_dumpable(each))
            if not inside:
                raise DiskError(f"{path} holds no file of a log; name a partition's folder, such as DISK/topic-0")
            found.extend(inside)
        elif not path.exists():
            raise DiskError(f"{path} does not exist")
        elif not is_dumpable(path) or not (path.name == EPOCHS_FILE or is_metadata(path) or path.stem.isdecimal()):
            raise DiskError(
                f"{path} is no file of a log: those are <offset>{', <offset>'.join(SUFFIXES)}, {EPOCHS_FILE}"
            )
        else:
            found.append(path)
    return found


def _content(path: Path) -> Buffer:
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                return b""
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise DiskError(f"{path} can't be read: {error.strerror}") from error
