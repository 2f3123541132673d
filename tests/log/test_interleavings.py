"""A log whose threads interleave at every disk access: flush, append, roll, cut, checkpoint, open, delete and clean, as seeds draw it."""

from __future__ import annotations

import copy
import random
import uuid
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from raylog.errors import DiskLockedError
from raylog.log import checkpoint as checkpoints
from raylog.log.checkpoint import ReplicaCheckpoint
from raylog.log.cleaning import Cleaning, Turn
from raylog.log.config import LogConfig
from raylog.log.log import Log
from raylog.log.partition_metadata import read_topic_id
from raylog.log.removal import remove_folder
from raylog.records.batch import batches
from raylog.records.codec import decode, encode, encode_values
from raylog.simulator.simulated_files import SimulatedDisk, WorstLuck
from raylog.simulator.stepping import Stepper
from raylog.types import Condition

OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)
DIRECTORY = "/disk/t-0"


def opened(disk: SimulatedDisk, topic_id: uuid.UUID, *, boot_id: str = "boot", **config: Any) -> Log:
    """By a process of its own."""
    return Log.open(
        DIRECTORY,
        files=disk.files(),
        config=LogConfig(segment_index_bytes=4096, **config),
        topic="t",
        partition=0,
        topic_id=topic_id,
        now_ms=0,
        boot_id=boot_id,
    )


def a_disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.files().make_directory("/disk")
    disk.files().sync_directory("/")
    return disk


def append(log: Log, value: bytes, *, leader_epoch: int = 0) -> None:
    log.append_as_leader(encode_values([value], timestamp_ms=0), leader_epoch=leader_epoch, wall_ms=0)


# ---------------------------------------------------------------- deleting and making anew


@dataclass
class Recreation:
    """One process deletes a topic's folder while another one opens the folder of the next topic of that name."""

    seed: int
    disk: SimulatedDisk = field(default_factory=a_disk)
    log: Log | None = None

    def __post_init__(self) -> None:
        self.stepper = Stepper(random.Random(self.seed))

    def open_new(self) -> None:
        while self.log is None:
            try:
                self.log = opened(self.disk, NEW)
            except DiskLockedError:
                self.stepper.before_call("try again", DIRECTORY)
        self.stepper.take_over(self.log)
        append(self.log, b"x")
        if self.seed % 2:
            self.log.close()

    def check(self) -> None:
        self.disk.fault = None
        files = self.disk.files()
        assert self.log is not None
        assert files.exists(DIRECTORY) and read_topic_id(files, DIRECTORY) == NEW, self.stepper.history
        assert files.size(f"{DIRECTORY}/{0:020d}.log") > 0, self.stepper.history
        if self.seed % 2:
            files.lock(f"{DIRECTORY}/replica.lock").close()
        else:
            with pytest.raises(DiskLockedError):
                files.lock(f"{DIRECTORY}/replica.lock")
        assert [name for name in files.list_directory("/disk") if "stray" not in name] == ["t-0"], self.stepper.history


@pytest.mark.parametrize("seeds", [range(200), range(200, 400)])
def test_a_topic_made_anew_is_not_what_the_deletion_of_the_old_one_removes(seeds: range) -> None:
    for seed in seeds:
        case = Recreation(seed)
        old = opened(case.disk, OLD)
        case.disk.fault = case.stepper.before_call
        case.stepper.take_over(old)
        case.stepper.start("delete", old.delete)
        case.stepper.start("open", case.open_new)
        case.stepper.run()
        case.check()


@pytest.mark.parametrize("seeds", [range(200), range(200, 400)])
def test_removing_a_folder_that_nobody_holds_spares_the_topic_made_anew(seeds: range) -> None:
    for seed in seeds:
        case = Recreation(seed)
        opened(case.disk, OLD).close(clean=False)
        case.disk.fault = case.stepper.before_call

        def remove(case: Recreation = case) -> None:
            while True:
                try:
                    remove_folder(case.disk.files(), DIRECTORY, OLD)
                    return
                except DiskLockedError:
                    case.stepper.before_call("try again", DIRECTORY)

        for name in ("remove", "remove too"):
            case.stepper.start(name, remove)
        case.stepper.start("open", case.open_new)
        case.stepper.run()
        case.check()


# ---------------------------------------------------------------- what a loss of power leaves


