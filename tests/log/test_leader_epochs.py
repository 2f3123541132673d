"""Leader epochs: Kafka's rules for OffsetForLeaderEpoch, truncation and the file."""

from __future__ import annotations

import random

import pytest

from raylog.errors import DiskError
from raylog.log.leader_epochs import EpochEntry, LeaderEpochs
from raylog.simulator.simulated_files import SimulatedFiles, TornWrite


@pytest.fixture
def files() -> SimulatedFiles:
    files = SimulatedFiles()
    files.make_directory("/d")
    return files


def _epochs(files: SimulatedFiles, *entries: tuple[int, int]) -> LeaderEpochs:
    epochs = LeaderEpochs(files, "/d")
    for epoch, start in entries:
        epochs.assign(epoch, start)
    return epochs


def test_end_offsets_follow_kafkas_answer(files: SimulatedFiles) -> None:
    epochs = _epochs(files, (2, 10), (4, 20), (7, 30))
    answers = {epoch: epochs.end_offset_for(epoch, 45) for epoch in (-1, 1, 2, 3, 4, 6, 7, 8)}
    assert answers == {
        -1: (-1, -1),
        1: (1, 10),
        2: (2, 20),
        3: (2, 20),
        4: (4, 30),
        6: (4, 30),
        7: (7, 45),
        8: (-1, -1),
    }
    assert LeaderEpochs(files, "/d").end_offset_for(0, 5) == (-1, -1)


def test_an_epoch_that_wrote_nothing_gives_way_to_the_next_at_the_same_offset(files: SimulatedFiles) -> None:
    assert _epochs(files, (1, 0), (2, 10), (3, 10)).entries == (EpochEntry(1, 0), EpochEntry(3, 10))


def test_assigning_the_latest_epoch_again_changes_nothing(files: SimulatedFiles) -> None:
    epochs = _epochs(files, (1, 5))
    assert not epochs.assign(1, 9) and epochs.entries == (EpochEntry(1, 5),)
    assert epochs.assign(1, 3) and epochs.entries == (EpochEntry(1, 3),)


def test_truncation_at_the_end_forgets_epochs_that_start_there(files: SimulatedFiles) -> None:
    epochs = _epochs(files, (1, 0), (2, 10), (3, 20))
    epochs.truncate_from_end(20)
    assert epochs.latest_epoch == 2
    epochs.truncate_from_end(15)
    assert epochs.entries == (EpochEntry(1, 0), EpochEntry(2, 10))


def test_truncation_at_the_start_moves_the_first_epoch(files: SimulatedFiles) -> None:
    epochs = _epochs(files, (1, 0), (2, 10), (3, 20))
    epochs.truncate_from_start(15)
    assert epochs.entries == (EpochEntry(2, 15), EpochEntry(3, 20))
    epochs.truncate_from_start(15)
    epochs.truncate_from_start(25)
    assert epochs.entries == (EpochEntry(3, 25),)


def test_the_file_reads_back(files: SimulatedFiles) -> None:
    written = _epochs(files, (1, 0), (2, 10))
    again = LeaderEpochs(files, "/d")
    again.load()
    assert again.entries == written.entries
    assert files.read_file("/d/leader-epoch-checkpoint") == b"0\n2\n1 0\n2 10\n"
    assert (again.start_offset_of(2), again.start_offset_of(3)) == (10, None)
    assert [again.epoch_at(offset) for offset in (0, 9, 10, 99)] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    "data", [b"", b"x\n", b"0\n2\n1 0\n", b"0\n2\n2 0\n1 5\n", b"0\n1\n1\n", b"0", b"0\n1\n5 189", b"-1\n0\n"]
)
def test_a_damaged_file_is_refused(files: SimulatedFiles, data: bytes) -> None:
    files.write_file("/d/leader-epoch-checkpoint", data)
    with pytest.raises(ValueError):
        LeaderEpochs(files, "/d").load()


def test_a_newer_version_is_refused_by_name(files: SimulatedFiles) -> None:
    files.write_file("/d/leader-epoch-checkpoint", b"1\n0\n")
    with pytest.raises(DiskError, match="version 1"):
        LeaderEpochs(files, "/d").load()


def test_flush_makes_the_entries_survive_a_loss_of_power(files: SimulatedFiles) -> None:
    epochs = _epochs(files, (1, 0), (2, 10))
    epochs.flush()
    files.disk.lose_power(random.Random(1))
    again = LeaderEpochs(files.disk.files(), "/d")
    again.load()
    assert again.latest_epoch == 2


def test_a_further_epoch_renames_no_file(files: SimulatedFiles) -> None:
    epochs = _epochs(files, (1, 0))
    again = LeaderEpochs(files, "/d")
    again.load()
    done: list[str] = []
    files.disk.fault = lambda operation, path: done.append(operation)
    for each, epoch in ((epochs, 2), (again, 3)):
        each.assign(epoch, 10 * epoch)
    assert done == ["open", "write", "open", "write"]
    assert files.read_file("/d/leader-epoch-checkpoint") == b"0\n2\n1 0\n3 30\n"


@pytest.mark.parametrize(
    ("before", "then"),
    [
        ([(1, 0)], (2, 10)),
        ([(1, 0), (2, 50)], (2, 5)),
        ([(1, 0), (2, 50)], (7, 400)),
        ([(1, 0), (2, 500)], (7, 400)),
        ([(1, 0), (2, 500), (3, 600)], (7, 400)),
        ([(epoch, 100 * epoch) for epoch in range(9)], (9, 1_000)),
        ([(epoch, 100 * epoch) for epoch in range(99)], (100, 10_000)),
    ],
)
def test_a_torn_write_leaves_what_was_or_what_shall_be_or_is_found_out(
    files: SimulatedFiles, before: list[tuple[int, int]], then: tuple[int, int]
) -> None:
    path = "/d/leader-epoch-checkpoint"
    _epochs(files, *before)
    old = files.read_file(path)
    intact = _epochs(files, *before, then).entries
    size = len(files.read_file(path))
    for kept in range(size):
        files.write_file(path, old)
        torn = LeaderEpochs(files, "/d")
        torn.load()
        known = torn.entries

        def tear(operation: str, path: str, share: float = kept / size) -> None:
            if operation == "write":
                raise TornWrite(share, OSError("power lost"))

        files.disk.fault = tear
        with pytest.raises(OSError):
            torn.assign(*then)
        files.disk.fault = None
        again = LeaderEpochs(files, "/d")
        try:
            again.load()
        except ValueError:
            continue
        assert again.entries in (known, intact), kept


def test_a_file_that_a_failed_write_may_have_torn_is_replaced_as_a_whole(files: SimulatedFiles) -> None:
    epochs = _epochs(files, (1, 0))

    def tear(operation: str, path: str) -> None:
        if operation == "write":
            raise TornWrite(0.5, OSError("no room"))

    files.disk.fault = tear
    with pytest.raises(OSError):
        epochs.assign(2, 10)
    done: list[str] = []
    files.disk.fault = lambda operation, path: done.append(operation)
    epochs.assign(3, 20)
    assert "replace" in done
