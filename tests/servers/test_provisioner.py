"""The provisioner on real folders, with nodes and controllers of the test's own: what it makes of them, and what an interruption leaves."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from provisioned_machines import Machines

from raylog.disks.disk import (
    FOUNDING_FOLDER,
    METADATA_FOLDER,
    Disk,
    read_disk,
)
from raylog.errors import DiskError
from raylog.log.disk_files import DiskFiles
from raylog.metadata.records import StaticSource
from raylog.raft.metadata_log import MetadataLog
from raylog.server import disk_work
from raylog.server.provisioner import LOOK_AGAIN_ROUNDS, Provisioner, find_quorum
from raylog.types import Endpoint


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


def disk_of(machines: Machines, name: str) -> Disk:
    disk = read_disk(machines.folder / name)
    assert disk is not None, f"{name} is blank"
    return disk


def voters_of(folder: Path) -> tuple[uuid.UUID, ...]:
    log = MetadataLog.open(DiskFiles(), str(folder))
    try:
        return log.snapshot.voters
    finally:
        log.close()


def three(machines: Machines) -> Provisioner:
    provisioner = Provisioner(machines, expected=3)
    for number in (1, 2, 3):
        machines.join(f"m{number}", f"10.0.0.{number}")
    return provisioner


def test_before_the_first_look_nothing_is_said_of_the_nodes_but_how_many_disks_are_waited_for(
    machines: Machines,
) -> None:
    provisioner = Provisioner(machines, expected=3)
    assert provisioner.status()["missing"] == "0 of 3 disks have joined: the nodes are being looked at"
    provisioner.expect(4, None)
    assert provisioner.status()["missing"] == "0 of 4 disks have joined: the nodes are being looked at"


def test_blank_disks_wait_for_the_expected_number_and_become_a_cluster(machines: Machines) -> None:
    provisioner = Provisioner(machines, expected=3)
    for number in (1, 2):
        machines.join(f"m{number}", f"10.0.0.{number}", rack=f"r{number}")
        provisioner.round()
    assert "2 of 3 disks have joined" in provisioner.status()["missing"]
    assert read_disk(machines.folder / "m1") is None
    machines.join("m3", "10.0.0.3")
    provisioner.round()
    assert provisioner.status()["missing"] is None
    assert machines.brokers() == {"m1": 0, "m2": 1, "m3": 2} and machines.running == ["m1", "m2", "m3"]
    disks = [disk_of(machines, f"m{number}") for number in (1, 2, 3)]
    assert len({disk.cluster_id for disk in disks}) == len({disk.secret for disk in disks}) == 1
    assert [disk.rack for disk in disks] == ["r1", "r2", None]
    assert all(disk.controllers == tuple(Endpoint(f"10.0.0.{n}", 8999 + n) for n in (1, 2, 3)) for disk in disks)
    assert voters_of(disks[0].path / METADATA_FOLDER) == tuple(sorted(disk.directory_id for disk in disks))


def test_the_cluster_is_told_once_and_what_is_missing_is_a_warning(
    machines: Machines, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    provisioner = Provisioner(machines, expected=2, on_cluster=told.append)
    machines.join("m1", "10.0.0.1")
    with caplog.at_level("INFO", "raylog.provisioner"):
        provisioner.round()
        provisioner.round()
        assert told == [] and [each.levelname for each in caplog.records] == ["WARNING"]
        machines.join("m2", "10.0.0.2")
        provisioner.round()
        provisioner.round()
    assert told == [disk_of(machines, "m1").cluster_id]
    assert (caplog.records[-1].levelname, caplog.messages[-1]) == ("INFO", "every disk serves")


def test_a_quiet_round_does_nothing_on_any_node(machines: Machines) -> None:
    provisioner = three(machines)
    provisioner.round()
    machines.work.clear()
    provisioner.round()
    assert machines.work == []


def test_a_blank_disk_that_joins_later_is_formatted_with_an_id_that_nobody_has(machines: Machines) -> None:
    provisioner = three(machines)
    provisioner.round()
    machines.others = {3}  # registered, and its node is away
    machines.join("m4", "10.0.0.4")
    machines.has_majority = False
    provisioner.round()
    assert read_disk(machines.folder / "m4") is None and "no controller is active" in provisioner.status()["missing"]
    machines.has_majority = True
    provisioner.round()
    disk = disk_of(machines, "m4")
    assert disk.broker_id == machines.brokers()["m4"] == 4
    assert disk.cluster_id == disk_of(machines, "m1").cluster_id and len(disk.controllers) == 3
    assert not (disk.path / METADATA_FOLDER).exists()


def test_a_new_provisioner_on_a_ray_that_knows_nothing_finds_the_cluster_on_its_disks(machines: Machines) -> None:
    three(machines).round()
    before = machines.brokers()
    cluster_id = disk_of(machines, "m1").cluster_id
    again = Machines(machines.folder)
    provisioner = Provisioner(again, expected=3)
    again.join("m9", "10.0.0.1")  # a blank disk comes first
    again.join("m2", "10.0.1.2")
    again.has_majority, again.others = False, {0, 1, 2}
    provisioner.round()
    assert again.running == ["m2"], "one of three voters: a controller that waits for the others"
    for number in (1, 3):
        again.join(f"m{number}", f"10.0.1.{number}")
    again.has_majority = True
    provisioner.round()
    assert {name: broker for name, broker in again.brokers().items() if name != "m9"} == before
    assert again.running == ["m1", "m2", "m3"] and again.brokers()["m9"] == 3
    assert {disk_of(again, name).cluster_id for name in again.nodes} == {cluster_id}
    assert [str(each.host) for each in disk_of(again, "m9").controllers] == ["10.0.1.1", "10.0.1.2", "10.0.1.3"]


def test_a_node_that_comes_back_elsewhere_has_its_controllers_address_told_to_all(machines: Machines) -> None:
    provisioner = three(machines)
    provisioner.round()
    del machines.nodes["m2"]
    provisioner.round()
    assert Endpoint("10.0.0.2", 9001) in disk_of(machines, "m1").controllers, "it may come back where it was"
    machines.join("m2", "10.0.9.9")
    provisioner.round()
    for name in ("m1", "m2", "m3"):
        hosts = [each.host for each in disk_of(machines, name).controllers]
        assert hosts == ["10.0.0.1", "10.0.9.9", "10.0.0.3"]
    assert machines.registered[machines.nodes["m2"].directory_id] == (1, "10.0.9.9")


def replaced(machines: Machines, name: str) -> uuid.UUID:
    """The machine is gone and comes back with a blank disk in the same place; the directory id of the old one."""
    old = machines.nodes.pop(name)
    shutil.rmtree(old.path)
    machines.join(name, old.host)
    return old.directory_id


def test_a_blank_disk_in_the_place_of_a_lost_one_is_its_broker_and_gets_its_controller(machines: Machines) -> None:
    provisioner = three(machines)
    provisioner.round()
    lost = replaced(machines, "m2")
    machines.live = {1}
    machines.lost = {lost: 1}
    provisioner.round()
    assert "waits until the broker that was there before" in provisioner.status()["missing"]
    assert read_disk(machines.folder / "m2") is None and machines.running == ["m1", "m3"]
    machines.live = set()
    provisioner.round()
    disk = disk_of(machines, "m2")
    assert disk.broker_id == 1 and disk.directory_id != lost and not (disk.path / METADATA_FOLDER).exists()
    provisioner.round()
    assert machines.running == ["m1", "m2", "m3"] and provisioner.status()["missing"] is None


def test_a_disk_gets_no_controller_while_the_lost_voters_broker_is_away(machines: Machines) -> None:
    provisioner = three(machines)
    provisioner.round()
    gone = machines.nodes.pop("m2")
    machines.lost = {gone.directory_id: 1}
    machines.join("m4", "10.0.0.4")
    for _ in range(3):
        provisioner.round()
    assert machines.brokers()["m4"] == 3 and machines.running == ["m1", "m3"]


@pytest.mark.parametrize("broken", ["m1", "m2", "m3"])
def test_a_founding_that_formatted_some_disks_is_finished_without_a_controller(machines: Machines, broken: str) -> None:
    provisioner = three(machines)
    machines.fails = {("format", name) for name in ("m1", "m2", "m3") if name != broken}
    machines.has_majority = False
    provisioner.round()
    cluster_id = disk_of(machines, broken).cluster_id
    assert [name for name in ("m1", "m2", "m3") if read_disk(machines.folder / name)] == [broken]
    machines.fails = set()
    Provisioner(machines, expected=3).round()
    disks = [disk_of(machines, name) for name in ("m1", "m2", "m3")]
    assert [disk.broker_id for disk in disks] == [0, 1, 2]
    assert {disk.cluster_id for disk in disks} == {cluster_id}
    assert len({voters_of(disk.path / METADATA_FOLDER) for disk in disks}) == 1
    assert machines.running == ["m1", "m2", "m3"]


def test_a_founding_that_formatted_no_disk_is_begun_again(machines: Machines) -> None:
    provisioner = three(machines)
    machines.fails = {("promise", "m3")}
    provisioner.round()
    assert "m3 broke" in provisioner.status()["missing"]
    assert not any(read_disk(machines.folder / name) for name in machines.nodes)
    machines.fails = set()
    del machines.nodes["m1"]  # it had been a voter
    machines.join("m0", "10.0.0.4")
    provisioner.round()
    machines.join("m1", "10.0.0.1")
    provisioner.round()
    assert machines.brokers() == {"m2": 0, "m3": 1, "m0": 2, "m1": 3}
    assert machines.running == ["m0", "m2", "m3"]
    late = disk_of(machines, "m1")
    assert not (late.path / METADATA_FOLDER).exists() and not (late.path / FOUNDING_FOLDER).exists()


def test_a_folder_that_cannot_be_used_is_named_and_looked_at_again(machines: Machines) -> None:
    provisioner = three(machines)
    provisioner.round()
    machines.fails = {("look", "m4")}
    machines.join("m4", "10.0.0.4")
    provisioner.round()
    assert "m4 on 10.0.0.4 can't be used: m4 broke" in provisioner.status()["missing"]
    machines.fails = set()
    for _ in range(LOOK_AGAIN_ROUNDS + 1):
        provisioner.round()
    assert provisioner.status()["missing"] is None and machines.brokers()["m4"] == 3


def test_another_disk_under_the_advertised_path_is_refused(machines: Machines) -> None:
    provisioner = three(machines)
    machines.nodes["m2"] = replace(machines.nodes["m2"], directory_id=uuid.uuid4())
    provisioner.round()
    assert "not the disk that its node advertised" in provisioner.status()["missing"]
    with pytest.raises(DiskError, match="not the disk that its node advertised"):
        disk_work.look(machines.folder / "m2", uuid.uuid4())


def test_a_stopped_provisioner_leaves_everything_alone(machines: Machines) -> None:
    provisioner = three(machines)
    assert not provisioner.stop([uuid.uuid4()]), "another cluster's shutdown"
    provisioner.round()
    assert provisioner.stop([machines.nodes["m1"].directory_id])
    machines.join("m4", "10.0.0.4")
    provisioner.round()
    assert read_disk(machines.folder / "m4") is None


def test_what_nodes_say_of_configs_is_set_before_a_new_cluster_serves(machines: Machines) -> None:
    provisioner = three(machines)
    for number in (1, 2, 3):
        machines.join(f"m{number}", f"10.0.0.{number}", num_partitions="4")
    machines.has_majority = False
    provisioner.round()
    Provisioner(machines, expected=3).round()  # another one, on disks that are formatted
    assert not machines.registered
    machines.has_majority = True
    Provisioner(machines, expected=3).round()
    assert machines.static == {StaticSource.NODES: {"num.partitions": "4"}} and len(machines.registered) == 3


def test_nodes_that_contradict_each_other_make_no_cluster(machines: Machines) -> None:
    provisioner = three(machines)
    machines.join("m1", "10.0.0.1", num_partitions="4")
    machines.join("m3", "10.0.0.3", num_partitions="6")
    provisioner.round()
    missing = provisioner.status()["missing"]
    assert "num.partitions is 4 for" in missing and "and 6 for" in missing and "m1" in missing and "m3" in missing
    assert read_disk(machines.folder / "m2") is None


def test_what_nodes_say_at_their_next_start_holds(machines: Machines) -> None:
    for number in (1, 2, 3):
        machines.join(f"m{number}", f"10.0.0.{number}", num_partitions="4")
    Provisioner(machines, expected=3).round()
    for number in (1, 2, 3):
        machines.join(f"m{number}", f"10.0.0.{number}", num_partitions="5")
    machines.registered.clear()
    Provisioner(machines, expected=3).round()
    assert machines.static == {StaticSource.NODES: {"num.partitions": "5"}}
    assert len(machines.registered) == 3


def test_a_node_that_contradicts_the_others_later_keeps_nobody_from_serving(machines: Machines) -> None:
    for number in (1, 2, 3):
        machines.join(f"m{number}", f"10.0.0.{number}", num_partitions="4")
    Provisioner(machines, expected=3).round()
    machines.join("m3", "10.0.0.3", num_partitions="5", default_replication_factor="2")
    machines.registered.clear()
    Provisioner(machines, expected=3).round()
    assert machines.static[StaticSource.NODES] == {"num.partitions": "4", "default.replication.factor": "2"}
    assert len(machines.registered) == 3


def test_what_a_node_says_that_is_away_holds_until_it_is_back(machines: Machines) -> None:
    for number in (1, 2, 3):
        machines.join(f"m{number}", f"10.0.0.{number}", num_partitions="4")
    Provisioner(machines, expected=3).round()
    machines.static = {StaticSource.NODES: {"log.roll.ms": "1"}}
    del machines.nodes["m3"]
    Provisioner(machines, expected=3).round()
    assert machines.static == {StaticSource.NODES: {"log.roll.ms": "1", "num.partitions": "4"}}


def test_what_up_orders_is_set_once_and_missing_until_then(machines: Machines) -> None:
    provisioner = three(machines)
    provisioner.round()
    machines.has_majority = False
    provisioner.expect(3, None, {"num.partitions": "6"})
    assert provisioner.status()["missing"] == "num.partitions: not set yet"
    provisioner.round()
    assert StaticSource.START not in machines.static
    machines.has_majority = True
    provisioner.round()
    assert machines.static[StaticSource.START] == {"num.partitions": "6"} and provisioner.status()["missing"] is None
    machines.static.clear()
    provisioner.expect(3, None)
    provisioner.round()
    assert not machines.static, "an order is carried out once, and a start that says nothing changes nothing"


def test_controllers_run_where_the_quorum_and_its_plan_say_and_nowhere_else(machines: Machines) -> None:
    provisioner = three(machines)
    provisioner.round()
    for number in (4, 5):
        machines.join(f"m{number}", f"10.0.0.{number}")
    provisioner.round()
    assert machines.running == ["m1", "m2", "m3"]
    ids = {name: each.directory_id for name, each in machines.nodes.items()}
    machines.planned = (0, 2, 3)
    machines.voters = {ids["m1"]: 0, ids["m2"]: 1, ids["m3"]: 2, ids["m4"]: 3}
    provisioner.round()
    assert machines.running == ["m1", "m2", "m3", "m4"], "who votes still runs"
    machines.voters = {ids["m1"]: 0, ids["m3"]: 2, ids["m4"]: 3}
    provisioner.round()
    assert machines.running == ["m1", "m3", "m4"]
    provisioner.round()
    for name in machines.nodes:
        hosts = [each.host for each in disk_of(machines, name).controllers]
        assert hosts == ["10.0.0.1", "10.0.0.3", "10.0.0.4"]
    assert provisioner.status()["missing"] is None and len(provisioner.status()["controllers"]) == 3
    again = Provisioner(
        machines, expected=3
    )  # it finds the folder of the one that has left, and does not know better at first
    again.round()
    again.round()
    assert machines.running == ["m1", "m3", "m4"]


def test_a_plan_that_cannot_be_asked_for_is_what_was_seen_last(machines: Machines) -> None:
    provisioner = three(machines)
    provisioner.round()
    ids = {name: each.directory_id for name, each in machines.nodes.items()}
    machines.planned, machines.voters = (0,), {ids["m1"]: 0}
    provisioner.round()
    assert machines.running == ["m1"]
    machines.has_majority = False
    provisioner.round()
    assert machines.running == ["m1"]


@pytest.mark.parametrize("planned", [(0, 1, 2), (0,)])
def test_a_lost_voter_is_replaced_if_its_broker_is_planned(machines: Machines, planned: tuple[int, ...]) -> None:
    provisioner = three(machines)
    machines.join("m4", "10.0.0.2")
    machines.nodes["m4"] = replace(machines.nodes["m4"], node=machines.nodes["m2"].node)
    provisioner.expect(4, None)
    provisioner.round()
    lost = machines.nodes.pop("m2").directory_id
    assert machines.brokers() == {"m1": 0, "m3": 2, "m4": 1} and machines.running == ["m1", "m2", "m3"]
    machines.planned, machines.lost = planned, {lost: 1}
    machines.voters = {machines.nodes[name].directory_id: broker for name, broker in (("m1", 0), ("m3", 2))}
    for _ in range(3):
        provisioner.round()
    assert machines.running == ["m1", "m3", *["m4"] * (1 in planned)]


def test_the_number_of_controllers_that_up_wants_is_planned_once_and_missing_until_then(machines: Machines) -> None:
    provisioner = three(machines)
    provisioner.expect(3, 3)
    provisioner.round()
    assert machines.counts == [] and provisioner.status()["missing"] is None, "there are three"
    machines.has_majority = False
    provisioner.expect(3, 1)
    assert provisioner.status()["missing"] == "1 controllers are not planned yet"
    provisioner.round()
    assert machines.counts == []
    machines.has_majority = True
    provisioner.round()
    assert machines.counts == [1] and provisioner.status()["missing"] is None
    provisioner.expect(3, None)
    provisioner.round()
    provisioner.expect(3, 1)
    provisioner.round()
    assert machines.counts == [1], "that is the plan already"
    Provisioner(machines, expected=3, controllers=3).round()
    assert machines.counts == [1], "what the first start said of a new cluster is over"


def test_the_active_controller_is_found_by_what_those_say_that_are_known() -> None:
    """It may be one that joined in a plan, on a disk whose controller nobody here has heard of."""
    one, two, three = (Endpoint("10.0.0.1", port) for port in (1, 2, 3))

    def told(active: Endpoint | None) -> Callable[[Endpoint], dict[str, Any] | None]:
        voters = [{"endpoint": str(each)} for each in (two, three)] + [{"endpoint": None}]
        answers = {
            each: {"told_by": {"is_active": each == active, "at": each}, "voters": voters} for each in (two, three)
        }
        return answers.get

    found = find_quorum(told(three), [one, two])
    assert found is not None and found["told_by"]["at"] == three
    assert find_quorum(told(None), [one, two]) is None