class Interleaved:
    """A log that one thread writes while others flush it and lose its power. What must be left then, ``check`` says.

    A subclass names its threads' tasks in ``tasks`` and how many disk accesses pass between two losses in ``pause_max``.
    """

    tasks: tuple[str, ...]
    power_losses: int
    pause_max: int

    def __init__(self, seed: int, **config: Any) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.disk = a_disk()
        self.stepper = Stepper(self.rng)
        self.config = config
        self.log = opened(self.disk, OLD, **config)
        self.log.trust()
        self.stepper.take_over(self.log)
        self.disk.fault = self.stepper.before_call

    def run(self) -> None:
        for name in self.tasks:
            self.stepper.start(name, getattr(self, name.split()[0]))
        self.stepper.run()

    def flush(self) -> None:
        for _ in range(4):
            self.log.flush()
            self.check(WorstLuck())

    def lose_power(self) -> None:
        for _ in range(self.power_losses):
            for _ in range(self.rng.randrange(self.pause_max)):
                self.stepper.before_call("wait", "")
            self.check(random.Random(self.rng.random()))

    def next_opening(self, luck: random.Random) -> Log:
        """What the next process would find if the power went now."""
        disk = SimulatedDisk()
        disk.root = copy.deepcopy(self.disk.root)
        disk.lose_power(luck)
        log = opened(disk, OLD, boot_id="next boot", **self.config)
        log.check()
        return log

    def check(self, luck: random.Random) -> None:
        raise NotImplementedError


class Writer(Interleaved):
    """Appends, rolls and cuts, with a model beside it: ``values`` is what the log holds, by offset.

    ``before`` knows of each record, whose value is its own, which one was before it when it was appended.
    """

    tasks = ("write", "flush", "flush too", "checkpoint", "lose_power")
    power_losses, pause_max = 4, 20

    def __init__(self, seed: int) -> None:
        super().__init__(seed, segment_bytes=(200, 1_000)[seed % 2])
        self.values: list[bytes] = []
        self.before: dict[bytes, bytes] = {}
        self.epoch = 0
        self.kinds = [
            *("append",) * 4,
            *(kind for kind in ("roll", "cut", "cut", "checkpoint") if self.rng.random() < 0.6),
        ]
        self.reach = self.rng.choice((3, 100))  # how far back a cut goes
        self.commits = self.rng.random() < 0.5

    def checkpoint(self) -> None:
        for _ in range(12):
            self.stepper.before_call("checkpoint is due", "")
            self.log.checkpoint_in_thread()

    def check_claims(self) -> None:
        """What a kill at this moment leaves says nothing of offsets that the log has not."""
        claimed = checkpoints.read(self.disk.files(), DIRECTORY)
        assert claimed is not None
        history = f"seed {self.seed}: {claimed} of {self.log.log_end_offset} after {self.stepper.history}"
        assert claimed.claims_at_most(self.log.log_end_offset), history
        assert claimed.recovery_point <= self.log.recovery_point, history

    def write(self) -> None:
        for _ in range(15):
            self.step()

    def step(self) -> None:
        log, rng = self.log, self.rng
        kind = rng.choice(self.kinds)
        if kind == "append":
            value = b"%d" % rng.getrandbits(60)
            self.before[value] = self.values[-1] if self.values else b""
            append(log, value, leader_epoch=self.epoch)
            self.values.append(value)
            if self.commits and rng.random() < 0.5:
                log.high_watermark = rng.randint(log.high_watermark, log.log_end_offset)
        elif kind == "roll":
            log.roll(0)
        elif kind == "cut":
            offset = max(0, log.log_end_offset - rng.randrange(self.reach))
            log.truncate_to(offset)
            del self.values[log.log_end_offset :]
            self.epoch += 1
            self.check_claims()
        else:
            log.checkpoint()
        log.check()

    def flush(self) -> None:
        for _ in range(4):
            (self.log.flush_rolled if self.rng.random() < 0.3 else self.log.flush)()
            self.check(WorstLuck())

    def check(self, luck: random.Random) -> None:
        """All below the recovery point, and a state that the log once had."""
        point = self.log.recovery_point
        found = contents(self.next_opening(luck))
        assert found[:point] == self.values[:point], f"seed {self.seed}: {self.stepper.history}"
        links = pairwise([b"", *found])
        assert all(self.before[value] == before for before, value in links), f"seed {self.seed}: {self.stepper.history}"


def contents(log: Log) -> list[bytes]:
    found: list[bytes] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        for view in batches(log.read(offset, 1 << 20).records):
            found += [record.value or b"" for record in decode(view)]
            offset = view.next_offset
    return found


