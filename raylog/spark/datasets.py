"""Datasets of Ray Data as DataFrames of Spark and back, as Arrow through Ray's object store, all types as they are.

What RayDP and Ray Data do between them has traps, which this does not have: RayDP pins a copy in Spark's executors for each DataFrame
handed over and fails for good once an executor was replaced (here Spark's tasks hand their rows to shelves, ``shelf``, and are run
again like any); and it takes Datasets through pandas, which changes integers that have nulls. A session of RayDP is not needed, only
that Spark's tasks reach the Ray of this process.

The driver sees names and sizes, no rows. A task holds one table of ``TABLE_BYTES`` at a time, or one block of the Dataset where Ray has
mapped it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import ray
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from raylog.errors import ClusterError, ConfigError
from raylog.spark.frames import tasks_frame
from raylog.spark.installed import require_pyspark
from raylog.spark.shelf import STORED, TABLE_BYTES, Fetch, Shelves, Store, node_of

FRAME_TASK_BYTES_MIN, FRAME_TASK_BYTES_MAX = 1 << 20, 256 << 20
_TASKS_PER_CORE = 2
_held: dict[int, tuple[Any, Shelves]] = {}  # by the identity of a DataFrame or Dataset, which is kept, too
_WIDER = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
_GONE = "rows of this Dataset are no more in Ray: it was released (raylog.data.release), or their node has ended"


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that lie under one token; ``place``: the address, or the id, of a node of Ray that has them, if anybody knows."""

    token: str
    records: int
    bytes: int
    place: str = ""


def from_spark(df: Any) -> Any:
    """The rows of a DataFrame as a ``ray.data.Dataset``; Spark computes them now.

    They stay in Ray's object store until ``release`` of the Dataset or the end of this program. ConfigError names a column whose type
    Arrow has not. ClusterError without a Ray, and where a node of Ray ended meanwhile with rows that it held.
    """
    require_pyspark(df.sparkSession)
    _check_ray()
    schema = _arrows_schema(df)
    shelves = Shelves(_nodes(df.sparkSession))
    try:
        rows = df.mapInArrow(Store(shelves.place), STORED).collect()
        if lost := len(rows) - shelves.kept(row.token for row in rows):
            raise ClusterError(
                f"{lost} of {len(rows)} parts of the DataFrame were lost with a node of Ray, or with the process that held them: once more?"
            )
        parts = [Part(row.token, row.records, row.bytes, node_of(row.token)) for row in rows]
        source = ShelfSource(shelves, parts, schema)
        # No CPUs, as Spark's executors may have reserved all there are: something else has to limit how many tasks run.
        count = len(source.tasks)
        ds = ray.data.read_datasource(source, num_cpus=0, concurrency=min(count, _cpus()), override_num_blocks=count)
    except BaseException:
        shelves.end()
        raise
    _held[id(ds)] = (ds, shelves)
    return ds


def to_spark(ds: Any, spark: Any) -> Any:
    """The rows of a Dataset as a DataFrame; Ray Data computes them now.

    They stay in Ray's object store until ``release`` of the DataFrame or the end of this program. ConfigError names a column whose type
    Spark has not.
    """
    require_pyspark(spark)
    _check_ray()
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    blocks = _in_arrow(ds)
    found = blocks.schema()
    if found is None:
        raise ConfigError("a Dataset without blocks has no columns: Spark needs a schema")
    wanted = pa.schema(
        [pa.field(each.name, _sparks(each.type, each.name), each.nullable) for each in found.base_schema]
    )
    structure = from_arrow_schema(wanted, prefer_timestamp_ntz=True)
    own = ray.get_runtime_context().get_node_id()
    entries = [
        entry
        for bundle in blocks.iter_internal_ref_bundles()
        for entry in bundle.blocks
        if entry.metadata.num_rows != 0
    ]
    places = _hosts([entry.ref for entry in entries])
    parts = [
        Part(f"{own}/{number}", entry.metadata.num_rows or 0, entry.metadata.size_bytes or 0, places[number])
        for number, entry in enumerate(entries)
    ]
    shelves = Shelves([own])
    try:
        held = {part.token: entry.ref for part, entry in zip(parts, entries, strict=True)}
        ray.get(shelves.handles[own].hold.remote(held))
        share = sum(part.bytes for part in parts) // (_TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
        runs = _runs(parts, min(FRAME_TASK_BYTES_MAX, max(FRAME_TASK_BYTES_MIN, share)))
        tasks = tasks_frame(
            spark,
            [" ".join(part.token for part in run) for run in runs],
            [[run[0].place] if run[0].place else [] for run in runs],
        )
        frame = tasks.mapInArrow(Fetch(shelves.place, to_arrow_schema(structure)), structure)
    except BaseException:
        shelves.end()
        raise
    _held[id(frame)] = (frame, shelves)
    return frame


def release(made: Any) -> None:
    """Free what Ray's object store keeps for a DataFrame of ``to_spark`` or a Dataset of ``from_spark``: what is made of them can't be
    computed any more, what was computed stays. ConfigError for anything else."""
    if (held := _held.pop(id(made), None)) is None:
        raise ConfigError("this is nothing that to_spark or from_spark has returned, or it was released before")
    held[1].end()


def _check_ray() -> None:
    untyped: Any = ray
    if not ray.is_initialized():
        raise ClusterError(
            "this process is not connected to a Ray: raylog.init(), raylog.connect() or ray.init() does it"
        )
    if untyped.util.client.ray.is_connected():
        raise ClusterError("not by Ray client (ray://): run this program on a node of the cluster, as a job")


def _cpus() -> int:
    """How many CPUs Ray has in all."""
    untyped: Any = ray
    return max(1, int(untyped.cluster_resources().get("CPU", 1)))


