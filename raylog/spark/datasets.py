"""Turns Datasets of Ray Data into DataFrames of Spark and back, as Arrow, through Ray's object
store.

All types are kept. RayDP and Ray Data have their own conversions, with traps: RayDP pins a copy in
Spark's executors for each DataFrame and fails for good once an executor was replaced, and it
converts Datasets through pandas, which changes integers with nulls. Here Spark's tasks hand their
rows to table stores and can run again like any task. A RayDP session is not needed, but
Spark's tasks must reach the Ray of this process.

The driver sees names and sizes, no rows. A task holds one table of ``TABLE_BYTES`` at a time, or,
in the other direction, one batch cut from a block of the Dataset that Ray has mapped. In Spark
every column may have nulls, even if the Dataset does not allow them: its blocks may differ, and
Spark would read a null as zero in a column without nulls.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import ray
from ray.data.block import BlockAccessor
from ray.data.datasource import Datasource, ReadTask

from raylog.data.ray_versions import read_task
from raylog.errors import ClusterError, ConfigError
from raylog.spark.installed import require_frame, require_session
from raylog.spark.spark_private import executor_addresses, tasks_frame
from raylog.spark.table_store import (
    STORED,
    TABLE_BYTES,
    FetchTables,
    StoreTables,
    TableStores,
    keep_for,
    node_of,
    release_of_ended_sessions,
)

FRAME_TASK_BYTES_MIN, FRAME_TASK_BYTES_MAX = 1 << 20, 256 << 20
_TASKS_PER_CORE = 2
_WIDER = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.float16(): pa.float32()}
_DECIMAL_DIGITS_MAX = 38
_GONE = "rows of this Dataset are no longer in Ray: it was released (raylog.data.release), or their node is gone"


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a Dataset as Arrow; ``schema``: its own."""

    ref: Any
    records: int
    bytes: int
    schema: Any


@dataclass(frozen=True, slots=True)
class Part:
    """Rows stored under one token; ``place``: the address or id of a Ray node that has them, if
    known.
    """

    token: str
    records: int
    bytes: int
    place: str = ""


def from_spark(df: Any) -> Any:
    """Return the rows of a DataFrame as a ``ray.data.Dataset``; Spark computes them now.

    They stay in Ray's object store until the Dataset is released (``release``) or this program
    ends; they outlive the Spark session. ConfigError names a column whose type Arrow does not have.
    ClusterError without a Ray, and if a Ray node ended with rows that it held. Errors of Spark are
    passed on.
    """
    _check_frame(df)
    _check_ray()
    release_of_ended_sessions()
    schema = _arrows_schema(df)
    stores = TableStores(_nodes(df.sparkSession))
    try:
        rows = df.mapInArrow(StoreTables(stores.location), STORED).collect()
        if lost := len(rows) - stores.kept(row.token for row in rows):
            raise ClusterError(
                f"{lost} of {len(rows)} parts of the DataFrame were lost with a Ray node, or with the process that held them: try again"
            )
        parts = [Part(row.token, row.records, row.bytes, node_of(row.token)) for row in rows]
        source = TableStoreSource(stores, parts, schema)
        # No CPUs, as Spark's executors may have reserved all there are: something else has to limit
        # how many tasks run.
        count = len(source.tasks)
        ds = ray.data.read_datasource(source, num_cpus=0, concurrency=min(count, _cpus()), override_num_blocks=count)
    except BaseException:
        stores.end()
        raise
    keep_for(ds, stores)
    return ds


