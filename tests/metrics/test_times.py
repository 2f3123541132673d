"""Every request of a client has its time, on whatever way it takes, and no other request has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from outside import Client, fetch, metadata, produce
from raw_requests import batch, nodes_of
from raw_requests import produce as produce_inside
from scraping import scraped

from raylog.listener.moves import PATIENCE
from raylog.metrics import table
from raylog.metrics.metric import Metric
from raylog.testing.in_process import InProcessCluster
from raylog.types import Endpoint

pytestmark = pytest.mark.core

At = dict[int, Endpoint]
Open = Callable[..., Client]


def of(at: At, metric: Metric, request: str) -> tuple[float, float]:
    """How often, and milliseconds in all, at all brokers."""
    found = [scraped(each) for each in at.values()]
    count, total = (
        sum(each.get(f"{metric.name}_{what}", {}).get((request,), 0) for each in found) for what in ("count", "sum")
    )
    return count, total


def requests(at: At, request: str) -> float:
    found = [scraped(each).get(table.REQUESTS.name, {}) for each in at.values()]
    return sum(count for series in found for labels, count in series.items() if labels[0] == request)


@pytest.mark.parametrize("acks", [1, -1])
def test_each_produce_has_a_time_also_those_of_a_connection_that_moves(
    at: At, client: Open, new_topic: Callable[..., str], acks: int
) -> None:
    topic, one, times = new_topic((0, 1)), client(), 8 * PATIENCE
    (count, total), before = of(at, table.TOTAL_TIME, "Produce"), requests(at, "Produce")
    for _ in range(times):
        one.ask(produce(topic, {0: batch(b"v")}, acks=acks))
    counted, all_ms = of(at, table.TOTAL_TIME, "Produce")
    assert counted - count == requests(at, "Produce") - before == times
    assert all_ms - total > 0


def test_a_request_of_a_native_client_has_its_time_and_those_inside_have_none(
    running: InProcessCluster, at: At, new_topic: Callable[..., str]
) -> None:
    topic = new_topic((1, 0))
    (count, _), fetches = of(at, table.TOTAL_TIME, "Produce"), of(at, table.TOTAL_TIME, "Fetch")
    produce_inside(running, nodes_of(running, topic)[1], topic, batch(b"v"))
    assert of(at, table.TOTAL_TIME, "Produce")[0] == count + 1
    assert of(at, table.TOTAL_TIME, "Fetch") == fetches, "the follower's fetches are no client's"
    assert of(at, table.TOTAL_TIME, "CollectMetrics") == (0, 0)


def test_a_fetch_that_waits_takes_long_in_all_and_little_here(
    at: At, client: Open, new_topic: Callable[..., str]
) -> None:
    topic, one = new_topic((0, 1)), client()
    one.ask(produce(topic, {0: batch(b"v")}))
    one.ask(metadata(topic))
    before = of(at, table.TOTAL_TIME, "Fetch"), of(at, table.LOCAL_TIME, "Fetch")
    one.ask(fetch(topic, {0: 1}, max_wait_ms=300))
    after = of(at, table.TOTAL_TIME, "Fetch"), of(at, table.LOCAL_TIME, "Fetch")
    (count, total_ms), (local, local_ms) = (
        (now[0] - then[0], now[1] - then[1]) for now, then in zip(after, before, strict=True)
    )
    assert (count, local) == (1, 1)
    assert total_ms >= 299 and local_ms < total_ms


def test_a_client_that_is_throttled_is_counted_with_what_it_was_told(
    at: At, client: Open, new_topic: Callable[..., str], throttled: Callable[[Client, str], float]
) -> None:
    count, total_ms = of(at, table.THROTTLE_TIME, "Produce")
    told_ms = throttled(client(), new_topic((0, 1)))
    assert of(at, table.THROTTLE_TIME, "Produce") == (count + 1, pytest.approx(total_ms + told_ms))


def test_a_request_that_the_broker_answers_at_once_has_its_time_in_all_and_here(at: At, client: Open) -> None:
    before = [of(at, metric, "Metadata")[0] for metric in (table.TOTAL_TIME, table.LOCAL_TIME)]
    client().ask(metadata())
    after = [of(at, metric, "Metadata")[0] for metric in (table.TOTAL_TIME, table.LOCAL_TIME)]
    assert [now - then for now, then in zip(after, before, strict=True)] == [1, 1]
