"""``raylog dump-log``: a replica's files in words, offline, in the format of Apache Kafka's own
tool.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from raylog.cli.log_files import EPOCHS_FILE, SUFFIXES, Entry, as_offsets, as_transaction, entries_of, is_dumpable, text
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
        typer.Option(
            "--transaction-log-decoder",
            help="Print keys and values of __transaction_state as JSON: transactional ids and their transactions.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Decode .log, .index, .timeindex, .snapshot and leader-epoch-checkpoint files, and those of a
    controller's folder.

    Works on files of raylog and of Apache Kafka, without a cluster. Exits with 1 if a file is
    damaged.
    """
    if offsets_decoder + cluster_metadata_decoder + transaction_log_decoder > 1:
        raise typer.BadParameter(
            "give one of --offsets-decoder, --transaction-log-decoder and --cluster-metadata-decoder"
        )
    damaged = False
    files = _files(paths)
    if cluster_metadata_decoder and (others := [path for path in files if not is_metadata(path)]):
        raise ConfigError(
            f"--cluster-metadata-decoder: {others[0]} is no file of a controller of raylog's; those are in {METADATA_TOPIC}-0"
        )
    read = as_offsets if offsets_decoder else as_transaction if transaction_log_decoder else None
    for path in files:
        entries = entries_of(path, _content(path), deep=deep, contents=contents or read is not None, read=read)
        damaged = _printed(path, entries, as_json=as_json) or damaged
    if damaged:
        raise typer.Exit(1)


def _printed(path: Path, entries: Iterable[Entry], *, as_json: bool) -> bool:
    """Print a file's entries. Whether one of them is damaged."""
    damaged = False
    if not as_json:
        print_text(f"Dumping {path}")
        if path.suffix == ".log" and path.stem.isdecimal():
            print_text(f"Log starting offset: {int(path.stem)}")
    for entry in entries:
        damaged = damaged or "fault" in entry
        if as_json:
            print_json({"file": str(path)} | entry)
        else:
            print_text(text(entry))
    return damaged


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
