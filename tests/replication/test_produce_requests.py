"""Produce requests whose records a thread checks first: nothing overtakes them in their partitions, nothing is lost behind them."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from kio.schema.errors import ErrorCode

from raylog.control.session import Removal
from raylog.records.batch import batches
from raylog.records.codec import decode, encode
from raylog.replication.context import HostConfig
from raylog.replication.events import Cancelled, ProducePartition, ProduceReceived, ProduceReply, Removed
from raylog.simulator.replica_hosts import P0, WALL_MS, Hosts, batch
from raylog.types import TopicIdPartition

P1 = TopicIdPartition(P0.topic_id, 1)
LARGE = 300
"""Bytes of a value from which on these hosts have a batch checked by a thread."""


def one_host(*ids: TopicIdPartition, brokers: tuple[int, ...] = (1,)) -> Hosts:
    hosts = Hosts(brokers, HostConfig(walked_bytes_max=LARGE))
    hosts.holds_checks = True
    for id in ids or (P0,):
        hosts.assign(1, brokers, id=id, config={"segment.index.bytes": "4096"})
    return hosts


def values_of(hosts: Hosts, id: TopicIdPartition = P0, broker: int = 1) -> list[bytes]:
    """The beginnings of the values in the log."""
    log = hosts.log(broker, id)
    if not log.log_end_offset:
        return []
    stored = batches(log.read(0, 1 << 24).records)
    return [(record.value or b"").rstrip(b".") for view in stored for record in decode(view)]


def large(name: bytes) -> bytes:
    return name.ljust(LARGE, b".")


def test_a_batch_that_takes_long_to_check_is_appended_when_it_is_checked_and_later_ones_behind_it() -> None:
    hosts = one_host(P0, P1)
    first = hosts.produce(1, large(b"a"))
    second = hosts.produce(1, b"b")
    other = hosts.produce(1, b"other", id=P1)
    assert values_of(hosts) == [] and values_of(hosts, P1) == [b"other"]
    assert [token in hosts.replies for token in (first, second, other)] == [False, False, True]
    assert hosts.host(1).holds(first) and hosts.host(1).holds(second) and not hosts.host(1).holds(other)
    hosts.finish_check()
    assert values_of(hosts) == [b"a", b"b"]
    answers = [hosts.produced(token) for token in (first, second)]
    assert [answer.base_offset for answer in answers if answer is not None] == [0, 1]
    assert not hosts.host(1).holds(first)


def test_checks_may_end_in_any_order() -> None:
    hosts = one_host(P0, P1)
    both = hosts.token()
    parts = (
        ProducePartition(P1, batch(large(b"x"), timestamp_ms=WALL_MS)),
        ProducePartition(P0, batch(b"y", timestamp_ms=WALL_MS)),
    )
    hosts.produce(1, large(b"a"))
    hosts.handle(1, ProduceReceived(both, -1, 1000, parts))
    hosts.produce(1, large(b"c"), id=P1)
    hosts.produce(1, b"d")
    for number in (2, 1):
        hosts.finish_check(number)
        assert values_of(hosts) == values_of(hosts, P1) == []
    hosts.finish_check()
    assert values_of(hosts) == [b"a", b"y", b"d"] and values_of(hosts, P1) == [b"x", b"c"]
    reply = hosts.replies[both]
    assert isinstance(reply, ProduceReply) and [each.base_offset for each in reply.partitions] == [0, 1]


def test_one_request_may_name_a_partition_twice() -> None:
    hosts = one_host()
    token = hosts.token()
    parts = tuple(ProducePartition(P0, batch(large(name), timestamp_ms=WALL_MS)) for name in (b"a", b"b"))
    hosts.handle(1, ProduceReceived(token, -1, 1000, parts))
    hosts.finish_check(1)
    hosts.finish_check()
    assert values_of(hosts) == [b"a", b"b"]


def test_who_leads_is_asked_when_the_check_is_done() -> None:
    hosts = one_host(brokers=(1, 2))
    moved = hosts.produce(1, large(b"a"))
    hosts.assign(2, (1, 2), epoch=1)
    hosts.finish_check()
    answer = hosts.produced(moved)
    assert answer is not None and answer.error == ErrorCode.not_leader_or_follower.value
    gone = hosts.produce(2, large(b"b"))
    behind = hosts.produce(2, b"c")
    hosts.handle(2, Removed(Removal(1, *P0)))
    hosts.finish_check()
    for token in (gone, behind):
        answer = hosts.produced(token)
        assert answer is not None and answer.error == ErrorCode.unknown_topic_or_partition.value
    assert not hosts.host(2).holds(gone)


def test_a_request_whose_client_went_away_is_appended_all_the_same() -> None:
    hosts = one_host()
    gone = hosts.produce(1, large(b"a"), acks=1)
    unanswered = hosts.produce(1, large(b"b"), acks=0)
    hosts.handle(1, Cancelled(gone))
    assert hosts.host(1).holds(gone) and hosts.host(1).holds(unanswered)
    hosts.finish_check()
    hosts.finish_check()
    assert values_of(hosts) == [b"a", b"b"] and unanswered not in hosts.replies


def test_a_configuration_that_changed_meanwhile_holds() -> None:
    hosts = one_host()
    keyless = hosts.produce(1, large(b"a"))
    hosts.assign(1, (1,), config={"cleanup.policy": "compact"})
    hosts.finish_check()
    answer = hosts.produced(keyless)
    assert answer is not None and answer.error == ErrorCode.invalid_record.value
    assert [error.index for error in answer.record_errors] == [0] and "without a key" in (answer.message or "")


@pytest.mark.parametrize("value", [b"small", large(b"large")])
def test_a_refusal_names_the_records_whoever_found_them(value: bytes) -> None:
    hosts = one_host()
    hosts.holds_checks = False
    hosts.assign(1, (1,), config={"cleanup.policy": "compact"})
    token = hosts.token()
    records = encode([(WALL_MS, key, value, ()) for key in (b"k", None, b"k", None)])
    hosts.handle(1, ProduceReceived(token, -1, 1000, (ProducePartition(P0, records),)))
    answer = hosts.produced(token)
    assert answer is not None and answer.error == ErrorCode.invalid_record.value
    assert [error.index for error in answer.record_errors] == [1, 3]


def test_several_batches_for_one_partition_are_refused_whole() -> None:
    hosts = one_host(P0, P1)
    hosts.holds_checks = False
    token = hosts.token()
    one, two = batch(b"a", timestamp_ms=WALL_MS), batch(large(b"b"), timestamp_ms=WALL_MS)
    hosts.handle(1, ProduceReceived(token, -1, 1000, (ProducePartition(P0, one + two), ProducePartition(P1, two))))
    reply = hosts.replies[token]
    assert isinstance(reply, ProduceReply)
    assert [each.error for each in reply.partitions] == [ErrorCode.invalid_record.value, 0]
    assert "one record batch" in (reply.partitions[0].message or "")
    assert values_of(hosts) == [] and values_of(hosts, P1) == [b"b"]


class Lines(RuleBasedStateMachine):
    """Requests of one or two partitions, some of them checked apart: each partition's log has what came, in that order."""

    def __init__(self) -> None:
        super().__init__()
        self.hosts = one_host(P0, P1)
        self.came: dict[TopicIdPartition, list[bytes]] = {P0: [], P1: []}
        self.count = 0

    @rule(
        ids=st.lists(st.sampled_from((P0, P1)), min_size=1, max_size=3),
        sizes=st.lists(st.booleans(), min_size=3, max_size=3),
    )
    def produce(self, ids: list[TopicIdPartition], sizes: list[bool]) -> None:
        parts = []
        for id, is_large in zip(ids, sizes, strict=False):
            self.count += 1
            name = b"%d" % self.count
            self.came[id].append(name)
            records = batch(large(name) if is_large else name, timestamp_ms=WALL_MS)
            parts.append(ProducePartition(id, records))
        self.hosts.handle(1, ProduceReceived(self.hosts.token(), -1, 1000, tuple(parts)))

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        if self.hosts.checks:
            self.hosts.finish_check(data.draw(st.integers(0, len(self.hosts.checks) - 1)))

    @invariant()
    def each_log_has_the_first_of_what_came(self) -> None:
        for id, came in self.came.items():
            stored = values_of(self.hosts, id)
            assert stored == came[: len(stored)]

    def teardown(self) -> None:
        while self.hosts.checks:
            self.hosts.finish_check()
        assert {id: values_of(self.hosts, id) for id in self.came} == self.came
        assert len(self.hosts.replies) == self.hosts.token() - 1


Lines.TestCase.settings = settings(max_examples=40, stateful_step_count=15)
test_every_partition_keeps_its_order = Lines.TestCase
