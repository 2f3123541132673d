"""What each controller shows of itself in the metrics of its broker, active or standby: three controllers, one that dies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from raw_requests import eventually
from scraping import Scraped, open_metrics, scraped

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient, call
from raylog.metrics import table
from raylog.metrics.metric import Metric
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import CONTROLLER_SLOT, Endpoint, node_id
from raylog.wire.private import PlanControllersRequest

pytestmark = pytest.mark.core
BROKERS = 4  # of which three hold a controller
At = dict[int, Endpoint]


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    with cluster(brokers=BROKERS, controllers=3) as found:
        yield found


@pytest.fixture(scope="module")
def at(running: InProcessCluster) -> At:
    return open_metrics(running, BROKERS)


def everywhere(at: At) -> dict[int, Scraped]:
    return {broker: scraped(each) for broker, each in at.items()}


def values(found: dict[int, Scraped], metric: Metric) -> dict[int, float]:
    """Of a metric without labels, by the broker that shows it."""
    return {broker: each[metric.name][()] for broker, each in found.items() if metric.name in each}


def states(found: dict[int, Scraped]) -> dict[int, list[str]]:
    return {
        broker: [state for (state,) in each[table.RAFT_STATE.name]]
        for broker, each in found.items()
        if table.RAFT_STATE.name in each
    }


def is_idle(running: InProcessCluster, at: At) -> dict[int, Scraped] | None:
    """What all brokers show once every controller has everything."""
    found = everywhere(at)
    lags = {voter: lag for each in found.values() for (voter,), lag in each.get(table.VOTER_LAG.name, {}).items()}
    applied = values(found, table.RAFT_LAG)
    is_so = set(lags.values()) == {0} and len(lags) == 3 and set(applied.values()) == {0} and len(applied) == 3
    knows = values(found, table.RAFT_HIGH_WATERMARK) == values(found, table.RAFT_END)  # followers hear of it later
    return found if is_so and knows else None


def test_all_controllers_show_where_they_are_and_exactly_one_is_active(running: InProcessCluster, at: At) -> None:
    with AdminClient(running.address) as admin:
        admin.create_topics([NewTopic("t", 3, 3)])
    found = eventually(lambda: is_idle(running, at), "no controller to lag")
    homes, active = sorted(running.controllers), running.active
    assert values(found, table.ACTIVE_CONTROLLERS) == {broker: float(broker == active) for broker in at}
    assert states(found) == {broker: ["leader" if broker == active else "follower"] for broker in homes}
    quorum = running.controllers[active]._controller.quorum
    for metric, expected in (
        (table.RAFT_LEADER, active),
        (table.RAFT_EPOCH, quorum.term),
        (table.RAFT_VOTERS, 3),
        (table.RAFT_END_EPOCH, quorum.log.last_term),
        (table.RAFT_OBSERVERS, 0),
        (table.UNREACHABLE_VOTERS, 0),
    ):
        shown = values(found, metric)
        assert shown == dict.fromkeys(homes, expected), metric.name
    ends = values(found, table.RAFT_END)
    assert set(ends) == set(homes) and len(set(ends.values())) == 1 and ends[active] > 0
    assert values(found, table.RAFT_HIGH_WATERMARK) == ends
    assert values(found, table.LAST_COMMITTED_RECORD) == values(found, table.LAST_APPLIED_RECORD) == ends
    assert all(count >= 1 for count in values(found, table.NEW_CONTROLLERS).values())


def test_a_standby_shows_what_it_uses(running: InProcessCluster, at: At) -> None:
    found = everywhere(at)
    for metric in (table.CPU_SECONDS, table.RESIDENT_MEMORY, table.OPEN_FILES, table.LOOP_DELAY):
        shown = {broker for broker in at if (str(node_id(broker, CONTROLLER_SLOT)),) in found[broker][metric.name]}
        assert shown == set(running.controllers), metric.name
    assert all(value == 0 for value in values(found, table.SILENT_PROCESSES).values())


def test_a_dead_standby_shows_and_so_does_its_return(running: InProcessCluster, at: At) -> None:
    eventually(lambda: is_idle(running, at), "no controller to lag")
    active = running.active
    dead = next(broker for broker in running.controllers if broker != active)
    running.crash_controller(dead)
    lost = eventually(
        lambda: next((found for found in [everywhere(at)] if _unreachable(found, active) == 1), None),
        "the active controller to miss one",
    )
    assert values(lost, table.SILENT_PROCESSES) == {broker: float(broker == dead) for broker in at}
    assert dead not in states(lost) and len(states(lost)) == 2
    assert (str(node_id(dead, CONTROLLER_SLOT)),) not in lost[dead][table.RESIDENT_MEMORY.name]
    with AdminClient(running.address) as admin:
        admin.create_topics([NewTopic("without-it", 3, 3)])
    eventually(lambda: _lag_of(everywhere(at)[active], dead) > 0, "the lag of the dead one to grow")
    running.start_controller(dead)
    back = eventually(lambda: is_idle(running, at), "it to have everything again")
    assert sorted(states(back)) == sorted(running.controllers)
    assert set(values(back, table.SILENT_PROCESSES).values()) == {0}


def test_a_new_active_controller_is_counted_and_shown(running: InProcessCluster, at: At) -> None:
    eventually(lambda: is_idle(running, at), "no controller to lag")
    before, dead = everywhere(at), running.active
    running.crash_controller(dead)
    running.await_true(lambda: running.active >= 0)
    running.start_controller(dead)
    after = eventually(lambda: is_idle(running, at), "all to follow the new one")
    assert values(after, table.ACTIVE_CONTROLLERS) == {broker: float(broker == running.active) for broker in at}
    assert values(after, table.RAFT_EPOCH)[dead] > values(before, table.RAFT_EPOCH)[dead]
    for broker in set(running.controllers) - {dead}:
        assert values(after, table.NEW_CONTROLLERS)[broker] > values(before, table.NEW_CONTROLLERS)[broker]


def test_a_broker_without_a_controller_asks_the_others_once_and_finds_its_own_when_it_gets_one(
    running: InProcessCluster, at: At
) -> None:
    def accepted() -> int:
        return sum(
            sum(controller._server.counts.created.values()) for broker, controller in running.controllers.items()
        )

    (without,) = set(at) - set(running.controllers)
    eventually(lambda: is_idle(running, at), "no controller to lag")
    before = accepted()
    for _ in range(5):
        assert table.RAFT_STATE.name not in scraped(at[without])
    assert accepted() == before
    former = next(broker for broker in running.controllers if broker != running.active)
    plan = sorted({*running.controllers, without} - {former})
    call(running.address, PlanControllersRequest(broker_ids=tuple(plan)), timeout_s=60)

    def has_moved() -> bool:
        """The former one has retired, and is not missed."""
        found = everywhere(at)
        return sorted(states(found)) == plan and values(found, table.SILENT_PROCESSES)[former] == 0

    eventually(has_moved, "the controller to be found where it has moved, and missed nowhere")


def _unreachable(found: dict[int, Scraped], active: int) -> float:
    return values(found, table.UNREACHABLE_VOTERS).get(active, 0)


def _lag_of(of_active: Scraped, voter: int) -> float:
    return of_active.get(table.VOTER_LAG.name, {}).get((str(voter),), 0)