KEYS = (b"k0", b"k1", b"k2")


class Compacter(Interleaved):
    """A compacted log that is written, flushed and cleaned at once. Steps of a cleaning are taken where production takes them.

    ``written`` holds each key's values with their offsets.
    """

    tasks = ("write", "clean", "flush", "lose_power")
    power_losses, pause_max = 3, 60

    def __init__(self, seed: int) -> None:
        super().__init__(seed, segment_bytes=300, compacts=True, deletes=False, min_cleanable_dirty_ratio=0.0)
        self.written: dict[bytes, list[tuple[int, bytes]]] = {key: [] for key in KEYS}
        self.turn: Turn | None = None  # whose step the cleaning waits for
        self.is_over = False

    def put(self) -> None:
        key, value = self.rng.choice(KEYS), b"%d" % self.rng.getrandbits(60)
        log = self.log
        self.written[key].append((log.log_end_offset, value))
        log.append_as_leader(encode([(0, key, value, ())]), leader_epoch=0, wall_ms=0)
        log.high_watermark = log.log_end_offset

    def write(self) -> None:
        compaction = self.log.compaction
        for _ in range(40):
            if self.turn is Turn.LOOP:
                self.step(Turn.LOOP)
            elif compaction.current is None and self.rng.random() < 0.3:
                part = compaction.cleanable(0)
                if part is not None:
                    compaction.begin(part, 0)
                    self.stepper.take_over(self.log)
                    self.turn = Turn.THREAD
            else:
                self.put()
            self.log.check()
        self.is_over = True

    def step(self, turn: Turn) -> None:
        cleaning = self.log.compaction.current
        assert cleaning is not None
        self.turn = None
        following = cleaning.step()
        if following is None:
            self.log.compaction.end(cleaning)
        self.turn = following

    def clean(self) -> None:
        while not self.is_over:
            if self.turn is Turn.THREAD:
                self.step(Turn.THREAD)
            self.stepper.before_call("rest", "")

    def check(self, luck: random.Random) -> None:
        """What is below the recovery point is there, or a later value of its key is; and nothing that was never written."""
        point = self.log.recovery_point
        found: dict[bytes, list[tuple[int, bytes]]] = {key: [] for key in KEYS}
        for key, offset, value in keyed(self.next_opening(luck)):
            found[key].append((offset, value))
        for key, written in self.written.items():
            assert set(found[key]) <= set(written), f"seed {self.seed}: {self.stepper.history}"
            safe = [offset for offset, _ in written if offset < point]
            if safe:
                assert found[key] and found[key][-1][0] >= safe[-1], f"seed {self.seed}: {self.stepper.history}"


def keyed(log: Log) -> list[tuple[bytes, int, bytes]]:
    found = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        piece = log.read(offset, 1 << 20)
        for view in batches(piece.records):
            found += [(record.key or b"", record.offset, record.value or b"") for record in decode(view)]
        assert piece.next_offset > offset
        offset = piece.next_offset
    return found


@pytest.mark.parametrize(
    ("case", "seeds"),
    [(Writer, range(40)), (Writer, range(40, 80)), (Compacter, range(15)), (Compacter, range(15, 30))],
)
def test_a_loss_of_power_takes_nothing_below_the_recovery_point_and_mixes_nothing(
    case: type[Writer | Compacter], seeds: range
) -> None:
    """Whatever flushes, cuts and a cleaning were doing in other threads. A compacted log keeps the last value of each key."""
    for seed in seeds:
        case(seed).run()


def test_a_log_is_closed_and_deleted_when_no_thread_is_at_work_in_it_any_more() -> None:
    """Nothing that a flush, a checkpoint, a cleaning or the removal of old files does reaches the folder of the next topic."""
    for seed in range(60):
        case = Compacter(seed)
        for _ in range(12):
            case.put()
        part = case.log.compaction.cleanable(0)
        assert part is not None
        cleaning = case.log.compaction.begin(part, 0)
        case.stepper.take_over(case.log)
        next_one = Recreation(seed, case.disk)
        next_one.stepper = case.stepper

        def clean(cleaning: Cleaning = cleaning) -> None:
            while cleaning.step() is not None:
                pass

        case.stepper.start("flush", case.log.flush)
        case.stepper.start("checkpoint", case.log.checkpoint_in_thread)
        case.stepper.start("clean", clean)
        case.stepper.start("delete", case.log.delete)
        case.stepper.start("tidy", lambda case=case: case.log.delete_renamed_files(1 << 60))
        case.stepper.start("open", next_one.open_new)
        case.stepper.run()
        next_one.check()
        names = case.disk.files().list_directory(DIRECTORY)
        numbered = {int(name[:20]) for name in names if name[:20].isdigit()}
        assert numbered <= {0, 1}, f"seed {seed}: {names} after {case.stepper.history}"


