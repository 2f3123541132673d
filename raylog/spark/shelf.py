"""Where Arrow tables lie between Ray and Spark: actors that tasks of both sides find by name.

A task of Spark is a Ray driver of its own while it runs, and what a driver owns ends with it; so it hands its tables to a ``Shelf``,
which owns them from then on. The other way a shelf holds references to a Dataset's blocks that tasks of Spark ask for. Tasks take the
shelf of their own node if there is one. They leave Ray when they are done: Spark keeps their processes for later tasks, which may be
of another Ray or of none.

``Shelves`` are the driver's, who ends them, and with them what lies on them, by ``end``; they do not outlive its program. What was made of
them, a DataFrame or a Dataset, is known here with them (``keep_for``) until ``release``, or until the session of that DataFrame has ended.
(Ray Data and Spark keep what refers to a shelf for longer than anybody can tell, so nothing ends because it is no more used.)
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
from raylog.placement.ray_connection import Deadline, RayTarget, await_ray, one_attempt

TABLE_BYTES = 32 << 20
"""A table is twice in the object store for a moment, when a shelf takes it: both fit into the smallest that raylog starts."""

BATCH_BYTES = 16 << 20
_BATCH_ROWS = 10_000
_CONNECTING_S = 10
_OF_A_TASK = {"RAY_enable_open_telemetry": "0"}  # which would leave a thread behind each time
_RELEASED = (
    "what this is made of is no more in Ray: it was released (raylog.data.release), or its node or program has ended"
)
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
            raise LookupError(_RELEASED) from error

    def block(self, token: str, ray: Any) -> Any:
        """What lies under a token."""
        shelf = self.at(node_of(token), ray)
        try:
            [ref] = ray.get(shelf.ref.remote(token))
        except ray.exceptions.RayActorError as error:
            raise LookupError(_RELEASED) from error
        return ray.get(ref)

    @contextmanager
    def connected(self) -> Iterator[Any]:
        """Ray, for as long as a task needs it. ConnectionError where it is not to be reached.

        Afterwards nothing of it is left in the process, which Spark keeps for others: no connection, no token.
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
            _read_environment(untyped)

    def _connect(self, ray: Any) -> None:
        if ray.is_initialized():
            ray.shutdown()
        os.environ.update({**_OF_A_TASK, **dict(self.authentication)})
        _read_environment(ray)
        try:
            if not ray._private.services.find_node_ids():
                raise OSError(
                    "no node of a Ray is on this machine"
                )  # ray.init would wait a minute for one, and minutes for its head
            await_ray(RayTarget(self.address, is_here=False), Deadline.after(_CONNECTING_S))
            with one_attempt():
                ray.init(self.address, namespace=self.namespace, logging_level=logging.ERROR, log_to_driver=False)
        except Exception as error:
            raise ConnectionError(
                f"this task of Spark does not reach the Ray at {self.address}, by which Datasets and DataFrames go ({error}): "
                "use a session of raylog.spark.init(), or go by files (df.write.parquet, ray.data.read_parquet)"
            ) from error


def _read_environment(ray: Any) -> None:
    """Let Ray see what the environment says now: it has read it when it was imported."""
    ray._raylet.Config.initialize("")
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


class Shelves:
    """The driver's handles of shelves on these nodes."""

    def __init__(self, nodes: Iterable[str]) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        context = ray.get_runtime_context()
        self._job = (context.gcs_address, context.get_job_id())
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
            except ray.exceptions.RayError:
                continue
        return count

    def end(self) -> None:
        """End the shelves; what lies on them is freed. Nothing if this program has left their Ray, and they ended with that."""
        import ray

        if not ray.is_initialized():
            return
        context = ray.get_runtime_context()
        if (context.gcs_address, context.get_job_id()) == self._job:
            for handle in self.handles.values():
                ray.kill(handle)


_kept: dict[int, tuple[Any, Shelves, Any]] = {}  # by the identity of a DataFrame or Dataset, which is kept, too


def keep_for(made: Any, shelves: Shelves, session: Any = None) -> None:
    """Keep the shelves that something is made of; with a session, until that has ended."""
    _kept[id(made)] = (made, shelves, session)


def release(made: Any) -> None:
    """Free what Ray's object store keeps for a DataFrame of ``to_spark`` or a Dataset of ``from_spark``: what is made of them can't be
    computed any more, what was computed stays. ConfigError for anything else."""
    if (kept := _kept.pop(id(made), None)) is None:
        raise ConfigError("this is nothing that to_spark or from_spark has returned, or it was released before")
    kept[1].end()


def release_of_ended_sessions() -> None:
    """Free what is kept for DataFrames whose session of Spark has ended: nothing can be computed of them."""
    for made, _, session in list(_kept.values()):
        if session is not None and session.sparkContext._jsc is None:
            release(made)


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
    """Tables of ``TABLE_BYTES`` at most, but for a row that is larger, and none of them empty."""
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
class Fetch:
    """What ``mapInArrow`` calls the other way: tokens in, several in a row's cell, rows of this schema out."""

    place: ShelfPlace
    schema: Any

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        with self.place.connected() as ray:
            for batch in batches:
                for tokens in batch.column(0).to_pylist():
                    for token in tokens.split():
                        yield from conformed(self.place.block(token, ray), self.schema)


def _batch_rows(table: Any) -> int:
    """How many rows of a table go to the JVM at once: it holds them twice."""
    return max(1, min(_BATCH_ROWS, int(table.num_rows * BATCH_BYTES // max(1, table.nbytes))))


def conformed(table: Any, schema: Any) -> Iterator[Any]:
    """The rows of a table in batches with the columns and types of a schema: what it has not is null, nanoseconds are cut off."""
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
