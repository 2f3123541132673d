"""Ray Datasets as records of topics: each write task sends its blocks with a producer of raylog's
own, at least once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ray.data import Dataset
from ray.data.block import BlockAccessor
from ray.data.datasource import Datasink

from raylog.client.links.address import ClusterAddress
from raylog.data.ray_versions import rows_written
from raylog.errors import ConfigError
from raylog.placement.ray_connection import CONNECT_TIMEOUT_S, check_default_ray
from raylog.ranges.addresses import address_of
from raylog.ranges.given_values import COUNT_MAX, count, seconds
from raylog.ranges.sending import checked_columns, checked_config, checked_target, send_tables


@dataclass(frozen=True, slots=True)
class TopicWriteSummary:
    """``records`` of the tasks that counted; what failed attempts had sent is in the topics
    besides.
    """

    records: int
    tasks: int


def write_topic(
    ds: Any,
    topic: str | None = None,
    *,
    cluster: Any = None,
    concurrency: int | None = None,
    timeout_s: float = CONNECT_TIMEOUT_S,
    **producer_config: Any,
) -> TopicWriteSummary:
    """Write the rows of a Dataset, at least once, and wait until they are acknowledged.

    Columns: ``value``; and, if there are such, ``key``, ``headers``, ``partition``, ``timestamp``,
    and ``topic`` where none is named. ``producer_config``: Kafka's options of a producer;
    ``concurrency``: Ray Data's, how many tasks write at once. ``timeout_s``: seconds in which the
    cluster (if None is given) and the Ray that Ray Data would connect to (if this process has none)
    have to answer.

    RayError for a Ray that doesn't answer, ConfigError for unknown options and
    UnknownTopicOrPartitionError for a topic that is not there, before anything is written; columns
    that do not fit are a ConfigError of the first task that meets them, or before, where Ray knows
    the schema.
    """
    if not isinstance(ds, Dataset):
        raise ConfigError(
            f"ds is a {type(ds).__module__}.{type(ds).__qualname__}: write_topic takes a Dataset of Ray Data"
        )
    checked_config(producer_config, "cluster", "concurrency", "timeout_s")
    timeout_s = seconds("timeout_s", timeout_s)
    if concurrency is not None:
        concurrency = count("concurrency", concurrency, COUNT_MAX)
    address = address_of(cluster, timeout_s)
    check_default_ray(timeout_s)
    checked_target(address, topic)
    sink = TopicSink(address, topic, producer_config)
    ds.write_datasink(sink, concurrency=concurrency)
    return sink.summary


class TopicSink(Datasink):  # type: ignore[type-arg]  # not generic in each Ray
    """The ``Datasink`` behind ``write_topic``; ``summary`` is there when the write is complete."""

    def __init__(self, address: ClusterAddress, topic: str | None, config: Mapping[str, Any]) -> None:
        self._address = address
        self._topic = topic
        self._config = dict(config)
        self.summary = TopicWriteSummary(0, 0)

    def get_name(self) -> str:
        return "Raylog"

    def on_write_start(self, schema: Any = None) -> None:
        """Called with the first block's schema, where Ray knows it."""
        if schema is not None and hasattr(schema, "field"):
            checked_columns(schema, self._topic)

    def write(self, blocks: Iterable[Any], ctx: Any) -> int:
        """Send the blocks of one task; how many rows that were."""

        def tables() -> Iterable[Any]:
            for block in blocks:
                table = BlockAccessor.for_block(block).to_arrow()
                if table.num_rows:
                    checked_columns(table.schema, self._topic)
                    yield table

        return send_tables(self._address, tables(), self._topic, self._config).records

    def on_write_complete(self, write_result: Any) -> None:
        counts = rows_written(write_result)
        self.summary = TopicWriteSummary(sum(counts), len(counts))
