"""Ray Datasets as records of topics: each write task sends its blocks with a producer of raylog's
own.

Exactly once: all tasks write in one transaction, which the driver begins before Ray Data runs
anything, and commits after all tasks have succeeded (``raylog.client.transactions.shared``). Each
attempt at a task writes as a participant of its own, and returns which one it was. Ray Data hands
over what one attempt at each task returned; these participants are committed, and all that other
attempts wrote is aborted. If the write fails, or its driver dies, everything is.

The sink goes to the tasks with the transaction's ticket. Its owner stays in ``write_topic``.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ray.data import Dataset
from ray.data.block import BlockAccessor
from ray.data.datasource import Datasink

from raylog.client.links.address import ClusterAddress
from raylog.client.transactions.shared import SharedTransactions, TransactionTicket
from raylog.data.ray_versions import hands_over_results, sent_by_tasks
from raylog.errors import ConfigError, RaylogError
from raylog.placement.ray_connection import CONNECT_TIMEOUT_S, check_default_ray
from raylog.ranges.addresses import address_of
from raylog.ranges.given_values import COUNT_MAX, count, flag, seconds
from raylog.ranges.sending import (
    SentRows,
    checked_columns,
    checked_config,
    checked_target,
    checked_transactions,
    send_tables,
)

logger = logging.getLogger("raylog.data")


@dataclass(frozen=True, slots=True)
class TopicWriteSummary:
    """``records`` of the tasks' attempts that counted. What other attempts had sent is aborted; with
    ``exactly_once=False`` it is in the topics besides.
    """

    records: int
    tasks: int


def write_topic(
    ds: Any,
    topic: str | None = None,
    *,
    cluster: Any = None,
    concurrency: int | None = None,
    exactly_once: bool = True,
    timeout_s: float = CONNECT_TIMEOUT_S,
    **producer_config: Any,
) -> TopicWriteSummary:
    """Write the rows of a Dataset in one transaction, and wait until readers see them.

    Readers with ``isolation_level="read_committed"`` (``read_topic(read_committed=True)``) get every
    row once, or none if the write failed. With ``exactly_once=False`` rows are written at least
    once, and readers get them at once.

    Columns: ``value``; and, if there are such, ``key``, ``headers``, ``partition``, ``timestamp``,
    and ``topic`` where none is named. ``producer_config``: Kafka's options of a producer;
    ``concurrency``: Ray Data's, how many tasks write at once. ``timeout_s``: seconds in which the
    cluster (if None is given) and the Ray that Ray Data would connect to (if this process has none)
    have to answer.

    RayError for a Ray that doesn't answer, ConfigError for unknown options and
    UnknownTopicOrPartitionError for a topic that is not there, before anything is written; columns
    that do not fit are a ConfigError of the first task that meets them, or before, where Ray knows
    the schema; ClientTimeoutError if nobody knows whether the transaction was committed.
    """
    if not isinstance(ds, Dataset):
        raise ConfigError(
            f"ds is a {type(ds).__module__}.{type(ds).__qualname__}: write_topic takes a Dataset of Ray Data"
        )
    checked_config(producer_config, "cluster", "concurrency", "exactly_once", "timeout_s")
    exactly_once = flag("exactly_once", exactly_once)
    checked_transactions(producer_config, exactly_once=exactly_once)
    if exactly_once and not hands_over_results():
        raise ConfigError(
            "this release of Ray Data does not hand over what write tasks return, so nobody knows which attempts at "
            "them count: give exactly_once=False to write at least once, or use Ray 2.44 or later"
        )
    timeout_s = seconds("timeout_s", timeout_s)
    if concurrency is not None:
        concurrency = count("concurrency", concurrency, COUNT_MAX)
    address = address_of(cluster, timeout_s)
    check_default_ray(timeout_s)
    checked_target(address, topic)
    if not exactly_once:
        sink = TopicSink(address, topic, producer_config)
        ds.write_datasink(sink, concurrency=concurrency)
        return sink.summary
    with SharedTransactions(address, f"raylog-write-{uuid.uuid4()}", producer_config) as transactions:
        sink = TopicSink(address, topic, producer_config, transactions.begin())
        ds.write_datasink(sink, concurrency=concurrency)
        transactions.commit(sink.winners)
        try:
            transactions.settle()
        except RaylogError as error:
            where = topic or "several topics"
            logger.warning("the write to %s is committed, and readers may not see it yet: %s", where, error)
    return sink.summary


class TopicSink(Datasink):  # type: ignore[type-arg]  # not generic in each Ray
    """The ``Datasink`` behind ``write_topic``. When the write is complete, ``summary`` is there, and
    ``winners``: the participants whose attempts counted, for the owner of the ticket to commit.
    Without a ticket records are written at least once.
    """

    def __init__(
        self,
        address: ClusterAddress,
        topic: str | None,
        config: Mapping[str, Any],
        ticket: TransactionTicket | None = None,
    ) -> None:
        self._address = address
        self._topic = topic
        self._config = dict(config)
        self._ticket = ticket
        self.summary = TopicWriteSummary(0, 0)
        self.winners: tuple[int, ...] = ()

    def get_name(self) -> str:
        return "Raylog"

    def on_write_start(self, schema: Any = None) -> None:
        """Called with the first block's schema, where Ray knows it."""
        if schema is not None and hasattr(schema, "field"):
            checked_columns(schema, self._topic)

    def write(self, blocks: Iterable[Any], ctx: Any) -> SentRows:
        """Send the blocks of one task: how many rows that were, and which participant sent them."""

        def tables() -> Iterable[Any]:
            for block in blocks:
                table = BlockAccessor.for_block(block).to_arrow()
                if table.num_rows:
                    checked_columns(table.schema, self._topic)
                    yield table

        return send_tables(self._address, tables(), self._topic, self._config, self._ticket)

    def on_write_complete(self, write_result: Any) -> None:
        sent = sent_by_tasks(write_result)
        self.summary = TopicWriteSummary(sum(each.records for each in sent), len(sent))
        self.winners = tuple(each.producer_id for each in sent if each.producer_id is not None)
