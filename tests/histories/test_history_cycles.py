"""Strongly connected components and circles, against a naive search."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from raylog.histories.cycles import shortest_path, strongly_connected

NODES = 8
graphs = st.dictionaries(
    st.integers(0, NODES - 1), st.lists(st.integers(0, NODES - 1), max_size=4, unique=True), max_size=NODES
)


def reached(graph: dict[int, list[int]], start: int) -> set[int]:
    found: set[int] = set()
    left = [start]
    while left:
        for after in graph.get(left.pop(), []):
            if after not in found:
                found.add(after)
                left.append(after)
    return found


@given(graphs)
def test_components_are_the_nodes_that_reach_each_other(graph: dict[int, list[int]]) -> None:
    reach = {node: reached(graph, node) for node in range(NODES)}
    expected = {
        tuple(sorted({node, *(other for other in reach[node] if node in reach[other])})) for node in range(NODES)
    }
    components = [tuple(component) for component in strongly_connected(graph)]
    assert len(components) == len(set(components))
    assert set(components) == {component for component in expected if len(component) > 1}


@given(graphs, st.integers(0, NODES - 1), st.integers(0, NODES - 1))
def test_a_path_follows_edges_and_is_there_where_the_end_can_be_reached(
    graph: dict[int, list[int]], start: int, end: int
) -> None:
    path = shortest_path(graph, start, end, set(range(NODES)))
    assert (path is not None) == (end in reached(graph, start))
    if path is not None:
        assert (path[0], path[-1]) == (start, end) and len(path) > 1
        assert all(second in graph[first] for first, second in pairwise(path))


def test_a_component_may_be_longer_than_pythons_stack() -> None:
    count = 50_000
    ring = {node: [(node + 1) % count] for node in range(count)}
    assert strongly_connected(ring) == [list(range(count))]


def test_the_shortest_of_two_ways_is_taken() -> None:
    graph = {0: [1, 3], 1: [2], 2: [3], 3: [0]}
    assert shortest_path(graph, 0, 0, {0, 1, 2, 3}) == [0, 3, 0]
    assert shortest_path(graph, 0, 0, {0, 1, 2}) is None
