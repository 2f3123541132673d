"""The table of Kafka APIs: what it says of each, that servers serve what is their own, and that nothing of it stands anywhere else."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kio.schema.index import api_key_map, schema_name_map

from raylog.kafka import table
from raylog.kafka.spec import ApiOwner, ApiSpec, ServerKind

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = [
    path
    for folder in ("raylog", "actors", "placement")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not any(parent.is_symlink() for parent in path.parents) and path.name != "table.py"
]
SNAKE_NAMES = {api_key_map[spec.key]: spec for spec in table.APIS}
each_api = pytest.mark.parametrize("spec", table.APIS, ids=lambda spec: spec.name)


# ------------------------------------------------------------------ what it says


@each_api
def test_an_api_is_what_kafkas_schema_calls_it(spec: ApiSpec) -> None:
    assert spec.name == "".join(word.capitalize() for word in api_key_map[spec.key].split("_"))
    known = schema_name_map[api_key_map[spec.key]]
    for versions in (spec.versions, spec.spoken_inside):
        assert set(versions) <= set(known), f"the codec has {sorted(known)}"


@each_api
def test_somebody_serves_it_inside_unless_only_brokers_answer_it(spec: ApiSpec) -> None:
    inside = spec.spoken_by(ServerKind.REPLICAS) or spec.spoken_by(ServerKind.CONTROLLER)
    assert inside or spec.owner is ApiOwner.BROKER


@each_api
def test_what_is_asked_of_an_authorizer_is_stated(spec: ApiSpec) -> None:
    free = {
        table.API_VERSIONS,
        table.DESCRIBE_CLUSTER,
        table.SASL_HANDSHAKE,
        table.SASL_AUTHENTICATE,
        table.RENEW_DELEGATION_TOKEN,
        table.EXPIRE_DELEGATION_TOKEN,
        table.GET_TELEMETRY_SUBSCRIPTIONS,
        table.PUSH_TELEMETRY,
    }  # as in Apache Kafka: a client could not begin without them, a token is its owner's and its renewers', and all may push
    assert bool(spec.authorised_by) == (spec not in free)


@each_api
def test_how_it_is_split_is_stated_for_leaders_alone(spec: ApiSpec) -> None:
    if spec is not table.WRITE_TXN_MARKERS:  # it names partitions a level deeper: ``listener.markers``
        assert (spec.partitions is not None) == (spec.owner is ApiOwner.LEADER)
    assert spec.groups is None or spec.owner in (ApiOwner.GROUP_COORDINATOR, ApiOwner.TRANSACTION_COORDINATOR)


def test_produce_alone_is_claimed_in_versions_that_nobody_speaks() -> None:
    assert [spec.name for spec in table.APIS if spec.claimed is not None] == ["Produce"]


# ------------------------------------------------------------------ servers


def handlers_of(server: ServerKind) -> dict[ApiSpec, Callable[[object], None]]:
    return {spec: lambda _: None for spec in table.served_by(server) if spec.owner is not ApiOwner.SERVER}


@pytest.mark.parametrize("server", ServerKind)
def test_a_server_speaks_what_is_its_own(server: ServerKind) -> None:
    apis = table.serving(server, handlers_of(server))
    assert set(apis.versions) == set(apis.handlers) | {table.API_VERSIONS.key}
    assert all(apis.versions.values())


def test_only_a_broker_claims_versions_and_keeps_frames() -> None:
    broker = table.serving(ServerKind.BROKER, handlers_of(ServerKind.BROKER))
    assert broker.claimed_versions == {table.PRODUCE.key: range(14)} and broker.versions[table.PRODUCE.key].start == 3
    assert broker.undecoded == (table.PRODUCE.key, table.FETCH.key)
    replicas = table.serving(ServerKind.REPLICAS, handlers_of(ServerKind.REPLICAS))
    assert not replicas.claimed_versions and not replicas.undecoded


@pytest.mark.parametrize("server", ServerKind)
def test_a_server_that_lacks_one_of_its_apis_is_not_made(server: ServerKind) -> None:
    handlers = handlers_of(server)
    missing = next(iter(handlers))
    del handlers[missing]
    with pytest.raises(AssertionError, match=re.escape(f"{server.value} has no handler of {missing}")):
        table.serving(server, handlers)


def test_a_server_that_serves_anothers_api_is_not_made() -> None:
    handlers = handlers_of(ServerKind.CONTROLLER) | {table.FETCH: lambda _: None}
    with pytest.raises(AssertionError, match=r"a controller does not serve Fetch \(1\)"):
        table.serving(ServerKind.CONTROLLER, handlers)


# ------------------------------------------------------------------ nowhere else


def parsed() -> Iterator[tuple[str, ast.Module]]:
    for path in PRODUCT:
        yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def assigned(module: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Every name that is given a value, with the value."""
    for node in ast.walk(module):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)) if len(names) == len(values):
                for target, value in zip(names, values, strict=True):
                    if isinstance(target, ast.Name):
                        yield target.id, value


