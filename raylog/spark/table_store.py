"""Where Arrow tables are kept between Ray and Spark: actors that tasks of both sides find by name.

A Spark task is a Ray driver while it runs, and objects that a driver owns end with it. So it hands
its tables to a ``TableStore``, which then owns them. In the other direction a store holds
references to a Dataset's blocks for tasks of Spark. Tasks use the store on their own node if there
is one. They disconnect from Ray when they are done, because Spark reuses their processes for later
tasks, which may use another Ray or none.

``TableStores`` belong to the driver. ``end`` ends them and frees what is in them; they do not
outlive the driver's program. They are registered with the DataFrame or Dataset made of them
(``keep_for``) until ``release``, or until the session of that DataFrame has ended. (Ray Data and
Spark keep references to a store for an unknown time, so lack of use does not end one.)
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raylog.errors import ConfigError
from raylog.placement import ray_private
from raylog.placement.local_ray import flags_of_raylets
from raylog.placement.ray_connection import Deadline, RayTarget, await_ray, one_attempt
from raylog.spark.spark_private import is_stopped

TABLE_BYTES = 32 << 20
"""The object store briefly holds two copies of a table that a store takes: both fit into the
smallest store that raylog starts.
"""

BATCH_BYTES = 16 << 20
_BATCH_ROWS = 10_000
_CONNECTING_S = 10
_OF_A_TASK = {"RAY_enable_open_telemetry": "0"}  # which would leave a thread behind each time
_RELEASED = (
    "the data behind this is no longer in Ray: it was released (raylog.data.release), or its node or program has ended"
)
STORED = "token string, records bigint, bytes bigint"


class TableStore:
    """An actor. A table is kept under a token; references stay on it until ``only`` or its end."""

    def __init__(self) -> None:
        self._refs: dict[str, Any] = {}

    def keep(self, token: str, table: Any) -> None:
        """Take ownership of a table."""
        import ray

        self._refs[token] = ray.put(table)

    def hold(self, refs: Mapping[str, Any]) -> None:
        """Keep objects alive that other processes own."""
        self._refs |= refs

    def only(self, tokens: Iterable[str]) -> int:
        """Drop all tables but these, such as those of failed attempts; return how many are left."""
        self._refs = {token: self._refs[token] for token in tokens if token in self._refs}
        return len(self._refs)

    def ref(self, token: str) -> list[Any]:
        """Return the reference, in a list so that Ray passes it without resolving it."""
        return [self._refs[token]]


@dataclass(frozen=True, slots=True)
class TableStoreLocation:
    """How Spark tasks find stores: by ``name`` and node in a Ray namespace. ``authentication``:
    the driver's, for Ray.
    """

    address: str
    namespace: str
    name: str
    nodes: tuple[str, ...]
    authentication: tuple[tuple[str, str], ...] = field(repr=False)

    def nearest(self, ray: Any) -> tuple[str, Any]:
        """Return the node and the store beside this process, or any other."""
        here = ray.get_runtime_context().get_node_id()
        node = here if here in self.nodes else self.nodes[0]
        return node, self.at(node, ray)

    def at(self, node: str, ray: Any) -> Any:
        try:
            return ray.get_actor(f"{self.name}-{node}", namespace=self.namespace)
        except ValueError as error:
            raise LookupError(_RELEASED) from error

    def block(self, token: str, ray: Any) -> Any:
        """Return the table under a token."""
        store = self.at(node_of(token), ray)
        try:
            [ref] = ray.get(store.ref.remote(token))
        except ray.exceptions.RayActorError as error:
            raise LookupError(_RELEASED) from error
        return ray.get(ref)

    @contextmanager
    def connected(self) -> Iterator[Any]:
        """Connect to Ray for the duration of a task. ConnectionError if it can't be reached.

        Afterwards the process, which Spark reuses, has no connection and no token left.
        """
        import ray

        untyped: Any = ray
        if ray.is_initialized() and untyped.get_runtime_context().gcs_address == self.address:
            yield ray
            return
        before = {name: os.environ.get(name) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", *_OF_A_TASK)}
        try:
            self._connect(untyped)
            yield ray
        finally:
            untyped.shutdown()
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
            ray_private.read_environment()

    def _connect(self, ray: Any) -> None:
        if ray.is_initialized():
            ray.shutdown()
        os.environ.update({**_OF_A_TASK, **dict(self.authentication)})
        ray_private.read_environment()
        try:
            if not flags_of_raylets("--node_id"):
                raise OSError(
                    "no node of a Ray is on this machine"
                )  # ray.init would wait a minute for one, and minutes for its head
            await_ray(RayTarget(self.address, is_here=False), Deadline.after(_CONNECTING_S))
            with one_attempt():
                ray.init(self.address, namespace=self.namespace, logging_level=logging.ERROR, log_to_driver=False)
        except Exception as error:
            raise ConnectionError(
                f"this task of Spark does not reach the Ray at {self.address}, through which Datasets and DataFrames are passed ({error}): "
                "use a session of raylog.spark.init(), or use files (df.write.parquet, ray.data.read_parquet)"
            ) from error


class TableStores:
    """The driver's handles of stores on these nodes."""

    def __init__(self, nodes: Iterable[str]) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        context = ray.get_runtime_context()
        self._job = (context.gcs_address, context.get_job_id())
        name = f"raylog-table-store-{uuid.uuid4().hex[:12]}"
        self.handles: dict[str, Any] = {
            node: ray.remote(TableStore)
            .options(
                name=f"{name}-{node}",
                num_cpus=0,
                max_concurrency=4,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            .remote()
            for node in nodes
        }
        self.location = TableStoreLocation(
            context.gcs_address, context.namespace, name, tuple(self.handles), _authentication()
        )

    def kept(self, tokens: Iterable[str]) -> int:
        """Drop all tables but these; return how many are left, fewer if a store has ended."""
        import ray

        by_node: dict[str, list[str]] = {node: [] for node in self.handles}
        for token in tokens:
            by_node[node_of(token)].append(token)
        count = 0
        for answer in [self.handles[node].only.remote(of_node) for node, of_node in by_node.items()]:
            try:
                count += ray.get(answer)
            except ray.exceptions.RayError:
                continue
        return count

    def end(self) -> None:
        """End the stores and free their tables. Does nothing if this program has left their Ray,
        which ended them.
        """
        import ray

        if not ray.is_initialized():
            return
        context = ray.get_runtime_context()
        if (context.gcs_address, context.get_job_id()) == self._job:
            for handle in self.handles.values():
                ray.kill(handle)


_kept: dict[int, tuple[Any, TableStores, Any]] = {}  # by the identity of a DataFrame or Dataset, which is kept, too


def keep_for(made: Any, stores: TableStores, session: Any = None) -> None:
    """Keep the stores behind an object; with a session, until that has ended."""
    _kept[id(made)] = (made, stores, session)


def release(made: Any) -> None:
    """Free the data in Ray's object store behind a DataFrame of ``to_spark`` or a Dataset of
    ``from_spark``.

    Nothing more can be computed from them; computed results stay. ConfigError for anything else.
    """
    if (kept := _kept.pop(id(made), None)) is None:
        raise ConfigError("this was not returned by to_spark or from_spark, or was already released")
    kept[1].end()


def release_of_ended_sessions() -> None:
    """Free the data behind DataFrames whose Spark session has ended."""
    for made, _, session in list(_kept.values()):
        if session is not None and is_stopped(session):
            release(made)


def node_of(token: str) -> str:
    """Return the node whose store holds a token."""
    return token.partition("/")[0]


def _authentication() -> tuple[tuple[str, str], ...]:
    """This process's, as settings for others, whose environment and home may be different."""
    token = ray_private.own_token()
    if token is None:
        return (("RAY_AUTH_MODE", "disabled"),)
    return (("RAY_AUTH_MODE", "token"), ("RAY_AUTH_TOKEN", token))


@dataclass(frozen=True, slots=True)
class StoreTables:
    """Called by ``mapInArrow``: puts rows into the nearest store and yields their tokens with the
    node.
    """

    location: TableStoreLocation

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        told: list[tuple[str, int, int]] = []
        tables = _tables(batches)
        if (first := next(tables, None)) is not None:
            with self.location.connected() as ray:
                node, store = self.location.nearest(ray)
                table: Any = first
                while table is not None:
                    token = f"{node}/{uuid.uuid4().hex}"
                    ray.get(store.keep.remote(token, table))
                    told.append((token, table.num_rows, table.nbytes))
                    table = next(tables, None)
        columns = [list(column) for column in zip(*told, strict=True)] or [[], [], []]
        yield pa.RecordBatch.from_arrays(
            [pa.array(columns[0], pa.string()), pa.array(columns[1], pa.int64()), pa.array(columns[2], pa.int64())],
            ["token", "records", "bytes"],
        )


def _tables(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield non-empty tables of at most ``TABLE_BYTES``, unless one row is larger."""
    waiting: list[Any] = []
    size = 0
    for batch in batches:
        for piece in _pieces(batch):
            if waiting and size + piece.nbytes > TABLE_BYTES:
                yield pa.Table.from_batches(waiting)
                waiting, size = [], 0
            waiting.append(piece)
            size += piece.nbytes
    if waiting:
        yield pa.Table.from_batches(waiting)


def _pieces(batch: Any) -> Iterator[Any]:
    rows = max(1, batch.num_rows * TABLE_BYTES // max(1, batch.nbytes))
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)


@dataclass(frozen=True, slots=True)
class FetchTables:
    """Called by ``mapInArrow`` in the other direction: takes tokens, several per row, and yields
    rows of this schema.
    """

    location: TableStoreLocation
    schema: Any

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        with self.location.connected() as ray:
            for batch in batches:
                for tokens in batch.column(0).to_pylist():
                    for token in tokens.split():
                        yield from conformed(self.location.block(token, ray), self.schema)


def _batch_rows(table: Any) -> int:
    """Return how many rows of a table to send to the JVM at once: it holds them twice."""
    return max(1, min(_BATCH_ROWS, int(table.num_rows * BATCH_BYTES // max(1, table.nbytes))))


def conformed(table: Any, schema: Any) -> Iterator[Any]:
    """Yield a table's rows in batches with a schema's columns and types. Missing columns are null;
    nanoseconds are truncated.
    """
    assert set(table.schema.names) <= set(schema.names), f"{table.schema.names} and {schema.names}"
    for batch in table.to_batches(max_chunksize=_batch_rows(table)):
        columns = [_column(batch, field) for field in schema]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(batch: Any, field: Any) -> Any:
    if field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    options = pc.CastOptions(target_type=field.type, allow_time_truncate=True)
    try:
        return pc.cast(batch.column(field.name), options=options)
    except pa.ArrowException as error:
        raise ValueError(f"column {field.name!r} does not go into {field.type}: {error}") from error
