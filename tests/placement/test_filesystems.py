"""A folder on a file system that a log cannot rely on is named before anything is written there."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raylog.cli.machine import look_at_disk
from raylog.cli.main import app
from raylog.disks.embedded import prepare_disks
from raylog.disks.filesystems import doubt_about, doubts, file_system

MOUNTS = r"""
overlay / overlay rw,relatime 0 0
proc /proc proc rw 0 0
tmpfs /tmp tmpfs rw 0 0
/dev/sda1 /tmp/disk ext4 rw 0 0
server:/export /mnt/with\040space nfs4 rw 0 0
tmpfs /twice tmpfs rw 0 0
/dev/sdb1 /twice ext4 rw 0 0
""".lstrip()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data", "overlay"),
        ("/tmp/data", "tmpfs"),
        ("/tmpfolder", "overlay"),
        ("/tmp/disk", "ext4"),
        ("/tmp/disk/a/b", "ext4"),
        ("/mnt/with space/data", "nfs4"),
        ("/twice/data", "ext4"),
    ],
)
def test_the_longest_mount_decides_and_the_later_one_hides_the_earlier(path: str, kind: str) -> None:
    assert file_system(Path(path), MOUNTS) == kind


def test_memory_and_networks_are_doubted_and_disks_are_not() -> None:
    assert "gone when the machine restarts" in (doubt_about("tmpfs") or "")
    assert "over a network" in (doubt_about("nfs4") or "")
    assert doubt_about("ext4") is None and doubt_about("overlay") is None and doubt_about(None) is None


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder of a real tmpfs."""
    shm = Path("/dev/shm")
    if not doubts([shm]):
        pytest.skip("/dev/shm is no tmpfs on this machine")
    with tempfile.TemporaryDirectory(prefix="rlf", dir=shm) as folder:
        yield Path(folder)


def test_a_start_warns_once_and_goes_on(in_memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "raylog"):
        disks = prepare_disks(in_memory / "data", 3, None)
    (line,) = caplog.messages
    assert (
        line
        == f"{in_memory / 'data'} is on tmpfs: its files are gone when the machine restarts. Give a folder on a disk"
    )
    assert len(disks) == 3


def test_doctor_and_a_node_that_offers_the_folder_say_so(in_memory: Path) -> None:
    assert f"{in_memory} is on tmpfs" in (look_at_disk(in_memory).doubt or "")
    done = CliRunner().invoke(app, ["node", "resources", str(in_memory)])
    assert done.exit_code == 0 and f"{in_memory} is on tmpfs" in done.stderr, done.output
    assert done.stdout.startswith("{")
