"""The quorum on a network that delays, drops, doubles and reorders, with members that crash, stall, change and rot."""

from __future__ import annotations

import random

import pytest

from raylog.raft.messages import EntryKind, QuorumConfig, VoterChangeRefused
from raylog.simulator.quorum_network import QuorumNetwork

CONFIG = QuorumConfig(election_timeout_ms=1000, heartbeat_interval_ms=200, append_bytes_max=60, in_flight_entries_max=8)


class Run:
    """One seeded run: random events, then peace, then progress is demanded."""

    def __init__(self, seed: int, names: str, blank: str, *, change_voters: bool, rot: bool = False) -> None:
        self.rng = rng = random.Random(seed)
        self.network = QuorumNetwork(CONFIG, lambda name: rng.randint(1000, 2000))
        self.change_voters = change_voters
        self.rot = rot
        self.voters = names
        self.unsound: set[str] = set()  # voters whose disks were damaged and that are not known to be whole again
        self.recoveries = 0
        self.proposed = 0
        for name in names:
            self.network.add(name, names)
        for name in blank:
            self.network.add(name, None)

    def event(self) -> None:
        rng, network = self.rng, self.network
        members = sorted(network.members)
        name = rng.choice(members)
        member = network.members[name]
        quorum = member.quorum
        if self.rot and rng.random() < 0.01:
            self.damage(name)
            return
        draw = rng.random()
        if draw < 0.62 and network.queue:
            position = rng.randrange(min(len(network.queue), 6))
            if rng.random() < 0.06:
                del network.queue[position]
            else:
                network.deliver_next(position, duplicate=rng.random() < 0.06)
        elif draw < 0.70:
            network.now_ms += rng.choice([5, 30, 100])
            network.tick(name)
        elif draw < 0.84:
            network.complete_write(name)
        elif draw < 0.85:
            member.stalled = not member.stalled
            if quorum is not None:
                network.settle(name)
        elif draw < 0.855:
            if quorum is not None:
                network.crash(name, rng)
        elif draw < 0.88:
            if quorum is None:
                network.start(name)
        elif draw < 0.884:
            network.cut = {(one, other) for one in members for other in members if rng.random() < 0.25}
        elif draw < 0.90:
            network.cut = set()
        elif quorum is None:
            pass
        elif draw < 0.905:
            network.compact(name)
        elif draw < 0.91:
            quorum.peer_lost(network.id_of(rng.choice(members)), network.now_ms)  # true or not
            network.settle(name)
        elif quorum.is_leader:
            self.lead(name, draw)

    def damage(self, name: str) -> None:
        """A minority of the voters' disks at a time: what a majority has forgotten nobody can bring back."""
        network = self.network
        for each in sorted(self.unsound):
            quorum = network.members[each].quorum
            if quorum is not None and not quorum.is_recovering and quorum.voters:
                self.unsound.discard(each)
        if network.members[name].quorum is None or 2 * len(self.unsound | {name}) > len(self.voters):
            return
        self.unsound.add(name)
        network.damage(name, self.rng)
        network.start(name)
        found = network.members[name].quorum
        self.recoveries += found is not None and found.is_recovering

    def lead(self, name: str, draw: float) -> None:
        rng, network = self.rng, self.network
        quorum = network.members[name].quorum
        assert quorum is not None
        for other in sorted(network.members):
            quorum.add_observer(network.id_of(other), network.now_ms)
        if draw < 0.96:
            self.proposed += 1
            quorum.propose([b"%d.%d" % (self.proposed, part) for part in range(rng.randint(1, 4))], network.now_ms)
        elif draw < 0.985 or not self.change_voters:
            network.confirm(name)
        else:
            wanted = {network.name(voter) for voter in quorum.voters} ^ {rng.choice(sorted(network.members))}
            if len(wanted) >= 2:
                try:
                    quorum.propose_voters(map(network.id_of, sorted(wanted)), network.now_ms)
                except VoterChangeRefused:
                    pass
        network.settle(name)

    def heal(self) -> None:
        network = self.network
        network.cut = set()
        for name in sorted(network.members):
            member = network.members[name]
            member.stalled = False
            if member.quorum is None:
                network.start(name)
            network.complete_write(name)
            network.settle(name)
        network.deliver_all()
        for _ in range(60):
            network.advance(500)
            leader = network.leader()
            if leader is not None and leader.quorum is not None:
                for other in sorted(network.members):
                    leader.quorum.add_observer(network.id_of(other), network.now_ms)
                if not any(entry.data == b"last" for entry in leader.applied):
                    leader.quorum.propose([b"last"], network.now_ms)
                network.settle(leader.name)
                network.deliver_all()
                lengths = {len(member.applied) for member in network.members.values()}
                recovering = [each for each in network.running() if each.quorum is None or each.quorum.is_recovering]
                if len(lengths) == 1 and not recovering and any(entry.data == b"last" for entry in leader.applied):
                    return
        raise AssertionError("no progress after the network healed:\n" + "\n".join(network.show_state()))


def run(seed: int, names: str, blank: str, events: int, *, change_voters: bool = False, rot: bool = False) -> Run:
    it = Run(seed, names, blank, change_voters=change_voters, rot=rot)
    for count in range(events):
        it.event()
        if count % 50 == 0:
            it.network.check_logs()
    it.heal()
    it.network.check_logs()
    return it


@pytest.mark.parametrize("seed", range(12))
def test_three_voters_agree_whatever_the_network_does(seed: int) -> None:
    run(seed, "abc", "", 2000)


@pytest.mark.parametrize("seed", range(8))
def test_voters_that_come_and_go_agree_too(seed: int) -> None:
    run(seed, "abc", "de", 2000, change_voters=True)


@pytest.mark.parametrize("seed", range(12))
def test_voters_whose_disks_rot_forget_nothing(seed: int) -> None:
    names = "abcde" if seed % 4 == 3 else "abc"
    assert run(seed, names, "", 2000, rot=True).recoveries > 0


@pytest.mark.core
@pytest.mark.parametrize("seed", range(200, 300))
def test_many_seeds_forget_nothing(seed: int) -> None:
    names, blank = [("abc", ""), ("abc", "d"), ("abcde", "")][seed % 3]
    run(seed, names, blank, 3000, rot=True)


@pytest.mark.core
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_seeds_agree(seed: int) -> None:
    names, blank = [("abc", ""), ("abc", "de"), ("abcde", ""), ("a", "bc"), ("ab", "c")][seed % 5]
    run(seed, names, blank, 3000, change_voters=seed % 2 == 0)


def test_the_random_runs_see_what_they_are_for() -> None:
    """A run that never elects, commits, restores or changes voters would prove nothing."""
    elections = commits = restores = changes = settled = 0
    for seed in range(6):
        it = run(seed, "abc", "de", 2000, change_voters=True)
        history = it.network.history
        elections += len(history.leaders)
        commits += len(history.committed)
        restores += sum("restores" in line for line in it.network.trace)
        changes += sum(entry.kind is EntryKind.VOTERS for entry in history.committed.values())
        settled += history.settled_tickets
    assert elections > 15 and commits > 150 and restores > 10 and changes > 3 and settled > 10, (
        elections,
        commits,
        restores,
        changes,
        settled,
    )


def test_a_seed_gives_the_same_trace_again() -> None:
    first = run(3, "abc", "d", 600, change_voters=True).network.trace
    assert first == run(3, "abc", "d", 600, change_voters=True).network.trace