def _addresses() -> dict[str, str]:
    """The live nodes of Ray, with their addresses."""
    untyped: Any = ray
    return {node["NodeID"]: node["NodeManagerAddress"] for node in untyped.nodes() if node["Alive"]}


def _nodes(spark: Any) -> list[str]:
    """The Ray nodes that Spark's executors run on, and this process's own."""
    nodes = {address: node for node, address in _addresses().items()}
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().keySet().iterator()
    hosts = set()
    while executors.hasNext():
        hosts.add(str(executors.next()).rpartition(":")[0])
    own = str(ray.get_runtime_context().get_node_id())
    return sorted({nodes[host] for host in hosts if host in nodes} | {own})


def _hosts(refs: Sequence[Any]) -> list[str]:
    """The address of a node that has each object; "" where there is none, as of one that is as small as a message."""
    addresses = _addresses()
    located = ray.experimental.get_object_locations(list(refs)) if refs else {}
    return [next((addresses[node] for node in located[ref]["node_ids"] if node in addresses), "") for ref in refs]


def _runs(parts: Iterable[Part], bytes_max: int) -> list[list[Part]]:
    """The parts in their order, those on one host that follow each other together up to so many bytes."""
    runs: list[list[Part]] = []
    size = 0
    for part in parts:
        if runs and runs[-1][0].place == part.place and size + part.bytes <= bytes_max:
            runs[-1].append(part)
            size += part.bytes
        else:
            runs.append([part])
            size = part.bytes
    return runs


# ------------------------------------------------------------------ types


def _arrows_schema(df: Any) -> Any:
    """The columns of a DataFrame as Spark hands them over."""
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import to_arrow_type

    names = [each.name for each in df.schema]
    if len(set(names)) < len(names):
        raise ConfigError(f"two columns are called {next(name for name in names if names.count(name) > 1)!r}")
    fields = []
    for each in df.schema:
        try:
            fields.append(pa.field(each.name, to_arrow_type(each.dataType), each.nullable))
        except PySparkTypeError as error:
            kind = each.dataType.simpleString()
            raise ConfigError(
                f"column {each.name!r} is {kind}, which Arrow has not: cast it or leave it out"
            ) from error
    return pa.schema(fields)


def _in_arrow(ds: Any) -> Any:
    """The Dataset, computed, its blocks tables of Arrow."""
    computed = ds.materialize()
    found = computed.schema()
    if found is None or isinstance(found.base_schema, pa.Schema):
        return computed
    return computed.map_batches(_unchanged, batch_size=None, batch_format="pyarrow", num_cpus=0).materialize()


def _unchanged(table: Any) -> Any:
    return table


def _sparks(kind: Any, name: str) -> Any:
    """The Arrow type in which Spark takes values of another one."""
    of = pa.types
    if kind in _WIDER:
        return _WIDER[kind]
    if of.is_dictionary(kind):
        return _sparks(kind.value_type, name)
    if of.is_large_string(kind) or of.is_string_view(kind):
        return pa.string()
    if of.is_large_binary(kind) or of.is_binary_view(kind) or of.is_fixed_size_binary(kind):
        return pa.binary()
    if of.is_timestamp(kind):
        return pa.timestamp("us", tz=kind.tz)
    if of.is_date64(kind):
        return pa.date32()
    if of.is_duration(kind):
        return pa.duration("us")
    if of.is_list(kind) or of.is_large_list(kind) or of.is_fixed_size_list(kind):
        return pa.list_(_sparks(kind.value_type, name))
    if of.is_map(kind):
        return pa.map_(_sparks(kind.key_type, name), _sparks(kind.item_type, name))
    if of.is_struct(kind):
        fields = (kind.field(index) for index in range(kind.num_fields))
        return pa.struct([pa.field(each.name, _sparks(each.type, name), each.nullable) for each in fields])
    plain = (of.is_boolean, of.is_signed_integer, of.is_float32, of.is_float64, of.is_decimal128, of.is_string)
    if any(is_it(kind) for is_it in (*plain, of.is_binary, of.is_date32, of.is_null)):
        return kind
    raise ConfigError(f"column {name!r} is {kind}, which Spark has not: cast it or leave it out")


# ------------------------------------------------------------------ what Ray Data reads


class ShelfSource(Datasource):
    """What lies on shelves, as read tasks."""

    def __init__(self, shelves: Shelves, parts: Sequence[Part], schema: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._handles = shelves.handles
        self._bytes = sum(part.bytes for part in parts)
        self._schema = schema
        self.tasks = _runs(parts, TABLE_BYTES) or [[]]

    def get_name(self) -> str:
        return "Spark"

    def estimate_inmemory_data_size(self) -> int | None:
        return self._bytes

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        return [self._task(run, per_task_row_limit) for run in self.tasks]

    def _task(self, run: Sequence[Part], row_limit: int | None) -> ReadTask:
        schema = self._schema
        shelves = [(self._handles[part.place], part.token) for part in run]
        metadata = BlockMetadata(
            num_rows=sum(part.records for part in run),
            size_bytes=sum(part.bytes for part in run),
            exec_stats=None,
            input_files=None,
        )
        return ReadTask(lambda: _taken(shelves, schema), metadata, schema=schema, per_task_row_limit=row_limit)


def _taken(shelves: Sequence[tuple[Any, str]], schema: Any) -> Iterator[Any]:
    if not shelves:
        yield schema.empty_table()
    for shelf, token in shelves:
        try:
            [ref] = ray.get(shelf.ref.remote(token))
            table = ray.get(ref)
        except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as error:
            raise ClusterError(_GONE) from error
        yield table.cast(schema)
