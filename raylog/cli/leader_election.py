"""``raylog leader-election``: what Kafka's ``kafka-leader-election`` does, with its options and its
words.

It exits with 1 if a partition that was meant did not get the leader that was asked for; one that
has it already is no failure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from kio.schema.errors import ErrorCode

from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, Folder, Timeout, find_cluster
from raylog.cli.output import AsJson, place, print_json, print_text
from raylog.errors import ConfigError, RaylogError
from raylog.types import TopicPartition


class ElectionChoice(Enum):
    preferred = "preferred"
    unclean = "unclean"


def leader_election(
    election_type: Annotated[
        ElectionChoice,
        typer.Option(
            case_sensitive=False,
            show_default=False,
            help="preferred: the first replica leads, if it is in sync. unclean: where nobody leads, whoever has most of "
            "the records leads; acknowledged records may be lost.",
        ),
    ],
    topic: Annotated[str | None, typer.Option(help="With --partition: one partition.", show_default=False)] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="The partition of --topic.", show_default=False)] = None,
    all_topic_partitions: Annotated[
        bool, typer.Option("--all-topic-partitions", help="All partitions that need it.")
    ] = False,
    path_to_json_file: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help='Partitions as {"partitions": [{"topic": "t", "partition": 0}]}.',
            show_default=False,
        ),
    ] = None,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Elect leaders: give partitions back to their preferred leaders, or accept a loss where nobody
    can lead.

    Exits with 1 if a partition did not get the leader that was asked for.
    """
    ways = [topic is not None or partition is not None, all_topic_partitions, path_to_json_file is not None]
    if sum(ways) != 1 or (topic is None) != (partition is None):
        raise typer.BadParameter(
            "name the partitions in one way: --topic with --partition, --all-topic-partitions, --path-to-json-file"
        )
    named: list[TopicPartition] | None = None
    if topic is not None and partition is not None:
        named = [TopicPartition(topic, partition)]
    elif path_to_json_file is not None:
        named = partitions_of(path_to_json_file.read_text())
    with find_cluster(folder, address, timeout).admin() as admin:
        results = admin.elect_leaders(named, kind=election_type.value)
    if not _print_results(results, election_type, as_json=as_json):
        raise typer.Exit(1)


def _print_results(
    results: Mapping[TopicPartition, RaylogError | None], election_type: ElectionChoice, *, as_json: bool
) -> bool:
    """Whether every partition has the leader that was asked for."""
    done = [each for each, error in results.items() if error is None]
    valid = [each for each, error in results.items() if error and error.code is ErrorCode.election_not_needed]
    failed = {each: error for each, error in results.items() if error and each not in valid}
    if as_json:
        print_json(
            {
                "elected": [place(each) for each in done],
                "already_elected": [place(each) for each in valid],
                "failed": [{**place(each), "error": str(error)} for each, error in failed.items()],
            }
        )
    else:
        name = election_type.value.upper()
        if done:
            print_text(f"Successfully completed leader election ({name}) for partitions {_joined(done)}")
        if valid:
            print_text(f"Valid replica already elected for partitions {_joined(valid)}")
        for each, error in failed.items():
            print_text(f"Error completing leader election ({name}) for partition: {_joined([each])}: {error}")
        if not results:
            print_text("Valid replica already elected for all partitions")
    return not failed


def partitions_of(text: str) -> list[TopicPartition]:
    """The partitions that a JSON file of Kafka's names; ConfigError for another document."""
    try:
        return [TopicPartition(str(each["topic"]), int(each["partition"])) for each in json.loads(text)["partitions"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f'not {{"partitions": [{{"topic": …, "partition": …}}]}}: {type(error).__name__} {error}'
        ) from None


def _joined(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{each.topic}-{each.partition}" for each in partitions)
