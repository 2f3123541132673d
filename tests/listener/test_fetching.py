"""Fetch through a Broker: several owners, waiting, waking, sessions, and what happens when somebody goes away."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from outside import Client, fetch, parts, produce
from raw_requests import batch, eventually, isr_is_whole, nodes_of, part

from raylog.testing.in_process import InProcessCluster

pytestmark = pytest.mark.core

Open = Callable[..., Client]
NewTopicOf = Callable[..., str]
LONG_MS = 300_000


def awaited_bytes(running: InProcessCluster, topic: str) -> list[int]:
    """What consumers' requests wait for that are parked in the processes that hold the topic's partitions on broker 0."""

    async def collect() -> list[int]:
        return sorted(
            each.request.min_bytes
            for node, server in running.launcher.servers.items()
            if node >> 16 == 0
            and getattr(server, "_host", None) is not None
            and any(each.assignment.topic == topic for each in server._host.replicas.values())
            for each in server._host._parked.by_token.values()
            if each.request.replica_id < 0
        )

    return running.run(collect())


def parked(running: InProcessCluster, topic: str) -> int:
    """How many requests those are."""
    return len(awaited_bytes(running, topic))


def size_of(reply: Any) -> int:
    return sum(len(each.records or b"") for each in parts(reply).values())


def write(client: Client, topic: str, number: int, *values: bytes) -> None:
    (answer,) = client.ask(produce(topic, {number: batch(*values)}, acks=1)).responses[0].partition_responses
    assert answer.error_code is ErrorCode.none


def test_one_that_waits_is_woken_by_any_of_several_owners(client: Open, new_topic: NewTopicOf) -> None:
    topic = new_topic((0,), (0,), (0,))
    waiting = client().send(fetch(topic, {0: 0, 1: 0, 2: 0}, max_wait_ms=LONG_MS))
    eventually(lambda: parked(client()._running, topic) == 3, "a parked read at each owner")
    write(client(), topic, 2, b"v")
    reply = waiting.result(timeout_s=60)
    assert parts(reply)[2].records and sorted(parts(reply)) == [0, 1, 2]
    eventually(lambda: parked(client()._running, topic) == 0, "the other reads cancelled", timeout_s=60)


def test_one_that_waits_in_vain_is_answered_at_its_deadline(client: Open, new_topic: NewTopicOf) -> None:
    topic = new_topic((0,), (0,))
    for offsets in ({0: 0}, {0: 0, 1: 0}, {}):
        began = time.monotonic()
        reply = client().ask(fetch(topic, offsets, max_wait_ms=300))
        assert time.monotonic() - began > 0.29 and size_of(reply) == 0


def test_the_bytes_of_all_owners_count_together(client: Open, new_topic: NewTopicOf) -> None:
    topic = new_topic((0,), (0,), (0,))
    size = len(batch(b"x" * 100))
    offsets = {0: 0, 1: 0, 2: 0}
    waiting = client().send(fetch(topic, offsets, max_wait_ms=LONG_MS, min_bytes=4 * size))
    eventually(lambda: parked(client()._running, topic) == 3, "a parked read at each owner")
    for number in (0, 1, 0):
        write(client(), topic, number, b"x" * 100)
    share = -(-size // 3)  # of the quarter that is missing, each owner is asked for a third
    awaited = [share, size + share, 2 * size + share]
    eventually(lambda: awaited_bytes(client()._running, topic) == awaited, "reads that have seen three quarters")
    assert not waiting.done, "three quarters are not enough"
    write(client(), topic, 2, b"x" * 100)
    assert size_of(waiting.result(timeout_s=60)) == 4 * size
    eventually(lambda: parked(client()._running, topic) == 0, "nothing parked")


def test_no_more_than_max_bytes_leave_but_always_one_batch(client: Open, new_topic: NewTopicOf) -> None:
    topic = new_topic((0,), (0,), (0,))
    for number in range(3):
        write(client(), topic, number, b"x" * 1_000)
        write(client(), topic, number, b"y" * 1_000)
    size = len(batch(b"x" * 1_000))
    assert size_of(client().ask(fetch(topic, {0: 0, 1: 0, 2: 0}))) == 6 * size
    assert size_of(client().ask(fetch(topic, {0: 0, 1: 0, 2: 0}, max_bytes=3 * size))) == 3 * size
    assert size_of(client().ask(fetch(topic, {0: 0, 1: 0, 2: 0}, max_bytes=1))) == size


def test_an_error_is_not_waited_with(client: Open, new_topic: NewTopicOf) -> None:
    topic = new_topic((0,), (1,), (0,))
    refused = parts(client().ask(fetch(topic, {0: 0, 1: 0, 2: 0}, max_wait_ms=LONG_MS)))
    assert refused[1].error_code is ErrorCode.not_leader_or_follower
    beyond = parts(client().ask(fetch(topic, {0: 0, 2: 99}, max_wait_ms=LONG_MS)))
    assert beyond[2].error_code is ErrorCode.offset_out_of_range


def test_an_owner_that_dies_is_answered_for_at_once(
    running: InProcessCluster, client: Open, new_topic: NewTopicOf
) -> None:
    topic = new_topic((0, 1, 2), (0, 1, 2))
    waiting = client().send(fetch(topic, {0: 0, 1: 0}, max_wait_ms=LONG_MS))
    alone = client().send(fetch(topic, {0: 0}, max_wait_ms=LONG_MS))
    eventually(lambda: parked(running, topic) == 3, "parked reads")
    running.crash(part(running, topic, 0)["leader_node"])
    for each in (waiting, alone):
        assert parts(each.result(timeout_s=60))[0].error_code is ErrorCode.not_leader_or_follower
    eventually(lambda: isr_is_whole(running, topic, 2), "the replica back")


def test_who_hangs_up_leaves_nothing_parked(running: InProcessCluster, client: Open, new_topic: NewTopicOf) -> None:
    topic = new_topic((0,), (0,))
    mine = Client(running, 0)
    both = mine.send(fetch(topic, {0: 0, 1: 0}, max_wait_ms=LONG_MS))
    one = mine.send(fetch(topic, {0: 0}, max_wait_ms=LONG_MS))
    eventually(lambda: parked(running, topic) == 3, "parked reads")
    mine.close()
    eventually(lambda: parked(running, topic) == 0, "nothing parked", timeout_s=60)
    for each in (both, one):
        with pytest.raises(Exception, match="ended"):
            each.result()


def test_a_parked_fetch_holds_back_its_own_connection_only(client: Open, new_topic: NewTopicOf) -> None:
    topic = new_topic((0,))
    mine, other = client(), client()
    waiting = mine.send(fetch(topic, {0: 0}, max_wait_ms=LONG_MS))
    behind = mine.send(fetch(topic, {0: 0}))
    eventually(lambda: parked(mine._running, topic) == 1, "the parked read")
    assert size_of(other.ask(fetch(topic, {0: 0}))) == 0 and not behind.done
    write(other, topic, 0, b"v")
    assert size_of(waiting.result(60)) and behind.result(60)


def test_a_session_is_asked_only_for_what_changes_and_told_only_news(client: Open, new_topic: NewTopicOf) -> None:
    topic = new_topic((0,), (0,), (0,))
    for number in range(3):
        write(client(), topic, number, b"v")
    first = client().ask(fetch(topic, {0: 0, 1: 0, 2: 0}, session=(0, 0)))
    session = first.session_id
    assert session > 0 and sorted(parts(first)) == [0, 1, 2]
    second = client().ask(fetch(topic, {0: 1, 1: 1}, session=(session, 1), forgotten=(2,)))
    assert second.session_id == session and parts(second) == {}
    write(client(), topic, 1, b"w")
    write(client(), topic, 2, b"w")
    assert list(parts(client().ask(fetch(topic, {}, session=(session, 2))))) == [1]
    assert client().ask(fetch(topic, {}, session=(session, 9))).error_code is ErrorCode.invalid_fetch_session_epoch
    assert client().ask(fetch(topic, {}, session=(session + 1, 1))).error_code is ErrorCode.fetch_session_id_not_found
    ended = client().ask(fetch(topic, {0: 0}, session=(session, -1)))
    assert ended.session_id == 0 and list(parts(ended)) == [0]
    assert client().ask(fetch(topic, {}, session=(session, 3))).error_code is ErrorCode.fetch_session_id_not_found


def test_a_follower_on_this_broker_serves_who_names_a_rack(client: Open, new_topic: NewTopicOf) -> None:
    topic = new_topic((1, 0))
    write(client(1), topic, 0, b"v")
    eventually(lambda: size_of(client(0).ask(fetch(topic, {0: 0}, rack="here"))), "the follower's copy")
    assert parts(client(0).ask(fetch(topic, {0: 0})))[0].error_code is ErrorCode.not_leader_or_follower
    assert nodes_of(client()._running, topic).keys() == {0, 1}
