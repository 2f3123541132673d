"""Which broker a disk becomes, from what nodes say: no Ray, no folders."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from raylog.disks.disk import Disk, Reservation
from raylog.errors import ClusterError
from raylog.placement.founding import JoinedDisk, KnownBroker, assign_brokers, cluster_of, found, rack_of


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
    assigned = assign_brokers(disks, known=[KnownBroker(0), KnownBroker(2)])  # both are away
    assert {key.int: value for key, value in assigned.items()} == {2: 4, 3: 1, 4: 3}


def test_a_blank_disk_in_the_place_of_one_that_is_gone_takes_its_brokers_id() -> None:
    place = KnownBroker(7, hosts=frozenset({"10.0.0.3"}), paths=frozenset({"/disk-4"}))
    disks = [joined(1, node="a", host="10.0.0.1", broker=0), joined(4, node="c", host="10.0.0.3")]
    assert {key.int: value for key, value in assign_brokers(disks, known=[place]).items()} == {4: 7}
    elsewhere = [disks[0], joined(4, node="c", host="10.0.0.9")]
    assert {key.int: value for key, value in assign_brokers(elsewhere, known=[place]).items()} == {4: 1}
    other_path = [disks[0], joined(5, node="c", host="10.0.0.3")]
    assert {key.int: value for key, value in assign_brokers(other_path, known=[place]).items()} == {5: 1}
    is_here = [joined(1, node="a", host="10.0.0.1", broker=7), disks[1]]
    assert {key.int: value for key, value in assign_brokers(is_here, known=[place]).items()} == {4: 0}, "it is here"


def test_a_blank_disk_waits_while_the_broker_that_was_in_its_place_counts_as_live() -> None:
    place = KnownBroker(7, True, frozenset({"10.0.0.3"}), frozenset({"/disk-4"}))
    disks = [joined(4, node="c", host="10.0.0.3"), joined(5, node="d", host="10.0.0.4")]
    assert {key.int: value for key, value in assign_brokers(disks, known=[place]).items()} == {5: 0}


def test_a_blank_disk_waits_while_the_one_that_was_in_its_place_still_counts_as_joined() -> None:
    """Ray takes a while to give up the node that the machine was before."""
    before = joined(4, node="before", host="10.0.0.3", broker=7)
    again = replace(before, directory_id=uuid.UUID(int=5), node="again", disk=None)
    assert assign_brokers([before, again], known=[KnownBroker(7)]) == {}


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
