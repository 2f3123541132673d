"""Golden scenarios of the quorum: ``quorum_scenarios/*.txt``, commands and what they make the members do.

A line ``> command`` is carried out; the lines behind it say everything that happened (writes, messages, entries applied, leaders
seen), up to the next blank line. ``# ...`` is prose. After a wanted change of behaviour rewrite the files and read the difference::

    RAYLOG_REWRITE_SCENARIOS=1 pytest tests/metadata/test_quorum_scenarios.py

Commands (a, b, … are members)::

    voters a b c        format a disk each and start them; election timeouts are 1000, 1200, 1400 … ms
    blank d             start a process on a blank disk        observe a d    a sends to d as well
    elect a             let a's election timer run out, deliver everything
    tick a [ms]         let so much time pass, then judge a's timers alone      advance ms   the same for all, with delivery
    propose a x y       deliver [a b [count]]                  lose a b       drop what is queued from a to b
    cut a [b]           lose all messages of a (with b)        heal
    stall a             a's writes wait                        persist a      finish the one under way      unstall a
    crash a             with its power                         start a
    gone a b            b sees that a's process has ended
    change a b,c        a proposes these voters                confirm a      compact a
    state               queue                              quiet ...      carry out the rest of the line and say nothing of it
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raylog.raft.messages import NotLeader, QuorumConfig, VoterChangeRefused
from raylog.simulator.quorum_network import QuorumNetwork

SCENARIOS = Path(__file__).parent / "quorum_scenarios"
REWRITE = bool(os.environ.get("RAYLOG_REWRITE_SCENARIOS"))


class Scenario:
    def __init__(self) -> None:
        self.timeouts: dict[str, int] = {}
        config = QuorumConfig(election_timeout_ms=1000, heartbeat_interval_ms=200, append_bytes_max=100)
        self.network = QuorumNetwork(config, lambda name: self.timeouts[name])

    def carry_out(self, line: str) -> list[str]:
        command, *arguments = line.split()
        seen = len(self.network.trace)
        shown: list[str] = []
        try:
            shown = getattr(self, f"do_{command}")(*arguments) or []
        except (NotLeader, VoterChangeRefused) as error:
            text = str(error)
            for name, member in self.network.members.items():
                text = text.replace(str(member.id), name)
            shown = [f"{type(error).__name__}: {text}"]
        self.network.check_logs()
        return self.network.trace[seen:] + shown or ["nothing"]

    def do_voters(self, *names: str) -> None:
        for name in names:
            self._start_clock(name)
            self.network.add(name, names)

    def do_blank(self, name: str) -> None:
        self._start_clock(name)
        self.network.add(name, None)

    def _start_clock(self, name: str) -> None:
        self.timeouts[name] = 1000 + 200 * len(self.timeouts)

    def do_observe(self, leader: str, name: str) -> None:
        quorum = self._quorum(leader)
        quorum.add_observer(self.network.id_of(name), self.network.now_ms)
        self.network.settle(leader)

    def _quorum(self, name: str):  # type: ignore[no-untyped-def]
        quorum = self.network.members[name].quorum
        assert quorum is not None, f"{name} is down"
        return quorum

    def do_elect(self, name: str) -> None:
        deadline_ms = self._quorum(name).next_deadline_ms()
        assert deadline_ms is not None
        self.network.now_ms = max(self.network.now_ms, deadline_ms)
        self.network.tick(name)
        self.network.deliver_all()

    def do_tick(self, name: str, elapsed_ms: str = "0") -> None:
        self.network.now_ms += int(elapsed_ms)
        self.network.tick(name)

    def do_advance(self, elapsed_ms: str) -> None:
        self.network.advance(int(elapsed_ms))

    def do_propose(self, name: str, *contents: str) -> None:
        self._quorum(name).propose([content.encode() for content in contents], self.network.now_ms)
        self.network.settle(name)

    def do_deliver(self, sender: str | None = None, receiver: str | None = None, count: str = "1") -> None:
        if sender is None:
            self.network.deliver_all()
            return
        for _ in range(int(count)):
            places = [
                place
                for place, envelope in enumerate(self.network.queue)
                if (envelope.sender, envelope.receiver) == (sender, receiver)
            ]
            assert places, f"nothing is queued from {sender} to {receiver}"
            self.network.deliver_next(places[0])

    def do_lose(self, sender: str, receiver: str) -> None:
        self.network.queue = [each for each in self.network.queue if (each.sender, each.receiver) != (sender, receiver)]

    def do_cut(self, name: str, other: str | None = None) -> None:
        for each in [other] if other else self.network.members:
            self.network.cut |= {(name, each), (each, name)}

    def do_heal(self) -> None:
        self.network.cut.clear()

    def do_stall(self, name: str) -> None:
        self.network.members[name].stalled = True

    def do_unstall(self, name: str) -> None:
        self.network.members[name].stalled = False
        self.network.complete_write(name)

    def do_persist(self, name: str) -> None:
        self.network.complete_write(name)

    def do_crash(self, name: str) -> None:
        self.network.crash(name)

    def do_start(self, name: str) -> None:
        self.network.start(name)

    def do_gone(self, name: str, witness: str) -> None:
        self._quorum(witness).peer_lost(self.network.id_of(name), self.network.now_ms)
        self.network.settle(witness)

    def do_change(self, name: str, voters: str) -> None:
        ids = [self.network.id_of(voter) for voter in voters.split(",")]
        self._quorum(name).propose_voters(ids, self.network.now_ms)
        self.network.settle(name)

    def do_confirm(self, name: str) -> list[str]:
        seen = len(self.network.trace)
        ticket = self.network.confirm(name)
        news = self.network.trace[seen:]
        del self.network.trace[seen:]
        return [f"ticket {ticket}", *news]

    def do_compact(self, name: str) -> None:
        self.network.compact(name)

    def do_state(self) -> list[str]:
        return self.network.show_state()

    def do_queue(self) -> list[str]:
        show = self.network.show
        return [f"{each.sender} → {each.receiver}: {show(each.message)}" for each in self.network.queue]


def played(text: str) -> str:
    """The scenario with what happens now behind each command."""
    scenario = Scenario()
    out: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            out += ([""] if out and not out[-1].startswith("#") else []) + [line]
        elif line.startswith("> "):
            if out and not out[-1].startswith(("#", "> quiet ")):
                out.append("")
            out.append(line)
            happened = scenario.carry_out(line[2:].removeprefix("quiet "))
            if not line.startswith("> quiet "):
                out += happened
    return "\n".join(out) + "\n"


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.txt")), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    text = path.read_text()
    now = played(text)
    if REWRITE:
        path.write_text(now)
    assert now.splitlines() == path.read_text().splitlines()


def test_there_are_scenarios() -> None:
    assert len(list(SCENARIOS.glob("*.txt"))) >= 15
