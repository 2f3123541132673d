"""Which disks get controllers, and when the metadata is formatted: once."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from raylog.disks.disk import Disk, controller_left, controller_moved, format_disk, open_disk, with_controllers
from raylog.disks.quorum_disks import METADATA_FOLDER, forget_metadata, quorum_disks
from raylog.errors import ClusterError, DiskError
from raylog.log.disk_files import DiskFiles
from raylog.raft.messages import BLANK, Snapshot
from raylog.raft.metadata_log import MetadataLog
from raylog.server.controller_server import ControllerServer
from raylog.server.spec import ServerSpec
from raylog.types import Endpoint


class Nobody:
    def start_controller(self, cluster_id: str, spec: ServerSpec) -> Endpoint:
        raise AssertionError("nobody is started")

    def launch(self, kind: str, spec: ServerSpec) -> Endpoint:
        raise AssertionError("nobody is started")


HERE = [Endpoint("127.0.0.1", port) for port in (1, 2, 3)]


def make(folder: Path, broker: int, name: str | None = None) -> Disk:
    path = folder / (name or f"broker-{broker}")
    return format_disk(path, cluster_id="c", broker_id=broker, rack=None, controllers=[], secret="s")


@pytest.fixture
def disks(tmp_path: Path) -> list[Disk]:
    return [make(tmp_path, broker) for broker in range(4)]


def snapshot_on(disk: Disk) -> Snapshot:
    folder = disk.path / METADATA_FOLDER
    if not folder.exists():
        return BLANK
    log = MetadataLog.open(DiskFiles(), str(folder))
    log.close()
    return log.snapshot


def brokers(disks: list[Disk]) -> list[int]:
    return [disk.broker_id for disk in disks]


@pytest.mark.parametrize("controllers", [1, 3])
def test_the_first_voters_are_formatted_alike_and_nobody_else(disks: list[Disk], controllers: int) -> None:
    chosen = quorum_disks(disks, controllers)
    assert brokers(chosen) == list(range(controllers))
    voters = tuple(sorted(disk.directory_id for disk in chosen))
    for disk in disks:
        snapshot = snapshot_on(disk)
        assert (snapshot.cluster_id, snapshot.voters) == (("c", voters) if disk in chosen else ("", ()))


def test_an_interrupted_formatting_goes_on_with_the_voters_that_it_began_with(disks: list[Disk]) -> None:
    chosen = quorum_disks(disks, 3)
    shutil.rmtree(chosen[1].path / METADATA_FOLDER)
    assert quorum_disks(disks, 1) == chosen
    assert snapshot_on(chosen[1]) == snapshot_on(chosen[0]) != BLANK


def test_a_voter_whose_disk_was_replaced_after_the_first_start_stays_blank(tmp_path: Path, disks: list[Disk]) -> None:
    disks = [with_controllers(disk, HERE) for disk in quorum_disks(disks, 3)]
    shutil.rmtree(disks[1].path)
    disks[1] = make(tmp_path, 1)
    assert brokers(quorum_disks(disks, 3)) == [0, 2, 1], "a controller runs there"
    assert snapshot_on(disks[1]) == BLANK, "a voter that forgot what it promised would vote"


def test_metadata_that_is_lost_is_not_made_anew(disks: list[Disk]) -> None:
    disks = [with_controllers(disk, HERE[:1]) for disk in disks]
    with pytest.raises(DiskError, match=f"has run before: bring back the disk with the folder {METADATA_FOLDER}"):
        quorum_disks(disks, 1)


@pytest.mark.parametrize("first", [1, 3])
def test_a_cluster_keeps_its_number_of_controllers_or_grows(disks: list[Disk], first: int) -> None:
    quorum_disks(disks, first)
    disks = [with_controllers(disk, HERE[:first]) for disk in disks]
    assert brokers(quorum_disks(disks, None)) == list(range(first))
    assert brokers(quorum_disks(disks, 1)) == list(range(first)), "it does not shrink"
    assert brokers(quorum_disks(disks, 3)) == [0, 1, 2]
    assert [snapshot_on(disk) != BLANK for disk in disks] == [broker < first for broker in range(4)]
    with pytest.raises(ClusterError, match="3 controllers need as many brokers, there are 2"):
        quorum_disks(disks[:2], 3) if first == 1 else quorum_disks(disks[2:], 3)


def test_a_voter_that_has_forgotten_everything_is_refused_as_it_would_vote(disks: list[Disk]) -> None:
    chosen = quorum_disks(disks, 3)
    disks = [
        controller_moved(with_controllers(disk, HERE), home=disk.path, old=None, new=HERE[0], is_alone=False)
        if disk in chosen
        else disk
        for disk in disks
    ]
    shutil.rmtree(disks[1].path / METADATA_FOLDER)
    with pytest.raises(DiskError, match=r"move the whole folder .*broker-1 away"):
        quorum_disks(disks, None)
    server = ControllerServer(
        ServerSpec(1 << 16 | 1, disks[1].directory_id, str(disks[1].path), "127.0.0.1", 1), launcher=Nobody()
    )
    with pytest.raises(DiskError, match=r"move the whole folder .*broker-1 away"):
        asyncio.run(server.start())
    assert not (disks[1].path / METADATA_FOLDER).exists()


def test_controllers_are_on_different_brokers(tmp_path: Path) -> None:
    disks = [make(tmp_path, 0, "a"), make(tmp_path, 0, "b"), make(tmp_path, 1), make(tmp_path, 2)]
    assert brokers(quorum_disks(disks, 3)) == [0, 1, 2]


def test_impossible_numbers_are_refused(disks: list[Disk]) -> None:
    with pytest.raises(ClusterError, match="1, 3 or 5 controllers, not 2"):
        quorum_disks(disks, 2)
    with pytest.raises(ClusterError, match="3 controllers need as many brokers, there are 2"):
        quorum_disks(disks[:2], 3)
    assert all(snapshot_on(disk) == BLANK for disk in disks)


def test_a_disk_whose_controller_has_retired_is_blank_and_may_hold_another(disks: list[Disk]) -> None:
    chosen = quorum_disks(disks, 3)
    disks = [with_controllers(disk, HERE) for disk in disks]
    home = controller_moved(disks[0], home=disks[0].path, old=None, new=HERE[0], is_alone=False)
    for disk in disks:
        controller_left(disk, home=home.path, was_at=[HERE[0]])
    forget_metadata(home.path)
    forget_metadata(home.path)  # it was interrupted, and is done again
    disks = [open_disk(disk.path, cluster_id="c") for disk in disks]
    assert {disk.controllers for disk in disks} == {tuple(HERE[1:])} and disks[0].controller_endpoint is None
    assert snapshot_on(disks[0]) == BLANK and len(chosen) == 3
    assert brokers(quorum_disks(disks, None)) == [1, 2], "and no start takes it for one that was lost"
    assert brokers(quorum_disks(disks, 3)) == [1, 2, 0]


def test_the_last_address_stays_for_a_disk_without_any_is_one_of_a_new_cluster(disks: list[Disk]) -> None:
    quorum_disks(disks, 1)
    disks = [with_controllers(disk, HERE[:1]) for disk in disks]
    left = [controller_left(disk, home=disks[0].path, was_at=HERE) for disk in disks]
    assert {disk.controllers for disk in left} == {tuple(HERE[:1])}