def to_spark(ds: Any, spark: Any) -> Any:
    """Return the rows of a Dataset as a DataFrame; Ray Data computes them now.

    They stay in Ray's object store until the DataFrame is released (``release``), its session ends
    or this program ends. ConfigError names a column whose type Spark does not have. ClusterError
    without a Ray. Errors of Ray Data are passed on.
    """
    require_session(spark)
    _check_ray()
    if not isinstance(ds, ray.data.Dataset):
        raise ConfigError(f"to_spark takes a ray.data.Dataset, not a {type(ds).__name__}: ray.data.from_… makes one")
    release_of_ended_sessions()
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    blocks = _blocks(ds)
    wanted = _united([block.schema for block in blocks])
    structure = from_arrow_schema(wanted, prefer_timestamp_ntz=True)
    own = ray.get_runtime_context().get_node_id()
    blocks = [block for block in blocks if block.records]
    places = _hosts([block.ref for block in blocks])
    parts = [
        Part(f"{own}/{number}", block.records, block.bytes, place)
        for number, (block, place) in enumerate(zip(blocks, places, strict=True))
    ]
    stores = TableStores([own])
    try:
        held = {part.token: block.ref for part, block in zip(parts, blocks, strict=True)}
        ray.get(stores.handles[own].hold.remote(held))
        share = sum(part.bytes for part in parts) // (_TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
        runs = _runs(parts, min(FRAME_TASK_BYTES_MAX, max(FRAME_TASK_BYTES_MIN, share)))
        tasks = tasks_frame(
            spark,
            [" ".join(part.token for part in run) for run in runs],
            [[run[0].place] if run[0].place else [] for run in runs],
        )
        frame = tasks.mapInArrow(FetchTables(stores.location, to_arrow_schema(structure)), structure)
    except BaseException:
        stores.end()
        raise
    keep_for(frame, stores, spark)
    return frame


def _check_frame(df: Any) -> None:
    require_frame(df, "from_spark")
    if df.isStreaming:
        raise ConfigError(
            "from_spark takes a DataFrame of a batch: this one is a stream, whose foreachBatch can call from_spark for each batch"
        )


def _check_names(names: Sequence[str]) -> None:
    if not names:
        raise ConfigError("there are no columns: rows need at least one")
    if len(set(names)) < len(names):
        raise ConfigError(f"two columns have the name {next(name for name in names if names.count(name) > 1)!r}")


def _check_ray() -> None:
    untyped: Any = ray
    if not ray.is_initialized():
        raise ClusterError(
            "this process is not connected to a Ray: raylog.init(), raylog.connect() or ray.init() does it"
        )
    if untyped.util.client.ray.is_connected():
        raise ClusterError(
            "this does not work through Ray client (ray://): run this program on a node of the cluster, as a job"
        )


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
    found = {str(ray.get_runtime_context().get_node_id())}
    for address in executor_addresses(spark):
        host = address.rpartition(":")[0]
        if node := nodes.get(host) or nodes.get(_address(host)):
            found.add(node)
    return sorted(found)


def _address(host: str) -> str:
    """Return the address of a host by its name; "" if there is none."""
    try:
        return socket.gethostbyname(host)
    except OSError:
        return ""


def _hosts(refs: Sequence[Any]) -> list[str]:
    """Return the address of a node that holds each object; "" if unknown, as for objects sent
    inside messages.
    """
    addresses = _addresses()
    located = ray.experimental.get_object_locations(list(refs)) if refs else {}
    return [next((addresses[node] for node in located[ref]["node_ids"] if node in addresses), "") for ref in refs]


def _runs(parts: Iterable[Part], bytes_max: int) -> list[list[Part]]:
    """Group consecutive parts on the same host, up to that many bytes, and keep their order."""
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


# ------------------------------------------------------------------ blocks


def _blocks(ds: Any) -> list[Block]:
    """Compute a Dataset and return its blocks with rows; if there are none, an empty block with
    columns if there is one.
    """
    bundles = [(bundle.blocks, bundle.schema) for bundle in ds.iter_internal_ref_bundles()]
    entries = [(entry, schema) for blocks, schema in bundles for entry in blocks]
    # Where blocks differ Ray gives all of them the schema object of the first one, and to blocks
    # that it holds already in any case.
    sharing = Counter(id(schema) for _, schema in entries)
    with_rows = [each for each in entries if each[0].metadata.num_rows != 0]
    entries = with_rows or [each for each in entries if each[1] is not None][:1]
    found: list[Block | None] = []
    for entry, schema in entries:
        rows, size = entry.metadata.num_rows, entry.metadata.size_bytes
        is_known = sharing[id(schema)] == 1 and isinstance(schema, pa.Schema) and rows is not None
        found.append(Block(entry.ref, rows, size or 0, schema) if is_known else None)
    unknown = [entry.ref for (entry, _), block in zip(entries, found, strict=True) if block is None]
    looked_at = _looked_at(unknown)
    return [block or next(looked_at) for block in found]


