"""Which folders of which nodes are lent: names of nodes, and what is refused. No Ray."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest

from raylog.errors import ClusterError
from raylog.placement.lending import Folders, LentDisk, LiveNode, folders_of_nodes

FIRST = LiveNode("abc1" + 52 * "0", "10.0.0.1")
SECOND = LiveNode("abc2" + 52 * "0", "10.0.0.2")
TWIN = LiveNode("fff3" + 52 * "0", "10.0.0.2")
THERE = "there are 10.0.0.1 (abc100000000), 10.0.0.2 (abc200000000)"


def test_a_node_is_named_by_its_address_its_id_or_a_beginning_that_no_other_has() -> None:
    assert folders_of_nodes({"10.0.0.2": "/a", "ABC1": [Path("/a"), "/b/../c"]}, [SECOND, FIRST]) == [
        (SECOND, Path("/a")),
        (FIRST, Path("/a")),
        (FIRST, Path("/c")),
    ]
    assert folders_of_nodes({FIRST.node_id: "/a"}, [FIRST, SECOND]) == [(FIRST, Path("/a"))]
    assert folders_of_nodes({TWIN.node_id: "/a"}, [SECOND, TWIN]) == [(TWIN, Path("/a"))]


@pytest.mark.parametrize(
    ("disks", "reason"),
    [
        ({"10.0.0.9": "/a"}, "no Ray node is '10.0.0.9': name one by its address or its id; "),
        ({"": "/a"}, "no Ray node is ''"),
        ({"abc": "/a"}, "2 Ray nodes are 'abc': name one by its id; "),
        ({"10.0.0.1": "/a", "abc1": "/b"}, "'10.0.0.1' and 'abc1' are one Ray node, 10.0.0.1 (abc100000000): "),
        ({"10.0.0.1": ["/a", "/b/../a"]}, "/a of the Ray node 10.0.0.1 (abc100000000) is given twice: "),
        ({}, "no disks are given: "),
    ],
)
def test_a_refusal_is_one_line_that_names_the_nodes_there_are(disks: dict[str, Folders], reason: str) -> None:
    with pytest.raises(ClusterError, match=re.escape(reason)) as refused:
        folders_of_nodes(disks, [FIRST, SECOND])
    assert str(refused.value).endswith(THERE) and "\n" not in str(refused.value)


def test_an_address_of_two_nodes_is_refused() -> None:
    with pytest.raises(ClusterError, match=re.escape("2 Ray nodes are '10.0.0.2': name one by its id")):
        folders_of_nodes({"10.0.0.2": "/a"}, [SECOND, TWIN])


def test_a_relative_folder_and_an_empty_list_are_refused() -> None:
    with pytest.raises(ClusterError, match="data is a relative folder"):
        folders_of_nodes({"10.0.0.1": "data"}, [FIRST])
    with pytest.raises(ClusterError, match=re.escape("no folder is given for the Ray node 10.0.0.1")):
        folders_of_nodes({"10.0.0.1": []}, [FIRST])


def test_a_note_says_all_of_a_lent_disk() -> None:
    disk = LentDisk(uuid.UUID(int=7), FIRST.node_id, FIRST.address, Path("/döta"))
    assert LentDisk.of_note(disk.directory_id, disk.note()) == disk
