"""Which broker a disk becomes, from what nodes say: no Ray, no folders."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from raylog.errors import ClusterError
from raylog.placement.disks import Disk, Reservation
from raylog.placement.founding import JoinedDisk, assign_brokers, cluster_of, found, rack_of


def joined(number: int, *, node: str, host: str, broker: int | None = None, cluster: str = "c") -> JoinedDisk:
    path = Path(f"/disk-{number}")
    directory_id = uuid.UUID(int=number)
    disk = None if broker is None else Disk(path, cluster, broker, directory_id, None, (), "s")
    return JoinedDisk(directory_id, path, node, host, disk=disk)


def test_a_new_cluster_numbers_nodes_by_address_and_gives_a_nodes_disks_one_broker() -> None:
    disks = [
        joined(1, node="n", host="10.0.0.10"),
        joined(2, node="b", host="10.0.0.9"),
        joined(3, node="n", host="10.0.0.10"),
        joined(4, node="a", host="10.0.0.2"),
    ]
    founding = found(disks)
    assert {key.int: value for key, value in founding.broker_ids.items()} == {4: 0, 2: 1, 1: 2, 3: 2}
    assert [each.int for each in founding.voters] == [4, 2, 1], "one controller per broker, on its first disk"


def test_two_nodes_make_one_controller_and_refuse_three() -> None:
    disks = [joined(1, node="a", host="10.0.0.1"), joined(2, node="b", host="10.0.0.2")]
    assert [each.int for each in found(disks).voters] == [1]
    with pytest.raises(ClusterError, match="3 controllers need as many nodes"):
        found(disks, controllers=3)


def test_a_blank_disk_joins_its_nodes_broker_or_takes_the_lowest_free_id() -> None:
    disks = [
        joined(1, node="a", host="10.0.0.1", broker=4),
        joined(2, node="a", host="10.0.0.1"),
        joined(3, node="b", host="10.0.0.2"),
        joined(4, node="c", host="10.0.0.3"),
    ]
    assigned = assign_brokers(disks, taken={0, 2})  # 0 and 2 are away
    assert {key.int: value for key, value in assigned.items()} == {2: 4, 3: 1, 4: 3}


def test_disks_of_two_clusters_are_refused() -> None:
    first = joined(1, node="a", host="10.0.0.1", broker=0)
    assert cluster_of([first, joined(2, node="b", host="10.0.0.2")]) == "c"
    with pytest.raises(ClusterError, match="disks of 2 clusters"):
        cluster_of([first, joined(2, node="b", host="10.0.0.2", broker=1, cluster="d")])


def test_what_is_reserved_names_the_rack_before_the_nodes_label_does() -> None:
    blank = JoinedDisk(uuid.UUID(int=1), Path("/d"), "a", "10.0.0.1", "zone-1")
    assert rack_of(blank, []) == "zone-1"
    reserved = JoinedDisk(
        blank.directory_id, blank.path, "a", "10.0.0.1", "zone-1", reservation=Reservation(blank.directory_id, "rack-a")
    )
    assert rack_of(reserved, []) == "rack-a"
