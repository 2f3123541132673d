"""Writes Arrow tables as records of topics, for one task of a write.

A row has ``value`` and may have ``key``, ``headers``, ``partition``, ``timestamp`` and ``topic``,
as Spark's kafka sink takes them. A row without a partition goes to that of its key (Kafka's
murmur2), and one without a timestamp gets the time of the write. Rows of one partition keep their
order. ``checked_columns`` checks the columns before any task runs.

A task keeps few encoded bytes unacknowledged, ``IN_FLIGHT_BYTES`` unless ``buffer.memory`` is set:
enough for a link of 10 Gbit/s, and small enough to stay in the processor's cache until they are
sent.

``send_tables`` returns when every record is acknowledged; running it again writes them again. With
the ticket of a transaction (``raylog.client.transactions.shared``) they are a participant's, and are
read if its owner names the participant.
"""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from kio.schema.errors import ErrorCode

from raylog.client.config import ProducerConfig
from raylog.client.links.address import ClusterAddress
from raylog.client.links.metadata import unknown_partition
from raylog.client.partitioners import partitioner_of
from raylog.client.producer.deliveries import BatchDelivery
from raylog.client.serializers import serializer_of
from raylog.client.sync import AdminClient, Producer
from raylog.client.transactions.shared import ParticipantProducer, TransactionTicket
from raylog.errors import ConfigError, RaylogError, error_for
from raylog.ranges.given_values import unknown
from raylog.ranges.topics import checked_name
from raylog.transactions.participants import PARTICIPANTS_MAX
from raylog.types import TopicPartition

ROW_COLUMNS = ("key", "value", "headers", "partition", "timestamp", "topic")
IN_FLIGHT_BYTES = 8 << 20
_UNSETTLED_MAX = 64
_MILLISECONDS = pa.timestamp("ms", tz="UTC")


def checked_columns(schema: Any, topic: str | None) -> None:
    """Check that rows of this Arrow schema can be records. ConfigError names the column that does
    not fit.
    """
    names = list(schema.names)
    if "value" not in names:
        raise ConfigError(
            f"there is no column named value, only {', '.join(names) or 'none'}: give the column to write that name"
        )
    if topic is None and "topic" not in names:
        raise ConfigError("name the topic, or give the rows a column named topic")
    if foreign := [name for name in names if name not in ROW_COLUMNS]:
        raise ConfigError(
            f"column {foreign[0]!r} can't be written: a record has {', '.join(ROW_COLUMNS)}; select these, and put the rest into the value"
        )
    for name in names:
        kind = schema.field(name).type
        if not _fits(name, kind):
            raise ConfigError(f"column {name} is {kind}: it has to be {_WANTED[name]}")


_WANTED = {
    "key": "binary or string: cast it or encode it first",
    "value": "binary or string: cast it or encode it first",
    "headers": "an array of structs of key (string) and value (binary), or a map",
    "partition": "an integer",
    "timestamp": "a timestamp, or milliseconds as integers",
    "topic": "a string",
}


def _fits(name: str, kind: Any) -> bool:
    of = pa.types
    is_text = of.is_string(kind) or of.is_large_string(kind)
    match name:
        case "key" | "value":
            return bool(is_text or of.is_binary(kind) or of.is_large_binary(kind) or of.is_null(kind))
        case "headers":
            is_pairs = (
                of.is_list(kind) and of.is_struct(kind.value_type) and {"key", "value"} == _fields(kind.value_type)
            )
            return bool(is_pairs or of.is_map(kind))
        case "partition":
            return bool(of.is_integer(kind))
        case "timestamp":
            return bool(of.is_timestamp(kind) or of.is_integer(kind))
        case _:
            return bool(is_text)


def _fields(struct: Any) -> set[str]:
    return {struct.field(index).name for index in range(struct.num_fields)}


def checked_config(config: Mapping[str, Any], *arguments: str) -> None:
    """ConfigError for invalid producer options. ``arguments``: the caller's own, to suggest for a
    misspelt option.
    """
    options = {name.replace(".", "_") for name in ProducerConfig.names()}
    for name in config:
        if name not in options and difflib.get_close_matches(name, arguments, n=1, cutoff=0.8):
            raise unknown(name, arguments)
    parsed = ProducerConfig.parse(config)
    serializer_of(parsed.key_serializer, "key.serializer")
    serializer_of(parsed.value_serializer, "value.serializer")
    partitioner_of(parsed, lambda topic: {})


