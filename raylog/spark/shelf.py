"""Where Arrow tables lie between Ray and Spark: actors that tasks of both sides find by name.

A task of Spark is a Ray driver of its own while it runs, and what a driver owns ends with it; so it hands its tables to a ``Shelf``,
which owns them from then on. The other way a shelf holds references to a Dataset's blocks that tasks of Spark ask for. Tasks take the
shelf of their own node if there is one. They leave Ray when they are done: Spark keeps their processes for later tasks, which may be
of another Ray or of none.

``Shelves`` are the driver's, who ends them, and with them what lies on them, by ``end``; they do not outlive its program. (Ray Data and
Spark keep what refers to a shelf for longer than anybody can tell, so nothing here ends by itself.)
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

TABLE_BYTES = 32 << 20
"""A table is twice in the object store for a moment, when a shelf takes it: both fit into the smallest that raylog starts."""

BATCH_BYTES = 16 << 20
_BATCH_ROWS = 10_000
_CONNECTING_S = 10
STORED = "token string, records bigint, bytes bigint"


class Shelf:
    """An actor. A table is kept under a token; references stay on it until ``only`` or its end."""

    def __init__(self) -> None:
        self._refs: dict[str, Any] = {}

    def keep(self, token: str, table: Any) -> None:
        """Own a table from now on."""
        import ray

        self._refs[token] = ray.put(table)

    def hold(self, refs: Mapping[str, Any]) -> None:
        """Keep what others own alive."""
        self._refs |= refs

    def only(self, tokens: Iterable[str]) -> int:
        """Forget all but these: what attempts had put here that did not count. How many are left."""
        self._refs = {token: self._refs[token] for token in tokens if token in self._refs}
        return len(self._refs)

    def ref(self, token: str) -> list[Any]:
        """The reference, in a list so that Ray hands it over as it is."""
        return [self._refs[token]]


@dataclass(frozen=True, slots=True)
class ShelfPlace:
    """How tasks of Spark find shelves: by ``name`` and node in a Ray's namespace. ``authentication``: of Ray, as the driver has it."""

    address: str
    namespace: str
    name: str
    nodes: tuple[str, ...]
    authentication: tuple[tuple[str, str], ...] = field(repr=False)

    def nearest(self, ray: Any) -> tuple[str, Any]:
        """The node and the shelf that is beside this process, or any."""
        here = ray.get_runtime_context().get_node_id()
        node = here if here in self.nodes else self.nodes[0]
        return node, self.at(node, ray)

    def at(self, node: str, ray: Any) -> Any:
        try:
            return ray.get_actor(f"{self.name}-{node}", namespace=self.namespace)
        except ValueError as error:
            raise LookupError(
                "what this is made of is no more in Ray: it was released (raylog.data.release), or its node or program has ended"
            ) from error

    @contextmanager
    def connected(self) -> Iterator[Any]:
        """Ray, for as long as a task needs it. ConnectionError where it is not to be reached."""
        import ray

        untyped: Any = ray
        if ray.is_initialized() and untyped.get_runtime_context().gcs_address == self.address:
            yield ray
            return
        self._connect(untyped)
        try:
            yield ray
        finally:
            untyped.shutdown()

    def _connect(self, ray: Any) -> None:
        if ray.is_initialized():
            ray.shutdown()
        os.environ.update(self.authentication)
        ray._raylet.Config.initialize("")  # reads the environment again: ray may have been imported before
        ray._raylet.AuthenticationTokenLoader.instance().reset_cache()
        try:
            if not ray._private.services.find_node_ids():
                raise OSError(
                    "no node of a Ray is on this machine"
                )  # ray.init would wait a minute for one, and minutes for its head
            host, _, port = self.address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _CONNECTING_S).close()
            ray.init(self.address, namespace=self.namespace, logging_level=logging.ERROR, log_to_driver=False)
        except Exception as error:
            raise ConnectionError(
                f"this task of Spark does not reach the Ray at {self.address}, by which Datasets and DataFrames go ({error}): "
                "use a session of raylog.spark.init(), or go by files (df.write.parquet, ray.data.read_parquet)"
            ) from error


