"""``raylog transactions``: what Kafka's ``kafka-transactions`` does, with its options and its columns."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, Folder, Timeout, find_cluster
from raylog.cli.output import AsJson, print_columns, print_json
from raylog.cli.remote import ClusterApp
from raylog.errors import ConfigError
from raylog.types import TopicPartition

if TYPE_CHECKING:
    from raylog.client.admin.inspection import ProducerInfo

app = ClusterApp(help="Transactions: list and describe them, find and abort those that hang.", no_args_is_help=True)

Topic = Annotated[str, typer.Option("--topic", help="The topic.", show_default=False)]
Partition = Annotated[int, typer.Option("--partition", min=0, help="The partition.", show_default=False)]
_HANGING = (
    "Topic",
    "Partition",
    "ProducerId",
    "ProducerEpoch",
    "CoordinatorEpoch",
    "StartOffset",
    "LastTimestamp",
    "Duration(min)",
)


@app.command("list")
def list_transactions(
    duration_filter: Annotated[
        int, typer.Option(help="Only transactions that have been under way for longer, in ms; negative: all.")
    ] = -1,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """List all transactional ids."""
    with find_cluster(folder, address, timeout).admin() as admin:
        found = admin.list_transactions(longer_than_ms=duration_filter)
    if as_json:
        print_json([asdict(each) for each in found])
        return
    rows = [(each.transactional_id, str(each.coordinator), str(each.producer_id), each.state) for each in found]
    print_columns(("TransactionalId", "Coordinator", "ProducerId", "TransactionState"), rows, between="\t")


@app.command("describe")
def describe(
    transactional_id: Annotated[str, typer.Option("--transactional-id", help="The id.", show_default=False)],
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Show a transactional id: its producer, and the transaction that is under way."""
    with find_cluster(folder, address, timeout).admin() as admin:
        found = admin.describe_transactions(transactional_id)[transactional_id]
    partitions = [f"{key.topic}-{key.partition}" for key in sorted(found.partitions)]
    if as_json:
        print_json(asdict(found) | {"partitions": partitions})
        return
    lasts_ms = None if found.start_ms is None else _now_ms() - found.start_ms
    row: Mapping[str, Any] = {
        "CoordinatorId": found.coordinator,
        "TransactionalId": found.transactional_id,
        "ProducerId": found.producer_id,
        "ProducerEpoch": found.producer_epoch,
        "TransactionState": found.state,
        "TransactionTimeoutMs": found.timeout_ms,
        "CurrentTransactionStartTimeMs": found.start_ms if found.start_ms is not None else "None",
        "TransactionDurationMs": lasts_ms if lasts_ms is not None else "None",
        "TopicPartitions": ",".join(partitions),
    }
    print_columns(list(row), [[str(value) for value in row.values()]], between="\t")


@app.command("find-hanging")
def find_hanging(
    topic: Annotated[str | None, typer.Option("--topic", help="Only of this topic.", show_default=False)] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Only of this partition.", show_default=False)
    ] = None,
    max_transaction_timeout: Annotated[
        int, typer.Option(min=0, help="Minutes that a transaction may take: the brokers' transaction.max.timeout.ms.")
    ] = 15,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Find transactions that a partition holds open and no coordinator will end."""
    if partition is not None and topic is None:
        raise typer.BadParameter("--partition needs --topic")
    with find_cluster(folder, address, timeout).admin() as admin:
        described = admin.describe_topics(None if topic is None else [topic])
        partitions = [
            TopicPartition(name, number)
            for name, each in described.items()
            for number in range(len(each.partitions))
            if partition is None or number == partition
        ]
        now_ms = _now_ms()
        found = admin.find_hanging_transactions(
            partitions, older_than_ms=max_transaction_timeout * 60_000, now_ms=now_ms
        )
    if as_json:
        print_json([{"topic": key.topic, "partition": key.partition, **asdict(each)} for key, each in found])
        return
    print_columns(_HANGING, [_hanging_row(key, each, now_ms) for key, each in found], between="\t")


def _hanging_row(key: TopicPartition, each: ProducerInfo, now_ms: int) -> list[str]:
    values = (
        key.topic,
        key.partition,
        each.producer_id,
        each.producer_epoch,
        each.coordinator_epoch,
        each.transaction_start_offset,
        each.last_timestamp,
        (now_ms - each.last_timestamp) // 60_000,
    )
    return [str(value) for value in values]


@app.command("abort")
def abort(
    topic: Topic,
    partition: Partition,
    start_offset: Annotated[
        int, typer.Option("--start-offset", min=0, help="Where it begins, as find-hanging prints.", show_default=False)
    ],
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Abort a hanging transaction in one partition. Readers of committed records go on behind it."""
    key = TopicPartition(topic, partition)
    with find_cluster(folder, address, timeout).admin() as admin:
        known = admin.describe_producers([key])[key]
        found = next((each for each in known if each.transaction_start_offset == start_offset), None)
        if found is None:
            raise ConfigError(
                f"{topic}-{partition} holds no open transaction that begins at offset {start_offset}: "
                "see `raylog transactions find-hanging`"
            )
        admin.abort_transaction(
            key,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            coordinator_epoch=max(0, found.coordinator_epoch or 0),
        )
    if as_json:
        print_json({"topic": topic, "partition": partition, **asdict(found)})


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