def checked_transactions(config: Mapping[str, Any], *, exactly_once: bool) -> None:
    """ConfigError for producer options that do not go with a write's own transactions."""
    if ProducerConfig.parse(config).transactional_id is not None:
        raise ConfigError(
            "a write chooses the transactional.id of its transactions itself: leave it out, or give exactly_once=False "
            "to write without transactions"
        )
    if exactly_once:
        try:
            ProducerConfig.parse({**config, "transactional.id": "of-this-write"})
        except ConfigError as error:
            raise ConfigError(f"{error}; or give exactly_once=False to write at least once") from None


def checked_target(address: ClusterAddress, topic: str | None) -> None:
    """UnknownTopicOrPartitionError for a missing topic, ConfigError or InvalidTopicError for an
    invalid name.
    """
    if topic is not None:
        checked_name(topic)
        admin = AdminClient(address)
        try:
            admin.describe_topics([topic])
        finally:
            admin.close()


class SentRows(NamedTuple):
    """What a task has sent. ``producer_id``: the participant's; None without a ticket or records."""

    records: int
    producer_id: int | None = None


def send_tables(
    address: ClusterAddress,
    tables: Iterable[Any],
    topic: str | None,
    config: Mapping[str, Any],
    ticket: TransactionTicket | None = None,
) -> SentRows:
    """Write the rows of these tables or record batches, and wait for all acknowledgements. With a
    ticket the first of them joins the transaction.
    """
    unsettled: deque[BatchDelivery] = deque()
    count = 0
    with closing(_producer(address, config, ticket)) as producer:
        for table in tables:
            for name, rows in _by_topic(_table_of(table), topic):
                for part in _by_placing(rows):
                    if not count:
                        _join(producer)
                    unsettled.append(_sent(producer, name, part))
                    count += part.num_rows
                    while len(unsettled) > _UNSETTLED_MAX:
                        unsettled.popleft().result()
        for delivery in unsettled:
            delivery.result()
        return SentRows(count, producer.finish() if count and isinstance(producer, ParticipantProducer) else None)


def _producer(address: ClusterAddress, config: Mapping[str, Any], ticket: TransactionTicket | None) -> Producer:
    in_flight_bytes = max(IN_FLIGHT_BYTES, 8 * ProducerConfig.parse(config).batch_size)
    defaults = {"buffer.memory": in_flight_bytes}
    if ticket is None:
        return Producer(address, defaults, **config)
    return ParticipantProducer(ticket, address, defaults, **config)


def _join(producer: Producer) -> None:
    """Join the transaction, if there is one, now."""
    if not isinstance(producer, ParticipantProducer):
        return
    try:
        producer.join()
    except RaylogError as error:
        if error.code is not ErrorCode.policy_violation:
            raise
        raise error_for(
            error.code,
            f"more than {PARTICIPANTS_MAX:,} attempts at tasks write in one transaction: write with fewer tasks "
            "(coalesce or repartition the rows), or at least once, with exactly_once=False",
        ) from None


def _sent(producer: Producer, topic: str, rows: Any) -> BatchDelivery:
    if "partition" in rows.schema.names:
        lowest, highest = pc.min(rows.column("partition")).as_py(), pc.max(rows.column("partition")).as_py()
        count = producer.partitions_for(topic)
        if lowest < 0 or highest >= count:
            raise unknown_partition(TopicPartition(topic, lowest if lowest < 0 else highest), count)
    return producer.send_arrow(topic, rows)


def _table_of(rows: Any) -> Any:
    """Return the table with timestamps in milliseconds: finer ones are truncated."""
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    if "timestamp" in table.schema.names:
        index = table.schema.get_field_index("timestamp")
        if pa.types.is_timestamp(table.schema.field(index).type):
            table = table.set_column(index, "timestamp", table.column(index).cast(_MILLISECONDS, safe=False))
    return table


def _by_topic(table: Any, topic: str | None) -> Sequence[tuple[str, Any]]:
    if "topic" not in table.schema.names:
        assert topic is not None
        return [(topic, table)]
    rows = table.drop_columns(["topic"])
    if topic is not None:
        return [(topic, rows)]
    names = table.column("topic")
    if names.null_count:
        raise ConfigError("a row's topic is null: name one for all, or fill the column")
    return [(name, rows.filter(pc.equal(names, name))) for name in pc.unique(names).to_pylist()]


def _by_placing(rows: Any) -> Sequence[Any]:
    """Split the rows into those that name a partition and those that leave it to their keys."""
    if "partition" not in rows.schema.names:
        return [rows] if rows.num_rows else []
    is_free = pc.is_null(rows.column("partition"))
    parts = (rows.filter(pc.invert(is_free)), rows.filter(is_free).drop_columns(["partition"]))
    return [part for part in parts if part.num_rows]
