"""A disk's identity on real folders: what is written, what is read back, and what is refused in which words."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from raylog.disks.disk import (
    Disk,
    boot_id,
    check_writable,
    controller_moved,
    decode_id,
    encode_id,
    format_disk,
    free_bytes,
    lock_disk,
    new_id,
    open_disk,
    read_disk,
    with_controllers,
)
from raylog.errors import DiskError
from raylog.types import Endpoint

CONTROLLERS = (Endpoint("127.0.0.1", 40001), Endpoint("::1", 40002))


def formatted(path: Path, *, cluster_id: str = "cluster-a", rack: str | None = "rack-1") -> Disk:
    return format_disk(
        path, cluster_id=cluster_id, broker_id=3, rack=rack, controllers=CONTROLLERS, secret="s3cret-value"
    )


def test_a_formatted_disk_reads_back_as_it_was_written(tmp_path: Path) -> None:
    disk = formatted(tmp_path / "new" / "disk")
    assert read_disk(disk.path) == disk
    assert open_disk(disk.path, cluster_id="cluster-a") == disk
    assert disk.controllers == CONTROLLERS and disk.rack == "rack-1" and disk.broker_id == 3


def test_the_properties_are_kafkas_text_form_and_hold_no_secret(tmp_path: Path) -> None:
    disk = formatted(tmp_path)
    assert (tmp_path / "meta.properties").read_text().splitlines() == [
        "version=1",
        "cluster.id=cluster-a",
        "broker.id=3",
        f"directory.id={encode_id(disk.directory_id)}",
        "controllers=127.0.0.1:40001,[::1]:40002",
        "rack=rack-1",
    ]
    assert (tmp_path / "cluster.secret").stat().st_mode & 0o777 == 0o600
    assert "s3cret" not in repr(disk)


def test_a_disk_without_rack_has_none(tmp_path: Path) -> None:
    formatted(tmp_path, rack=None)
    disk = read_disk(tmp_path)
    assert disk is not None and disk.rack is None


@pytest.mark.parametrize("leftover", [None, "cluster.secret", "meta.properties.tmp", ".lock"])
def test_missing_empty_and_half_formatted_folders_are_blank(tmp_path: Path, leftover: str | None) -> None:
    assert read_disk(tmp_path / "missing") is None
    if leftover:
        (tmp_path / leftover).write_text("half")
    assert read_disk(tmp_path) is None
    formatted(tmp_path)


def test_somebodys_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(DiskError, match=r"files that are not raylog.s \(thesis.tex\)"):
        read_disk(tmp_path)
    with pytest.raises(DiskError, match="files that are not raylog's"):
        formatted(tmp_path)


def test_a_formatted_disk_is_never_formatted_again(tmp_path: Path) -> None:
    before = formatted(tmp_path)
    with pytest.raises(DiskError, match="already formatted"):
        formatted(tmp_path, cluster_id="cluster-b")
    assert read_disk(tmp_path) == before


def test_a_folder_of_another_cluster_is_refused_by_both_names(tmp_path: Path) -> None:
    formatted(tmp_path)
    with pytest.raises(DiskError, match="belongs to cluster cluster-a, not to cluster-b"):
        open_disk(tmp_path, cluster_id="cluster-b")


def test_an_unformatted_folder_does_not_open(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="not formatted"):
        open_disk(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("version=1", "version=2", "version 2, newer than this raylog's 1; upgrade raylog"),
        ("version=1", "version=0", "Apache Kafka"),
        ("broker.id=3", "node.id=3", "Apache Kafka"),
        ("version=1\n", "", "no version"),
        ("broker.id=3", "broker.id=three", "damaged"),
        ("broker.id=3", "broker.id=-3", "damaged"),
        ("cluster.id=cluster-a\n", "", "lacks cluster.id"),
        ("127.0.0.1:40001", "127.0.0.1:99999", "no host:port"),
        ("directory.id=", "directory.id=x", "damaged"),
    ],
)
def test_foreign_newer_and_damaged_properties_are_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    formatted(tmp_path)
    file = tmp_path / "meta.properties"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(DiskError, match=words):
        read_disk(tmp_path)


def test_a_disk_without_its_secret_says_where_to_get_it(tmp_path: Path) -> None:
    formatted(tmp_path)
    (tmp_path / "cluster.secret").unlink()
    with pytest.raises(DiskError, match="copy it from another disk"):
        read_disk(tmp_path)


def test_properties_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DiskError, match=r"can't be read"):
        read_disk(tmp_path)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match="is a file"):
        read_disk(tmp_path / "file")
    with pytest.raises(DiskError, match="is a file"):
        formatted(tmp_path / "file" / "disk")


def test_an_unwritable_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match=r"can.t be used.*check its owner, mode and mount"):
        check_writable(Path("/proc"))
    if os.getuid() != 0:
        formatted(tmp_path)
        tmp_path.chmod(0o500)
        with pytest.raises(DiskError, match="Permission denied"):
            open_disk(tmp_path)
        tmp_path.chmod(0o700)


def test_a_rack_that_would_break_the_properties_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="rack"):
        formatted(tmp_path, rack="a\nversion=9")


def test_controllers_can_move(tmp_path: Path) -> None:
    disk = formatted(tmp_path)
    moved = with_controllers(disk, [Endpoint("10.0.0.9", 7)])
    assert read_disk(tmp_path) == moved
    assert moved.controllers == (Endpoint("10.0.0.9", 7),) and moved.directory_id == disk.directory_id


def test_a_locked_disk_names_its_holder(tmp_path: Path) -> None:
    lock = lock_disk(tmp_path)
    with pytest.raises(DiskError, match=f"in use by process {os.getpid()}"):
        lock_disk(tmp_path)
    lock.release()
    lock.release()
    assert not lock.held
    lock_disk(tmp_path).release()


@pytest.mark.core
def test_the_lock_of_a_killed_process_is_not_stale(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from raylog.disks.disk import lock_disk\n"
        "lock = lock_disk(Path(sys.argv[1])); print('locked', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
        with pytest.raises(DiskError, match=f"process {holder.pid}"):
            lock_disk(tmp_path)
    finally:
        holder.kill()
        holder.communicate()
    lock_disk(tmp_path).release()


def test_ids_have_kafkas_text_form() -> None:
    known = uuid.UUID("e4bebadd-e4a1-4fe7-8c0a-d2be3feece5b")
    assert encode_id(known) == "5L663eShT-eMCtK-P-7OWw"
    assert decode_id("5L663eShT-eMCtK-P-7OWw") == known
    for bad in ("", "short", "5L663eShT-eMCtK-P-7OW!", "é" * 22):
        with pytest.raises(ValueError):
            decode_id(bad)
    assert all(not encode_id(new_id()).startswith("-") for _ in range(500))


def test_the_machine_tells_its_boot_and_its_free_space(tmp_path: Path) -> None:
    assert boot_id() == boot_id() and uuid.UUID(boot_id())
    assert free_bytes(tmp_path) > 0


def test_a_controller_that_moved_takes_the_place_of_its_old_address(tmp_path: Path) -> None:
    one, two, three, new = (Endpoint("10.0.0.9", port) for port in (1, 2, 3, 4))
    home, other = (
        format_disk(tmp_path / name, cluster_id="c", broker_id=0, rack=None, controllers=[one, two, three], secret="s")
        for name in ("home", "other")
    )
    moved = controller_moved(home, home=home.path, old=two, new=new, is_alone=False)
    assert (moved.controllers, moved.controller_endpoint) == ((one, new, three), new)
    assert read_disk(home.path) == moved
    elsewhere = controller_moved(other, home=home.path, old=two, new=new, is_alone=False)
    assert (elsewhere.controllers, elsewhere.controller_endpoint) == ((one, new, three), None)
    assert controller_moved(moved, home=home.path, old=new, new=new, is_alone=False) == moved
    alone = controller_moved(other, home=home.path, old=None, new=two, is_alone=True)
    assert alone.controllers == (two,)


def test_controllers_that_write_at_the_same_time_lose_no_address(tmp_path: Path) -> None:
    disk = format_disk(tmp_path / "d", cluster_id="c", broker_id=0, rack=None, controllers=[], secret="s")
    endpoints = [Endpoint("10.0.0.9", port) for port in range(1, 9)]

    def write(endpoint: Endpoint) -> None:
        controller_moved(disk, home=Path("/elsewhere"), old=None, new=endpoint, is_alone=False)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, endpoints))
    found = read_disk(disk.path)
    assert found is not None and sorted(found.controllers, key=str) == endpoints
