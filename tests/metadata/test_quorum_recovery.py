"""A voter whose files were damaged at rest: what is kept twice mends itself, what is lost is copied, and nobody's vote forgets."""

from __future__ import annotations

import random
import uuid
from pathlib import Path

import pytest

from raylog.errors import DiskError
from raylog.log.disk_files import DiskFiles
from raylog.raft.messages import (
    BLANK,
    AppendRequest,
    Entry,
    EntryKind,
    HardState,
    QuorumConfig,
    QuorumWrite,
    Snapshot,
    VoterChangeRefused,
    bootstrap_snapshot,
)
from raylog.raft.metadata_log import DAMAGED_SUFFIX, END_NAME, LOG_NAME, STATE_NAME, MetadataLog
from raylog.raft.quorum import Quorum
from raylog.raft.state_files import COPY_SUFFIX, INCARNATION_NAME, StateFiles
from raylog.simulator.quorum_network import QuorumNetwork
from raylog.simulator.simulated_files import SimulatedDisk, SimulatedFiles, TornWrite

A, B = uuid.UUID(int=0xA), uuid.UUID(int=0xB)
FOLDER = "/disk/metadata"
SMALL = [f"{name}{suffix}" for name in (STATE_NAME, END_NAME, INCARNATION_NAME) for suffix in ("", COPY_SUFFIX)]
SNAPSHOT_NAME = "00000000000000000002-0000000001.checkpoint"


def entries(first: int, last: int, term: int = 1) -> tuple[Entry, ...]:
    return tuple(Entry(index, term, EntryKind.RECORDS, b"entry %d" % index) for index in range(first, last + 1))


def written(disk: SimulatedDisk, voters: tuple[uuid.UUID, ...] = (A, B)) -> SimulatedFiles:
    """A closed log of two entries in a snapshot and entries 3 to 6 of terms 1 and 4, the vote of term 5, process number 900."""
    files = disk.files()
    files.make_directory("/disk")
    MetadataLog.format(files, FOLDER, bootstrap_snapshot("cluster", voters))
    log = MetadataLog.open(files, FOLDER)
    log.claim_incarnation(900)
    log.store(QuorumWrite(1, HardState(1, A), None, entries(1, 2)))
    log.store(QuorumWrite(2, None, None, entries(3, 4)))
    log.store(QuorumWrite(3, None, Snapshot(2, 1, "cluster", voters, b"state"), ()))
    log.store(QuorumWrite(4, HardState(5, B), None, entries(5, 5, term=4)))
    log.store(QuorumWrite(5, None, None, entries(6, 6, term=4)))
    log.close()
    disk.flush_everything()
    return files


def killed(disk: SimulatedDisk) -> SimulatedFiles:
    """Another process, after the last one was killed."""
    disk.flush_everything()
    disk.lose_power(random.Random(0))
    return disk.files()