def _looked_at(refs: Sequence[Any]) -> Iterator[Block]:
    """Return blocks as Arrow. The tasks take no CPUs, because Spark's executors may have reserved
    them all.
    """
    look: Any = ray.remote(_look_at).options(num_cpus=0, num_returns=2)
    at_once = _cpus()
    for first in range(0, len(refs), at_once):
        some = refs[first : first + at_once]
        answers = [look.remote(ref) for ref in some]
        told = ray.get([answer[0] for answer in answers])
        for ref, answer, (is_arrow, records, size, schema) in zip(some, answers, told, strict=True):
            yield Block(ref if is_arrow else answer[1], records, size, schema)


def _look_at(block: Any) -> tuple[tuple[bool, int, int, Any], Any]:
    if isinstance(block, pa.Table):
        return (True, block.num_rows, block.nbytes, block.schema), None
    table = BlockAccessor.for_block(block).to_arrow()
    return (False, table.num_rows, table.nbytes, table.schema), table


# ------------------------------------------------------------------ types


def _arrows_schema(df: Any) -> Any:
    """The columns of a DataFrame as Spark hands them over."""
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import to_arrow_type

    _check_names([each.name for each in df.schema])
    fields = []
    for each in df.schema:
        try:
            fields.append(pa.field(each.name, to_arrow_type(each.dataType), each.nullable))
        except PySparkTypeError as error:
            kind = each.dataType.simpleString()
            raise ConfigError(
                f"column {each.name!r} is {kind}, which Arrow does not have: cast it or leave it out"
            ) from error
    return pa.schema(fields)


def _united(schemas: Sequence[Any]) -> Any:
    """Return the columns that blocks have in common, with Spark's types."""
    if not schemas:
        raise ConfigError(
            "this Dataset has no rows and no schema, which Spark needs: spark.createDataFrame([], schema) makes such a DataFrame"
        )
    different = dict.fromkeys(schema.remove_metadata() for schema in schemas)
    for schema in different:
        _check_names(schema.names)
    try:
        united = pa.unify_schemas([_sparks_schema(schema) for schema in different], promote_options="permissive")
    except pa.ArrowException as error:
        raise ConfigError(f"blocks of this Dataset do not fit together: {error}; cast them (map_batches)") from error
    return _sparks_schema(united)


def _sparks_schema(schema: Any) -> Any:
    return pa.schema([pa.field(each.name, _sparks(each.type, each.name)) for each in schema])


def _sparks(kind: Any, name: str) -> Any:
    """Return the Arrow type in which Spark accepts values of another type."""
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
        return pa.struct([pa.field(each.name, _sparks(each.type, name)) for each in fields])
    if of.is_decimal(kind) and kind.precision <= _DECIMAL_DIGITS_MAX and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    plain = (of.is_boolean, of.is_signed_integer, of.is_float32, of.is_float64, of.is_string)
    if any(is_it(kind) for is_it in (*plain, of.is_binary, of.is_date32, of.is_null)):
        return kind
    raise ConfigError(f"column {name!r} is {kind}, which Spark does not have: cast it or leave it out")


# ------------------------------------------------------------------ what Ray Data reads


class TableStoreSource(Datasource):
    """Reads tables from table stores, as read tasks of Ray Data."""

    def __init__(self, stores: TableStores, parts: Sequence[Part], schema: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._handles = stores.handles
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
        stores = [(self._handles[part.place], part.token) for part in run]
        return read_task(
            lambda: _taken(stores, schema),
            num_rows=sum(part.records for part in run),
            size_bytes=sum(part.bytes for part in run),
            schema=schema,
            row_limit=row_limit,
        )


def _taken(stores: Sequence[tuple[Any, str]], schema: Any) -> Iterator[Any]:
    if not stores:
        yield schema.empty_table()
    for store, token in stores:
        try:
            [ref] = ray.get(store.ref.remote(token))
            table = ray.get(ref)
        except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as error:
            raise ClusterError(_GONE) from error
        yield table.cast(schema)
