"""Folders that ``raylog.init`` cannot use: each is named with what to do, before any process is started."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import raylog
from raylog.disks.disk import lock_disk
from raylog.disks.embedded import prepare_disks
from raylog.errors import ClusterError, DiskError

pytestmark = pytest.mark.core


@pytest.fixture
def two_clusters(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("one", "other"):
        prepare_disks(tmp_path / name, 3, None)
    return tmp_path / "one", tmp_path / "other"


def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DiskError, match=r"/file is a file and not a folder: give another folder"):
        raylog.init(tmp_path / "file" / "data")


def test_a_folder_where_nothing_can_be_made_is_refused() -> None:
    with pytest.raises(DiskError, match=r"/proc/raylog/broker-0 can't be used: .*check its owner, mode and mount"):
        raylog.init("/proc/raylog")


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A formatted folder on a file system that has become read-only."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    prepare_disks(folder, 3, None)
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_read_only_folder_is_refused(read_only: Path) -> None:
    with pytest.raises(DiskError, match=r"broker-0 can't be used: Read-only file system"):
        raylog.init(read_only)


def test_somebody_elses_files_are_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "broker-0").mkdir()
    (tmp_path / "broker-0" / "thesis.tex").write_text("years of work")
    with pytest.raises(
        DiskError, match=r"broker-0 holds files that are not raylog's \(thesis\.tex\); give an empty folder"
    ):
        raylog.init(tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["broker-0", "thesis.tex"]


def test_a_disk_of_another_cluster_among_ours_is_refused(two_clusters: tuple[Path, Path]) -> None:
    one, other = two_clusters
    shutil.rmtree(one / "broker-1")
    shutil.copytree(other / "broker-1", one / "broker-1")
    with pytest.raises(DiskError, match=r"holds disks of 2 clusters \(.*\): keep one cluster's"):
        raylog.init(one)


def test_a_disk_of_a_newer_version_is_refused_by_name(two_clusters: tuple[Path, Path]) -> None:
    meta = two_clusters[0] / "broker-2" / "meta.properties"
    meta.write_text(meta.read_text().replace("version=1", "version=2"))
    with pytest.raises(
        DiskError, match=r"broker-2/meta\.properties has version 2, newer than this raylog's 1; upgrade"
    ):
        raylog.init(two_clusters[0])


def test_a_lock_names_its_holder(two_clusters: tuple[Path, Path]) -> None:
    import os

    lock = lock_disk(two_clusters[0] / "broker-0")
    with pytest.raises(DiskError, match=rf"broker-0 is in use by process {os.getpid()}; stop that one"):
        lock_disk(two_clusters[0] / "broker-0")
    lock.release()
    lock_disk(two_clusters[0] / "broker-0").release()


def test_connect_to_a_folder_without_a_cluster_says_how_to_start_one(two_clusters: tuple[Path, Path]) -> None:
    with pytest.raises(ClusterError, match=r"no cluster under .*: start one with raylog\.init"):
        raylog.connect(folder=two_clusters[0] / "nothing")
    with pytest.raises(ClusterError, match=r"raylog\.init\(\)"):
        raylog.connect(folder=two_clusters[0])