def damages(content: bytes) -> list[bytes | None]:
    """Each flipped bit, a page of zeros, some ends that are gone, nothing left, and no file."""
    flipped = []
    for position in range(8 * len(content)):
        broken = bytearray(content)
        broken[position // 8] ^= 1 << position % 8
        flipped.append(bytes(broken))
    return [*flipped, bytes(len(content)), b"", content[: len(content) // 2], content[:3], None]


def crash_after(disk: SimulatedDisk, operations: int) -> None:
    """Every operation after so many fails; a write leaves half of itself."""
    left = operations

    def crash(operation: str, path: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise TornWrite(0.5, RuntimeError()) if operation == "write" else RuntimeError()

    disk.fault = crash


def put(files: SimulatedFiles, name: str, content: bytes | None) -> None:
    files.remove(f"{FOLDER}/{name}")
    if content is not None:
        files.write_file(f"{FOLDER}/{name}", content)


# ------------------------------------------------------------------ what is kept twice


@pytest.mark.parametrize("name", SMALL)
def test_one_damaged_copy_of_a_small_file_is_mended_from_the_other_and_named(name: str) -> None:
    disk = SimulatedDisk()
    whole = written(disk).read_file(f"{FOLDER}/{name}")
    other = name.removesuffix(COPY_SUFFIX) if name.endswith(COPY_SUFFIX) else name + COPY_SUFFIX
    claimed = 900
    for damage in damages(whole):
        files = killed(disk)
        put(files, name, damage)
        log = MetadataLog.open(files, FOLDER)
        assert (log.hard_state, log.entries) == (HardState(5, B), (*entries(3, 4), *entries(5, 6, term=4))), damage
        assert log.claim_incarnation(1) > claimed
        claimed = log.claim_incarnation(1)
        is_padding = damage is not None and damage.rstrip() == whole.rstrip()
        assert is_padding or any(f"/{name} is" in notice for notice in log.notices), damage
        assert files.read_file(f"{FOLDER}/{name}") == files.read_file(f"{FOLDER}/{other}"), damage
        log.close()


@pytest.mark.parametrize("name", [STATE_NAME, INCARNATION_NAME])
def test_two_damaged_copies_are_refused_by_name(name: str) -> None:
    disk = SimulatedDisk()
    files = written(disk)
    put(files, name, b"{}")
    put(files, name + COPY_SUFFIX, b"")
    files.remove(f"{FOLDER}.{name}")
    with pytest.raises(DiskError, match=name):
        MetadataLog.open(files, FOLDER, has_peers=True).claim_incarnation(5)


def test_a_voter_whose_folder_was_deleted_takes_a_later_number_by_an_earlier_clock() -> None:
    """Else the other controllers take it for a process older than the one before, until its clock has caught up."""
    disk = SimulatedDisk()
    files = written(disk)
    assert MetadataLog.open(files, FOLDER).claim_incarnation(1_000) == 1_000
    files.remove_directory(FOLDER)
    written_anew = StateFiles(files, FOLDER)
    files.make_directory(FOLDER)
    assert written_anew.claim_incarnation(5) == 1_001


@pytest.mark.parametrize("kept", [STATE_NAME, STATE_NAME + COPY_SUFFIX])
def test_a_vote_is_remembered_wherever_a_crash_fell_and_whichever_copy_is_damaged_then(kept: str) -> None:
    for operations in range(40):
        disk = SimulatedDisk()
        files = written(disk)
        log = MetadataLog.open(files, FOLDER)
        crash_after(disk, operations)
        try:
            log.store(QuorumWrite(6, HardState(6, A), None, ()))
            was_told = True
        except (RuntimeError, TornWrite):
            was_told = False
        disk.fault = None
        disk.lose_power(random.Random(operations))
        files = disk.files()
        found = MetadataLog.open(files, FOLDER).hard_state
        assert found == HardState(6, A) or (not was_told and found == HardState(5, B)), operations
        disk.lose_power(random.Random(operations + 100))
        files = disk.files()
        put(files, {STATE_NAME, STATE_NAME + COPY_SUFFIX}.difference({kept}).pop(), b"")
        assert MetadataLog.open(files, FOLDER).hard_state == found, (operations, kept)
        if was_told:
            return
    raise AssertionError("the write never ended")


def test_a_folder_of_an_older_version_has_no_copies_and_gets_them() -> None:
    disk = SimulatedDisk()
    files = written(disk)
    for name in SMALL:
        if name.endswith(COPY_SUFFIX):
            files.remove(f"{FOLDER}/{name}")
    log = MetadataLog.open(files, FOLDER)
    assert (log.hard_state, log.claim_incarnation(1)) == (HardState(5, B), 901)
    assert set(SMALL) <= set(files.list_directory(FOLDER))


def test_of_two_whole_copies_the_later_one_counts() -> None:
    disk = SimulatedDisk()
    files = written(disk)
    newer = files.read_file(f"{FOLDER}/{STATE_NAME}")
    without_vote = b'{"version": 1, "term": 5, "voted_for": null}'
    for older in (b'{"version": 1, "term": 4, "voted_for": "%s"}' % str(A).encode(), without_vote):
        for one, other in ((newer, older), (older, newer)):
            files = killed(disk)
            put(files, STATE_NAME, one)
            put(files, STATE_NAME + COPY_SUFFIX, other)
            log = MetadataLog.open(files, FOLDER)
            assert (log.hard_state, log.notices) == (HardState(5, B), ())
            log.close()
            assert files.read_file(f"{FOLDER}/{STATE_NAME}{COPY_SUFFIX}") == newer


# ------------------------------------------------------------------ what is lost


LOST = {
    "a flushed entry": (LOG_NAME, lambda content: content.replace(b"entry 3", b"entry 9")),
    "the last write": (LOG_NAME, lambda content: content.replace(b"entry 6", b"entry 9")),
    "the end": (LOG_NAME, lambda content: content[:-1]),
    "the header": (LOG_NAME, lambda content: b"\0" * 512 + content[512:]),
    "all of the log": (LOG_NAME, lambda content: b""),
    "the log's file": (LOG_NAME, lambda content: None),
    "the snapshot": (SNAPSHOT_NAME, lambda content: content[:-2] + b"!" + content[-1:]),
    "the snapshot's end": (SNAPSHOT_NAME, lambda content: content[:7]),
    "the snapshot's file": (SNAPSHOT_NAME, lambda content: None),
}
KEPT = {"a flushed entry": (), "the last write": (3, 4, 5), "the end": (3, 4, 5)}


@pytest.mark.parametrize("lost", LOST)
def test_a_log_that_lost_what_it_held_is_refused_by_name_where_nobody_else_has_it(lost: str) -> None:
    name, damage = LOST[lost]
    disk = SimulatedDisk()
    files = written(disk)
    before = damage(files.read_file(f"{FOLDER}/{name}"))
    put(files, name, before)
    with pytest.raises(DiskError, match=f"{FOLDER}.*; bring"):
        MetadataLog.open(files, FOLDER)
    assert files.exists(f"{FOLDER}/{name}") == (before is not None), "a refusal changes nothing"
    disk = SimulatedDisk()
    files = written(disk, voters=(A,))
    put(files, name, damage(files.read_file(f"{FOLDER}/{name}")))
    if "snapshot" not in lost:  # else who the voters are is lost with it
        with pytest.raises(DiskError, match=f"{FOLDER}.*; bring"):
            MetadataLog.open(files, FOLDER, has_peers=True)


@pytest.mark.parametrize("lost", LOST)
def test_with_others_the_log_is_cut_and_its_voter_recovers_in_a_new_term(lost: str) -> None:
    name, damage = LOST[lost]
    disk = SimulatedDisk()
    files = written(disk)
    before = damage(files.read_file(f"{FOLDER}/{name}"))
    put(files, name, before)
    recovering = HardState(6, None, recovering_term=5)
    for attempt in range(3):
        log = MetadataLog.open(files, FOLDER, has_peers=True)
        assert log.hard_state == recovering, "a restart neither ends nor repeats it"
        assert tuple(entry.index for entry in log.entries) == KEPT.get(lost, ())
        if "snapshot" in lost:
            assert log.snapshot == BLANK
        assert bool(log.notices) == (attempt == 0)
        log.close()
    if before is not None:
        assert files.read_file(f"{FOLDER}/{name}{DAMAGED_SUFFIX}") == before
    log = MetadataLog.open(files, FOLDER)
    log.store(QuorumWrite(1, HardState(7, None), Snapshot(9, 7, "cluster", (A, B), b"state"), entries(10, 11, term=7)))
    log.close()
    log = MetadataLog.open(files, FOLDER)
    assert (log.hard_state, log.snapshot.last_index, log.entries) == (HardState(7, None), 9, entries(10, 11, term=7))


def test_the_damage_is_named_with_its_file_and_byte() -> None:
    disk = SimulatedDisk()
    files = written(disk)
    content = files.read_file(f"{FOLDER}/{LOG_NAME}")
    put(files, LOG_NAME, content.replace(b"entry 4", b"entry 9"))
    notices = MetadataLog.open(files, FOLDER, has_peers=True).notices
    third = content.index(b"RLME", content.index(b"entry 3"))
    assert f"{FOLDER}/{LOG_NAME}: the bytes at {third}, entry 4, are corrupt" in notices[0]
    assert "ends with entry 3 of term 1 now" in notices[1]


@pytest.mark.parametrize("lost", LOST)
def test_a_crash_while_the_log_is_cut_forgets_no_recovery(lost: str) -> None:
    name, damage = LOST[lost]
    for operations in range(120):
        disk = SimulatedDisk()
        files = written(disk)
        put(files, name, damage(files.read_file(f"{FOLDER}/{name}")))
        disk.flush_everything()
        crash_after(disk, operations)
        try:
            MetadataLog.open(files, FOLDER, has_peers=True)
            done = True
        except (RuntimeError, TornWrite):
            done = False
        disk.fault = None
        disk.lose_power(random.Random(operations))
        log = MetadataLog.open(disk.files(), FOLDER, has_peers=True)
        assert log.hard_state.recovering_term in (5, 6), (operations, log.hard_state)
        assert log.hard_state.term == log.hard_state.recovering_term + 1
        assert tuple(entry.index for entry in log.entries) == KEPT.get(lost, ())
        if done:
            return
    raise AssertionError("it never opened")


def test_a_real_disk_recovers_too(tmp_path: Path) -> None:
    directory, files = str(tmp_path / "metadata"), DiskFiles()
    MetadataLog.format(files, directory, bootstrap_snapshot("cluster", (A, B)))
    log = MetadataLog.open(files, directory)
    log.store(QuorumWrite(1, HardState(1, A), None, entries(1, 4)))
    log.close()
    path = tmp_path / "metadata" / LOG_NAME
    path.write_bytes(path.read_bytes()[:-5])
    log = MetadataLog.open(files, directory, has_peers=True)
    assert (log.hard_state, log.entries) == (HardState(2, None, 1), entries(1, 3))
    log.close()
    assert MetadataLog.open(files, directory).hard_state == HardState(2, None, 1)


# ------------------------------------------------------------------ in a quorum


class Trio:
    """Three members; ``a`` leads term 1, and what is committed is on ``a`` and ``b``: ``c`` is cut off."""

    def __init__(self) -> None:
        timeouts = {"a": 1000, "b": 1200, "c": 1400}
        self.network = QuorumNetwork(
            QuorumConfig(election_timeout_ms=1000, heartbeat_interval_ms=200), lambda name: timeouts[name]
        )
        for name in "abc":
            self.network.add(name, "abc")
        self.elect("a")
        self.cut("c")
        self.propose("a", b"x", b"y")

    def member(self, name: str):  # type: ignore[no-untyped-def]
        quorum = self.network.members[name].quorum
        assert quorum is not None, f"{name} is down"
        return quorum

    def elect(self, name: str) -> None:
        self.network.now_ms = max(self.network.now_ms, self.member(name).next_deadline_ms())
        self.network.tick(name)
        self.network.deliver_all()

    def cut(self, name: str) -> None:
        self.network.cut = {pair for other in "abc" for pair in ((name, other), (other, name))}

    def propose(self, name: str, *contents: bytes) -> None:
        self.member(name).propose(list(contents), self.network.now_ms)
        self.network.settle(name)
        self.network.deliver_all()

    def rot(self, name: str, file: str = LOG_NAME, left: float = 0.6) -> None:
        """The member dies, and comes back with a file that was cut at rest."""
        self.network.crash(name)
        files = self.network.members[name].disk.files()
        content = files.read_file(f"{FOLDER}/{file}")
        files.write_file(f"{FOLDER}/{file}", content[: int(len(content) * left)])
        files.crash()
        self.network.start(name)
        self.network.deliver_all()

    def applied(self, name: str) -> list[bytes]:
        return [entry.data for entry in self.network.members[name].applied if entry.kind is EntryKind.RECORDS]


def test_a_voter_that_lost_a_committed_entry_elects_nobody_who_lacks_it() -> None:
    trio = Trio()
    trio.network.crash("a")
    trio.network.members["b"].disk.flush_everything()
    trio.network.cut = set()
    trio.rot("b")
    assert trio.member("b").is_recovering and trio.member("b").last_index < 3
    trio.network.advance(20_000)
    assert not trio.member("c").is_leader and not trio.member("b").is_leader, "they lack what was committed"
    trio.network.start("a")
    trio.network.advance(10_000)
    leader = trio.network.leader()
    assert leader is not None and leader.name == "a"
    trio.propose("a", b"z")
    trio.network.advance(1_000)
    assert not trio.member("b").is_recovering
    assert trio.applied("b") == trio.applied("c") == [b"x", b"y", b"z"]


def test_a_leader_that_counts_on_what_was_lost_is_deposed_and_the_voter_votes_again_behind_it() -> None:
    trio = Trio()
    trio.network.cut = set()
    trio.network.advance(1_000)
    trio.rot("b")
    trio.network.advance(200)
    assert trio.member("a").term == 2 and not trio.member("a").is_leader
    trio.network.advance(5_000)
    leader = trio.network.leader()
    assert leader is not None and leader.name in "ac"
    trio.network.advance(1_000)
    assert not trio.member("b").is_recovering and trio.member("b").recovering() == ()
    trio.network.crash(leader.name)
    trio.network.advance(10_000)
    assert trio.network.leader() is not None, "with one voter away the other two elect"


def test_what_was_acknowledged_behind_the_noted_end_is_not_forgotten_either() -> None:
    """A loss of power takes what ``log-end`` said last; a flipped bit in front shows the loss, but not how much there was."""
    trio = Trio()
    network = trio.network
    network.crash("a")
    member = network.members["b"]
    files = member.disk.files()
    network.crash("b")
    files = member.disk.files()
    for name in (END_NAME, END_NAME + COPY_SUFFIX):
        files.write_file(f"{FOLDER}/{name}", b'{"version": 1, "index": 1, "term": 1}')
    content = files.read_file(f"{FOLDER}/{LOG_NAME}")
    first = content.index(b"RLME")
    files.write_file(f"{FOLDER}/{LOG_NAME}", content[: first + 5] + b"\xff" + content[first + 6 :])
    files.crash()
    network.cut = set()
    network.start("b")
    network.advance(20_000)
    assert trio.member("b").is_recovering and not trio.member("c").is_leader
    network.start("a")
    network.advance(10_000)
    assert not trio.member("b").is_recovering and trio.applied("b") == [b"x", b"y"]


def test_a_recovering_voter_stays_one_over_restarts_and_losses_of_power() -> None:
    trio = Trio()
    trio.network.crash("a")
    trio.network.cut = set()
    trio.rot("b")
    state = trio.network.members["b"].log.hard_state  # type: ignore[union-attr]
    for _ in range(3):
        trio.network.crash("b")
        trio.network.start("b")
        trio.network.advance(5_000)
        assert trio.member("b").is_recovering and not trio.member("c").is_leader
    assert trio.member("b").recovering_term == state.recovering_term == 1


def test_entries_of_the_old_leader_do_not_end_the_recovery() -> None:
    """It catches up with term 1 while it knows nothing of a later one: what it held beyond that is not known."""
    trio = Trio()
    trio.rot("b")
    assert trio.member("b").recovering_term == 1
    trio.network.cut = set()
    trio.network.advance(10_000)
    assert trio.member("b").log.last_term > 1 and not trio.member("b").is_recovering


def test_a_voter_that_lost_its_snapshot_gets_one_and_then_votes_again() -> None:
    trio = Trio()
    trio.network.cut = set()
    trio.network.advance(1_000)
    trio.network.compact("b")
    trio.network.compact("a")
    name = next(
        each for each in trio.network.members["b"].disk.files().list_directory(FOLDER) if each.endswith(".checkpoint")
    )
    trio.rot("b", name)
    assert trio.member("b").is_recovering and trio.member("b").last_index == 0
    trio.network.advance(10_000)
    assert trio.member("b").voters and not trio.member("b").is_recovering
    assert trio.applied("b") == [b"x", b"y"]


def test_a_copy_of_a_vote_that_was_damaged_costs_nothing() -> None:
    trio = Trio()
    trio.network.cut = set()
    trio.rot("b", STATE_NAME, 0.5)
    assert not trio.member("b").is_recovering and trio.member("a").is_leader


def test_the_leader_knows_who_is_recovering_and_takes_no_other_voter_away_meanwhile() -> None:
    trio = Trio()
    network = trio.network
    network.cut = set()
    network.advance(1_000)
    trio.rot("b")
    assert trio.member("b").recovering() == (network.id_of("b"),)
    network.members["b"].stalled = True  # what would end it doesn't reach its disk
    network.advance(6_000)
    leader = network.leader()
    assert leader is not None and leader.quorum is not None
    assert leader.quorum.recovering() == (network.id_of("b"),)
    others = {"a", "c"} - {leader.name}
    with pytest.raises(VoterChangeRefused, match="lost entries"):
        leader.quorum.propose_voters([network.id_of(leader.name), network.id_of("b")], network.now_ms)
    network.members["b"].stalled = False
    network.complete_write("b")
    network.settle("b")
    network.advance(1_000)
    assert leader.quorum.recovering() == () and others


def recovering_voter(*, recovering_term: int = 3, last_term: int = 3) -> Quorum:
    """Of three; its log ends with entry 1."""
    voters = [uuid.UUID(int=number) for number in (1, 2, 3)]
    return Quorum(
        voters[0],
        hard_state=HardState(4, None, recovering_term),
        snapshot=bootstrap_snapshot("cluster", voters),
        entries=entries(1, 1, term=last_term),
        config=QuorumConfig(),
        draw_election_timeout_ms=lambda: 1_000,
        now_ms=0,
    )


def test_an_entry_of_a_later_leader_counts_when_it_is_on_the_disk() -> None:
    quorum, leader = recovering_voter(), uuid.UUID(int=2)
    quorum.step(leader, AppendRequest(5, 0, 0, (), 0, 0), 10)
    ready = quorum.ready()
    assert ready is not None and ready.write is not None and not ready.write.entries
    quorum.step(leader, AppendRequest(5, 1, 3, entries(2, 2, term=5), 0, 0), 20)
    quorum.persisted(ready.write.number, 30)
    assert quorum.is_recovering, "only the term is on the disk"
    ready = quorum.ready()
    assert ready is not None and ready.write is not None and ready.write.entries == entries(2, 2, term=5)
    quorum.persisted(ready.write.number, 40)
    assert not quorum.is_recovering
    ready = quorum.ready()
    assert ready is not None and ready.write is not None and ready.write.hard_state == HardState(5, None)


def test_a_recovery_whose_end_was_not_written_down_ends_when_the_log_is_opened() -> None:
    quorum = recovering_voter(last_term=4)
    assert not quorum.is_recovering and quorum.next_deadline_ms() is not None
    ready = quorum.ready()
    assert ready is not None and ready.write is not None and ready.write.hard_state == HardState(4, None)
    assert recovering_voter().is_recovering and recovering_voter().next_deadline_ms() is None


def test_a_raylog_that_knows_of_no_recovery_refuses_the_vote_of_a_recovering_voter() -> None:
    disk = SimulatedDisk()
    files = written(disk)
    assert files.read_file(f"{FOLDER}/{STATE_NAME}").startswith(b'{"version": 1,')
    put(files, LOG_NAME, None)
    MetadataLog.open(files, FOLDER, has_peers=True).close()
    assert files.read_file(f"{FOLDER}/{STATE_NAME}").startswith(b'{"version": 2,')


def test_a_log_whose_first_snapshot_is_gone_is_refused_by_name() -> None:
    disk = SimulatedDisk()
    files = disk.files()
    files.make_directory("/disk")
    MetadataLog.format(files, FOLDER, bootstrap_snapshot("cluster", (A, B)))
    log = MetadataLog.open(files, FOLDER)
    log.store(QuorumWrite(1, HardState(1, A), None, entries(1, 2)))
    log.close()
    put(files, "00000000000000000000-0000000000.checkpoint", None)
    with pytest.raises(DiskError, match=r"the snapshot that metadata\.log goes on from is missing"):
        MetadataLog.open(files, FOLDER)


def test_damage_below_an_open_log_is_not_copied_into_the_next_one() -> None:
    disk = SimulatedDisk()
    log = MetadataLog.open(written(disk), FOLDER)
    position = disk.files().read_file(f"{FOLDER}/{LOG_NAME}").index(b"entry 4")
    disk.flip_bit(f"{FOLDER}/{LOG_NAME}", position)
    with pytest.raises(DiskError, match="entry 4, are corrupt"):
        log.store(QuorumWrite(6, None, Snapshot(3, 1, "cluster", (A, B), b"state"), ()))
