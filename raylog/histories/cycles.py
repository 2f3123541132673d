"""Circles of operations, each of which depends on the one before.

``T1 ww T2``: in the order of some partition's offsets, a record of T2 comes next after one of T1.
``T1 wr T2``: T2 polled a record of T1.

Only operations that certainly took effect are in the graph. Strongly connected components are
Tarjan's, without recursion: where transactions write between each other, which Kafka allows, one
component may hold most of a history. Of each component, one short circle is shown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, pairwise

from raylog.histories.anomalies import Anomaly, AnomalyKind
from raylog.histories.known_records import KnownRecords
from raylog.histories.operations import HistoryOperation, LocatedRecord
from raylog.types import TopicPartition

STARTS_MAX = 50
"""From how many operations of a component a short circle is searched for."""

Successors = Mapping[int, Iterable[int]]


@dataclass(frozen=True, slots=True)
class Dependency:
    """Why one operation comes after another: it polled this record of it, or wrote the second of
    these records next after the first.
    """

    records: tuple[LocatedRecord, ...]

    def __str__(self) -> str:
        if len(self.records) == 1:
            return f"which polled {self.records[0]} from it"
        return f"which wrote {self.records[1]} after its {self.records[0]}"


@dataclass(slots=True)
class DependencyGraph:
    """``ww`` and ``wr`` by operation and then by the operation that comes after it, both as indexes
    into ``operations``.
    """

    operations: list[HistoryOperation]
    ww: dict[int, dict[int, Dependency]] = field(default_factory=dict)
    wr: dict[int, dict[int, Dependency]] = field(default_factory=dict)

    def both(self) -> dict[int, list[int]]:
        nodes = sorted({*self.ww, *self.wr})
        return {node: list(dict.fromkeys([*self.ww.get(node, ()), *self.wr.get(node, ())])) for node in nodes}


def dependency_graph(known: KnownRecords) -> DependencyGraph:
    """The graph of all operations that certainly took effect."""
    graph = DependencyGraph([operation for operation in known.operations if known.has_committed(operation)])
    indexes = {operation: index for index, operation in enumerate(graph.operations)}
    writers: dict[TopicPartition, dict[int, tuple[int, LocatedRecord]]] = {}
    for sent in known.sent:
        if sent.send.offset is not None and sent.operation in indexes:
            placed = (indexes[sent.operation], sent.record)
            writers.setdefault(sent.send.partition, {}).setdefault(sent.send.offset, placed)
    for record, readers in known.readers.items():
        writer = known.writer(record)
        if writer is None or writer not in indexes:
            continue
        assert record.offset is not None
        writers.setdefault(record.partition, {}).setdefault(record.offset, (indexes[writer], record))
        for reader in readers:
            if reader is not writer and reader in indexes:
                dependency = Dependency((record,))
                graph.wr.setdefault(indexes[writer], {}).setdefault(indexes[reader], dependency)
    for placed_at in writers.values():
        order = [placed for _, placed in sorted(placed_at.items())]
        for (first, before), (second, after) in pairwise(order):
            if first != second:
                dependency = Dependency((before, after))
                graph.ww.setdefault(first, {}).setdefault(second, dependency)
    return graph


def strongly_connected(successors: Successors) -> list[list[int]]:
    """The components of at least two nodes, each sorted. A node that leads to itself is none."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found = []
    for root in successors:
        if root in index:
            continue
        work: list[tuple[int, Iterator[int]]] = []
        _enter(root, successors, index, low, stack, on_stack, work)
        while work:
            node, left = work[-1]
            entered = False
            for after in left:
                if after not in index:
                    _enter(after, successors, index, low, stack, on_stack, work)
                    entered = True
                    break
                if after in on_stack:
                    low[node] = min(low[node], index[after])
            if entered:
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[node])
            if low[node] == index[node]:
                component = [stack.pop()]
                while component[-1] != node:
                    component.append(stack.pop())
                on_stack.difference_update(component)
                if len(component) > 1:
                    found.append(sorted(component))
    return found


def _enter(
    node: int,
    successors: Successors,
    index: dict[int, int],
    low: dict[int, int],
    stack: list[int],
    on_stack: set[int],
    work: list[tuple[int, Iterator[int]]],
) -> None:
    index[node] = low[node] = len(index)
    stack.append(node)
    on_stack.add(node)
    work.append((node, iter(successors.get(node, ()))))


def shortest_path(successors: Successors, start: int, end: int, within: set[int]) -> list[int] | None:
    """Nodes from ``start`` to ``end``, at least one step, along nodes of ``within``."""
    before: dict[int, int] = {}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for after in successors.get(node, ()):
            if after not in within or after in before:
                continue
            before[after] = node
            if after == end:
                path = [after]
                while len(path) == 1 or path[-1] != start:
                    path.append(before[path[-1]])
                return path[::-1]
            queue.append(after)
    return None


def cycles(known: KnownRecords) -> Iterator[Anomaly]:
    """One circle for each component: of writes alone, of reads alone, of both."""
    graph = dependency_graph(known)
    yield from _cycles_of_one_kind(graph, AnomalyKind.G0, graph.ww)
    yield from _cycles_of_one_kind(graph, AnomalyKind.G1C, graph.wr)
    component_of = {node: place for place, nodes in enumerate(strongly_connected(graph.wr)) for node in nodes}
    both = graph.both()
    for nodes in strongly_connected(both):
        within = set(nodes)
        reads = ((first, second) for first in nodes for second in graph.wr.get(first, ()) if second in within)
        for first, second in reads:
            if first in component_of and component_of.get(second) == component_of[first]:
                continue  # these two are in a circle of reads alone
            back = shortest_path(both, second, first, within)
            assert back is not None, "a strongly connected component has a way back"
            yield _described(graph, AnomalyKind.G1C_WW, [first, *back])
            break


def _cycles_of_one_kind(
    graph: DependencyGraph, kind: AnomalyKind, edges: Mapping[int, Mapping[int, Dependency]]
) -> Iterator[Anomaly]:
    for nodes in strongly_connected(edges):
        within = set(nodes)
        circles = [shortest_path(edges, node, node, within) for node in islice(nodes, STARTS_MAX)]
        yield _described(graph, kind, min((circle for circle in circles if circle), key=len))


def _described(graph: DependencyGraph, kind: AnomalyKind, circle: list[int]) -> Anomaly:
    """``circle`` begins and ends with the same operation."""
    steps = []
    for first, second in pairwise(circle):
        ww, wr = graph.ww.get(first, {}).get(second), graph.wr.get(first, {}).get(second)
        step = ww if wr is None or kind is AnomalyKind.G0 else wr
        assert step is not None
        steps.append(step)
    operations = tuple(graph.operations[node] for node in circle[:-1])
    told = [f"{graph.operations[circle[0]]}"]
    told += [f"before {graph.operations[node]}, {step}" for node, step in zip(circle[1:], steps, strict=True)]
    records = tuple(record for step in steps for record in step.records)
    return Anomaly(kind, operations, records, ", ".join(told))