class Shelves:
    """The driver's handles of shelves on these nodes."""

    def __init__(self, nodes: Iterable[str]) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        context = ray.get_runtime_context()
        name = f"raylog-shelf-{uuid.uuid4().hex[:12]}"
        self.handles: dict[str, Any] = {
            node: ray.remote(Shelf)
            .options(
                name=f"{name}-{node}",
                num_cpus=0,
                max_concurrency=4,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            .remote()
            for node in nodes
        }
        self.place = ShelfPlace(context.gcs_address, context.namespace, name, tuple(self.handles), _authentication())

    def kept(self, tokens: Iterable[str]) -> int:
        """Forget all but these, and how many of them there are: fewer where a shelf has ended."""
        import ray

        by_node: dict[str, list[str]] = {node: [] for node in self.handles}
        for token in tokens:
            by_node[node_of(token)].append(token)
        count = 0
        for answer in [self.handles[node].only.remote(of_node) for node, of_node in by_node.items()]:
            try:
                count += ray.get(answer)
            except ray.exceptions.RayActorError:
                continue
        return count

    def end(self) -> None:
        """End the shelves; what lies on them is freed. Nothing if Ray has ended, and they with it."""
        import ray

        if ray.is_initialized():
            for handle in self.handles.values():
                ray.kill(handle)


def node_of(token: str) -> str:
    """The node on whose shelf a token lies."""
    return token.partition("/")[0]


def _authentication() -> tuple[tuple[str, str], ...]:
    """This process's, as settings for others, whose environment and home may be different."""
    import ray

    raylet: Any = ray._raylet
    if raylet.get_authentication_mode() != raylet.AuthenticationMode.TOKEN:
        return (("RAY_AUTH_MODE", "disabled"),)
    token = raylet.AuthenticationTokenLoader.instance().get_raw_token(ignore_auth_mode=True)
    return (("RAY_AUTH_MODE", "token"), ("RAY_AUTH_TOKEN", token))


@dataclass(frozen=True, slots=True)
class Store:
    """What ``mapInArrow`` calls: rows in, onto the nearest shelf; out come the tokens they lie under, with their node."""

    place: ShelfPlace

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        told: list[tuple[str, int, int]] = []
        tables = _tables(batches)
        if (first := next(tables, None)) is not None:
            with self.place.connected() as ray:
                node, shelf = self.place.nearest(ray)
                table: Any = first
                while table is not None:
                    token = f"{node}/{uuid.uuid4().hex}"
                    ray.get(shelf.keep.remote(token, table))
                    told.append((token, table.num_rows, table.nbytes))
                    table = next(tables, None)
        columns = [list(column) for column in zip(*told, strict=True)] or [[], [], []]
        yield pa.RecordBatch.from_arrays(
            [pa.array(columns[0], pa.string()), pa.array(columns[1], pa.int64()), pa.array(columns[2], pa.int64())],
            ["token", "records", "bytes"],
        )


def _tables(batches: Iterable[Any]) -> Iterator[Any]:
    """Tables of some size, none of them empty."""
    waiting: list[Any] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            size += batch.nbytes
        if size >= TABLE_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


@dataclass(frozen=True, slots=True)
class Fetch:
    """What ``mapInArrow`` calls the other way: tokens in, several in a row's cell, rows of this schema out."""

    place: ShelfPlace
    schema: Any

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        with self.place.connected() as ray:
            for batch in batches:
                for tokens in batch.column(0).to_pylist():
                    for token in tokens.split():
                        [ref] = ray.get(self.place.at(node_of(token), ray).ref.remote(token))
                        table = conformed(ray.get(ref), self.schema)
                        yield from table.to_batches(max_chunksize=_batch_rows(table))


def _batch_rows(table: Any) -> int:
    """How many rows of a table go to the JVM at once: it holds them twice."""
    return max(1, min(_BATCH_ROWS, int(table.num_rows * BATCH_BYTES // max(1, table.nbytes))))


def conformed(table: Any, schema: Any) -> Any:
    """The table with the columns and types of a schema; what it has not is null."""
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in table.schema.names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
