"""Which folders of a running Ray's nodes are lent to the cluster, and how that is noted. Pure: the
nodes come in, and the notes are bytes that somebody else keeps. Asks no Ray and imports none: see
``groups``.

A node is named by its address, by Ray's id of it or by a beginning of that id which no other has.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from raylog.errors import ClusterError

Folders = str | Path | Sequence[str | Path]
"""Those of one node: one, or several."""
_SHORT_ID = 12


@dataclass(frozen=True, slots=True)
class LiveNode:
    """A Ray node that is alive."""

    node_id: str  # in hexadecimal
    address: str

    def __str__(self) -> str:
        return f"{self.address} ({self.node_id[:_SHORT_ID]})"


@dataclass(frozen=True, slots=True)
class LentDisk:
    """A folder that its node has lent."""

    directory_id: uuid.UUID
    node_id: str
    address: str
    path: Path

    def note(self) -> bytes:
        return json.dumps({"node_id": self.node_id, "address": self.address, "path": str(self.path)}).encode()

    @classmethod
    def of_note(cls, directory_id: uuid.UUID, note: bytes) -> LentDisk:
        told = json.loads(note)
        return cls(directory_id, told["node_id"], told["address"], Path(told["path"]))


def folders_of_nodes(disks: Mapping[str, Folders], nodes: Iterable[LiveNode]) -> list[tuple[LiveNode, Path]]:
    """The node of each folder, in the order given.

    Raises ClusterError for a name that no node has or several have, a node that is given under two
    names, and a folder that is given twice, is relative, or is missing from a node's list.
    """
    there = sorted(nodes, key=lambda node: (node.address, node.node_id))
    named: dict[LiveNode, str] = {}
    found: list[tuple[LiveNode, Path]] = []
    for name, folders in disks.items():
        node = _node_of(name, there)
        if node in named:
            raise ClusterError(f"{named[node]!r} and {name!r} are one Ray node, {node}: give it once; {_listed(there)}")
        named[node] = name
        paths = [folders] if isinstance(folders, str | Path) else list(folders)
        if not paths:
            raise ClusterError(f"no folder is given for the Ray node {node}: give at least one")
        found.extend((node, _absolute(path, node)) for path in paths)
    if not found:
        raise ClusterError(f"no disks are given: give folders by node; {_listed(there)}")
    for place, (node, path) in enumerate(found):
        if (node, path) in found[:place]:
            raise ClusterError(f"{path} of the Ray node {node} is given twice: give each folder once; {_listed(there)}")
    return found


def _node_of(name: str, there: Sequence[LiveNode]) -> LiveNode:
    found = [node for node in there if node.address == name] or [
        node for node in there if name and node.node_id.startswith(name.lower())
    ]
    if not found:
        raise ClusterError(f"no Ray node is {name!r}: name one by its address or its id; {_listed(there)}")
    if len(found) > 1:
        raise ClusterError(f"{len(found)} Ray nodes are {name!r}: name one by its id; {_listed(there)}")
    return found[0]


def _absolute(path: str | Path, node: LiveNode) -> Path:
    if not os.path.isabs(path):
        raise ClusterError(f"{path} is a relative folder, and means nothing on the Ray node {node}: give it from / on")
    return Path(os.path.normpath(path))


def _listed(there: Sequence[LiveNode]) -> str:
    return f"there are {', '.join(map(str, there))}"