def test_a_checkpoint_in_a_thread_is_not_written_over_those_of_a_clean_close_and_of_the_next_process() -> None:
    """Whichever comes first: the log is clean when it is opened again, and the folder is the next process's from then on."""
    for seed in range(100):
        disk, stepper = a_disk(), Stepper(random.Random(seed))
        log = opened(disk, OLD)
        log.trust()
        append(log, b"a")
        log.high_watermark = 1
        disk.fault = stepper.before_call
        stepper.take_over(log)
        found: list[Log] = []

        def reopen(disk: SimulatedDisk = disk, stepper: Stepper = stepper, found: list[Log] = found) -> None:
            while not found:
                try:
                    found.append(opened(disk, OLD))
                except DiskLockedError:
                    stepper.before_call("try again", DIRECTORY)
            stepper.take_over(found[0])
            append(found[0], b"b")
            found[0].high_watermark = 2
            found[0].checkpoint()

        for name in ("checkpoint", "checkpoint too"):
            stepper.start(name, log.checkpoint_in_thread)
        stepper.start("close", log.close)
        stepper.start("open", reopen)
        stepper.run()
        disk.fault = None
        assert found[0].condition is Condition.CLEAN, f"seed {seed}: {stepper.history}"
        claimed = checkpoints.read(disk.files(), DIRECTORY)
        assert claimed is not None and claimed.high_watermark == 2, f"seed {seed}: {claimed} after {stepper.history}"


def test_a_cut_waits_for_the_checkpoint_whose_facts_were_read_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it takes the last one, which claims no more than the cut leaves, for what the disk will say."""
    for seed in range(40):
        disk, stepper = a_disk(), Stepper(random.Random(seed))
        log = opened(disk, OLD)
        for value in (b"a", b"b", b"c"):
            append(log, value)
        log.high_watermark = 3

        def with_facts_in_hand(stepper: Stepper = stepper, **facts: Any) -> ReplicaCheckpoint:
            stepper.before_call("facts read", DIRECTORY)
            return ReplicaCheckpoint(**facts)

        monkeypatch.setattr("raylog.log.checkpoint_file.ReplicaCheckpoint", with_facts_in_hand)
        disk.fault = stepper.before_call
        stepper.take_over(log)
        stepper.start("checkpoint", log.checkpoint_in_thread)
        stepper.start("cut", lambda log=log: log.truncate_to(1))
        stepper.run()
        disk.fault = None
        claimed = checkpoints.read(disk.files(), DIRECTORY)
        assert claimed is not None and claimed.claims_at_most(1), f"seed {seed}: {claimed} after {stepper.history}"


def test_a_flush_while_a_segment_is_made_does_not_take_its_name_for_synced() -> None:
    disk = a_disk()
    log = opened(disk, OLD)
    append(log, b"a")
    log.flush()

    def meanwhile(operation: str, path: str) -> None:
        if operation == "open" and path.endswith(f"{1:020d}.log"):
            disk.fault = None
            log.flush()

    disk.fault = meanwhile
    log.roll(0)
    assert disk.fault is None
    append(log, b"b")
    assert log.flush() == log.recovery_point == 2
    disk.lose_power(WorstLuck())
    assert contents(opened(disk, OLD, boot_id="next boot")) == [b"a", b"b"]


def test_a_flush_of_a_sealed_segment_says_nothing_of_it_when_a_cut_has_made_it_active_again() -> None:
    disk = a_disk()
    log = opened(disk, OLD)
    append(log, b"a")
    append(log, b"b")
    log.roll(0)
    append(log, b"c")

    def meanwhile(operation: str, path: str) -> None:
        if operation == "flush" and path.endswith(f"{0:020d}.timeindex"):
            disk.fault = None
            log.truncate_to(1)

    disk.fault = meanwhile
    log.flush()
    assert disk.fault is None and log.recovery_point <= 1
    append(log, b"d")
    assert log.flush() == log.recovery_point == 2
    disk.lose_power(WorstLuck())
    assert contents(opened(disk, OLD, boot_id="next boot")) == [b"a", b"d"]
