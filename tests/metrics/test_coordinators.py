"""Groups, transactions, flushes and compactions as the metrics count them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from outside import Client, produce
from raw_requests import batch, eventually
from scraping import scraped, summed

from raylog.client.sync import AdminClient, Consumer, Producer
from raylog.errors import RaylogError
from raylog.metrics import table
from raylog.metrics.metric import Metric
from raylog.testing.in_process import InProcessCluster
from raylog.types import Endpoint, TopicPartition

pytestmark = pytest.mark.core

At = dict[int, Endpoint]
NewTopicOf = Callable[..., str]


def total(at: At, metric: Metric) -> float:
    return summed(at, metric.name)


def test_a_group_is_counted_in_its_state_and_so_are_its_rebalances(
    running: InProcessCluster, at: At, new_topic: NewTopicOf
) -> None:
    topic = new_topic((0, 1))
    named = (table.GROUPS, table.STABLE_GROUPS, table.EMPTY_GROUPS, table.REBALANCES, table.COMPLETED_REBALANCES)
    before = [total(at, each) for each in named]

    def more() -> list[float]:
        return [total(at, each) - then for each, then in zip(named, before, strict=True)]

    with Consumer(running.address, group_id=f"of {topic}") as consumer:
        consumer.subscribe([topic])
        eventually(lambda: consumer.poll(0.1) or more() == [1, 1, 0, 1, 1], "a stable group after one rebalance")
    eventually(lambda: more() in ([1, 0, 1, 1, 1], [1, 0, 1, 2, 1]), "an empty group")
    assert total(at, table.PREPARING_GROUPS) == total(at, table.COMPLETING_GROUPS) == 0


def test_transactions_are_counted_by_how_they_end(running: InProcessCluster, at: At, new_topic: NewTopicOf) -> None:
    topic = new_topic((0, 1))
    named = (table.COMMITTED_TRANSACTIONS, table.ABORTED_TRANSACTIONS, table.TIMED_OUT_TRANSACTIONS)
    before = [total(at, each) for each in named]

    def more() -> list[float]:
        return [total(at, each) - then for each, then in zip(named, before, strict=True)]

    def lag() -> float:
        return summed(at, table.LAST_STABLE_OFFSET_LAG.name, topic, "0")

    with Producer(running.address, transactional_id=topic) as producer:
        with producer.transaction() as transaction:
            transaction.send(topic, b"v").result(60)
            transaction.send(topic, b"w").result(60)
            assert (total(at, table.OPEN_TRANSACTIONS), lag()) == (1, 2)
        eventually(lambda: (total(at, table.ENDING_TRANSACTIONS), lag()) == (0, 0), "the transaction to end")
        assert more() == [1, 0, 0] and total(at, table.OPEN_TRANSACTIONS) == 0
        with pytest.raises(ZeroDivisionError), producer.transaction() as transaction:
            transaction.send(topic, b"v").result(60)
            raise ZeroDivisionError
        eventually(lambda: more() == [1, 1, 0], "the abort")
    with (
        Producer(running.address, transactional_id=f"late {topic}", transaction_timeout_ms=500) as late,
        pytest.raises(RaylogError),
        late.transaction() as transaction,
    ):
        transaction.send(topic, b"v").result(60)
        eventually(lambda: more() == [1, 2, 1], "the transaction to time out")
    assert total(at, table.TRANSACTIONAL_IDS) >= 1


def test_a_flush_that_an_append_asks_for_is_counted_with_its_time(
    at: At, client: Callable[..., Client], new_topic: NewTopicOf
) -> None:
    topic, one, name = new_topic((0,), flush_messages="1", min_insync_replicas="1"), client(), table.FLUSH_TIME.name
    count, length = (summed(at, f"{name}_{what}") for what in ("count", "sum"))
    for _ in range(3):
        one.ask(produce(topic, {0: batch(b"v")}))
    assert summed(at, f"{name}_count") - count == 3 and summed(at, f"{name}_sum") > length


def test_a_compaction_is_counted_with_the_bytes_that_it_removed(
    running: InProcessCluster, at: At, new_topic: NewTopicOf
) -> None:
    topic = new_topic((0,), min_insync_replicas="1", cleanup_policy="compact", segment_bytes="1024")
    cleanings, removed = total(at, table.CLEANINGS), total(at, table.REMOVED_BYTES)
    with Producer(running.address) as producer:
        for _ in range(20):
            producer.send(topic, bytes(500), key=b"the same").result(60)
    with AdminClient(running.address) as admin:
        admin.alter_configs(topic=topic, set={"min.cleanable.dirty.ratio": "0.01"})
    eventually(lambda: total(at, table.CLEANINGS) > cleanings, "the log to be compacted")
    assert total(at, table.CLEANED_BYTES) > total(at, table.REMOVED_BYTES) > removed
    assert total(at, table.FAILED_CLEANINGS) == 0


def test_lag_in_seconds_grows_until_the_group_commits(
    running: InProcessCluster, at: At, client: Callable[..., Client], new_topic: NewTopicOf
) -> None:
    topic, group, one = new_topic((0, 1)), "slow readers", client()
    one.ask(produce(topic, {0: batch(b"v")}))
    with Consumer(running.address, group_id=group, enable_auto_commit=False) as consumer:
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.commit({place: 0})

        def lag_s() -> float:
            found = [scraped(each).get(table.LAG_SECONDS.name, {}).get((group, topic, "0")) for each in at.values()]
            (shown,) = [each for each in found if each is not None]
            return shown

        first = lag_s()
        eventually(lambda: lag_s() > first + 0.2, "the lag to grow")
        consumer.commit({place: 1})
        assert lag_s() == 0