def stands_again(module: ast.Module) -> Iterator[tuple[int, str]]:
    """What of the table a module says for itself: line and text."""
    names = {spec.name for spec in table.APIS}
    for name, value in assigned(module):
        spec = SNAKE_NAMES.get(name.lower().removesuffix("_key").removesuffix("_api"))
        if spec is not None and isinstance(value, ast.Constant) and value.value == spec.key:
            yield value.lineno, f"a key: {name} = {ast.unparse(value)}"
        if "VERSIONS" in name and isinstance(value, ast.Call) and ast.unparse(value.func) == "range":
            yield value.lineno, f"versions: {name} = {ast.unparse(value)}"
    for node in ast.walk(module):
        match node:
            case ast.Call(func=ast.Name(id=called), args=[ast.Constant(value=int(key)), *_]) if called in TAKE_AN_API:
                yield node.lineno, f"a key: {called}({key}, …)"
            case ast.Compare(left=left, comparators=[ast.Constant(value=int(key))]) if "api_key" in ast.unparse(left):
                yield node.lineno, f"a key: {ast.unparse(node)}"
            case ast.Constant(value=str(text)) if text in names:
                yield node.lineno, f"a name: {text!r}"


TAKE_AN_API = (
    "answer",
    "response_class",
    "request_class",
    "load_response_schema",
    "load_request_schema",
    "Api",
    "GroupApi",
)


def test_each_key_name_and_range_of_versions_stands_in_the_table_alone() -> None:
    again = [f"{path}:{line}: {text}" for path, module in parsed() for line, text in stands_again(module)]
    assert not again, "\n".join(again)


@pytest.mark.parametrize(
    "line",
    [
        "PRODUCE = 0",
        "FETCH: Final = 1",
        "METADATA, VERSION = 3, 7",
        "FETCH_KEY = 1",
        "LIST_OFFSETS_VERSIONS = range(1, 12)",
        "answer(3, version)",
        "header.api_key == 18",
        "NAMES = {3: 'Metadata'}",
    ],
)
def test_what_stands_again_is_found(line: str) -> None:
    assert list(stands_again(ast.parse(line)))


ASKED_OUTSIDE = {"alter_replica_log_dirs"}
"""What clients ask listeners alone: inside they have an API of raylog's own for it."""


def test_clients_speak_versions_that_are_served_inside() -> None:
    said = [
        (name, int(version))
        for path in sorted((ROOT / "raylog" / "client").rglob("*.py"))
        for name, version in re.findall(r"_schema\(\"([a-z_]+)\.v(\d+)\"\)", path.read_text())
    ]
    assert len(said) > 10
    wrong = [
        (name, version)
        for name, version in said
        if version not in (SNAKE_NAMES[name].versions if name in ASKED_OUTSIDE else SNAKE_NAMES[name].spoken_inside)
    ]
    assert not wrong
