"""The shell hears of a batch that it follows: when it is appended, and when it is replicated or nobody knows."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from raylog.control.session import Removal
from raylog.replication import traced
from raylog.replication.context import HostConfig
from raylog.replication.events import LogFailed, ProduceReply, Removed, Reply
from raylog.replication.traced import TraceReached, TraceStage
from raylog.simulator.replica_hosts import P0, Hosts

APPENDED, REPLICATED, LOST = TraceStage.APPENDED, TraceStage.REPLICATED, TraceStage.LOST


def two() -> tuple[Hosts, tuple[int, int]]:
    """Broker 1 leads; broker 2 is played by the test."""
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2), to=(1,))
    return hosts, (2, hosts.processes[2].incarnation)


def reached(hosts: Hosts) -> list[tuple[object, TraceStage, int]]:
    return [(each.trace, each.stage, each.base_offset) for each in hosts.traced]


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_a_batch_is_appended_and_then_replicated(acks: int) -> None:
    hosts, follower = two()
    hosts.produce(1, b"0")
    hosts.produce(1, b"1", b"2", acks=acks, trace="a")
    assert reached(hosts) == [("a", APPENDED, 1)]
    hosts.fetch(1, 2, replica=follower, epoch=0, last_epoch=0)
    assert len(hosts.traced) == 1, "one of its records is not replicated"
    hosts.fetch(1, 3, replica=follower, epoch=0, last_epoch=0)
    assert reached(hosts) == [("a", APPENDED, 1), ("a", REPLICATED, 1)]
    hosts.produce(1, b"3", trace="b")
    assert reached(hosts)[2:] == [("b", APPENDED, 3)]


def test_without_other_replicas_it_is_replicated_in_the_same_event_and_before_the_reply() -> None:
    hosts = Hosts((1,))
    hosts.assign(1, (1,))
    heard: list[object] = []
    carried = hosts._carry_out
    hosts._carry_out = lambda process, effect: (heard.append(effect), carried(process, effect))[1]  # type: ignore[method-assign]
    hosts.produce(1, b"0", trace="a")
    kinds = [each.stage if isinstance(each, TraceReached) else type(each) for each in heard]
    assert kinds[:3] == [APPENDED, REPLICATED, Reply]


def test_a_repeat_is_reported_with_the_first_ones_offset() -> None:
    hosts, follower = two()
    hosts.produce(1, b"0", producer=(7, 0, 0), trace="a")
    hosts.produce(1, b"1", producer=(7, 0, 1), trace="b")
    hosts.produce(1, b"0", producer=(7, 0, 0), trace="again")
    assert reached(hosts)[2:] == [("again", APPENDED, 0)]
    hosts.fetch(1, 2, replica=follower, epoch=0, last_epoch=0)
    assert reached(hosts)[3:] == [("a", REPLICATED, 0), ("b", REPLICATED, 1), ("again", REPLICATED, 0)]


def test_a_batch_that_is_refused_is_not_appended() -> None:
    hosts = Hosts((1,))
    hosts.assign(1, (1,), min_isr=2)
    token = hosts.produce(1, b"0", trace="a")
    reply = hosts.replies[token]
    assert isinstance(reply, ProduceReply)
    assert reply.partitions[0].error == ErrorCode.not_enough_replicas.value and not hosts.traced


def test_a_batch_that_a_thread_checks_is_appended_later() -> None:
    hosts = Hosts((1,), HostConfig(walked_bytes_max=10))
    hosts.holds_checks = True
    hosts.assign(1, (1,), config={"segment.index.bytes": "4096"})
    hosts.produce(1, bytes(300), trace="a")
    assert not hosts.traced
    hosts.finish_check()
    assert reached(hosts) == [("a", APPENDED, 0), ("a", REPLICATED, 0)]


@pytest.mark.parametrize("end", ["another leader", "removed", "failed"])
def test_what_waits_when_a_leadership_ends_is_lost(end: str) -> None:
    hosts, _ = two()
    hosts.produce(1, b"0", trace="a")
    hosts.produce(1, b"1", trace="b", acks=1)
    if end == "another leader":
        hosts.assign(2, (1, 2), epoch=1, to=(1,))
    elif end == "removed":
        hosts.handle(1, Removed(Removal(hosts.controller_epoch, *P0)))
    else:
        hosts.handle(1, LogFailed(P0, "the disk"))
    assert reached(hosts)[2:] == [("a", LOST, 0), ("b", LOST, 1)]
    assert hosts.host(1).context.traced_batches == 0


def test_only_so_many_batches_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced, "TRACED_BATCHES_MAX", 2)
    hosts, follower = two()
    for number in range(3):
        hosts.produce(1, b"v", trace=number)
    assert reached(hosts) == [(0, APPENDED, 0), (1, APPENDED, 1), (2, APPENDED, 2), (2, LOST, 2)]
    hosts.fetch(1, 3, replica=follower, epoch=0, last_epoch=0)
    hosts.produce(1, b"v", trace=3)
    assert reached(hosts)[4:] == [(0, REPLICATED, 0), (1, REPLICATED, 1), (3, APPENDED, 3)]


def test_batches_that_nobody_follows_are_not_reported() -> None:
    hosts, follower = two()
    hosts.produce(1, b"0")
    hosts.fetch(1, 1, replica=follower, epoch=0, last_epoch=0)
    leader = hosts.replica(1).leader
    assert leader is not None and leader.traced is None and not hosts.traced
