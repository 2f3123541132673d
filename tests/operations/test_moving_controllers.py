"""``raylog quorum move`` and ``raylog brokers remove`` where there are three controllers, with a cluster of its own."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode
from operating import Load

from raylog.errors import ClusterError, KafkaError, kafka_error
from raylog.testing.in_process import cluster

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def running():
    with cluster(brokers=4, controllers=3) as made:
        yield made


def controllers_of(operator):
    return sorted(operator.running.controllers)


def await_controllers(operator, *brokers):
    """Those that leave have gone when the command returns, and may still delete what they held."""
    operator.until(lambda: controllers_of(operator) == list(brokers))


def test_controllers_move_become_fewer_and_more_again(operator, raylog):
    code, said = raylog("quorum", "move", "--brokers", "1,2,3", "--json")
    assert (
        code == 0 and said["before"] == [0, 1, 2] and said["controllers"] == [1, 2, 3] and said["leader"] in (1, 2, 3)
    )
    await_controllers(operator, 1, 2, 3)
    code, said = raylog("quorum", "status")
    assert code == 0 and "Planned:                [1, 2, 3]" in said
    code, said = raylog("quorum", "move", "--count", "1")
    operator.until(lambda: len(controllers_of(operator)) == 1)
    (left,) = controllers_of(operator)
    assert said == f"The controllers are on broker {left}; that of broker {left} is active\n"
    assert raylog("quorum", "move", "--brokers", "0,1,2", "--json")[1]["before"] == [left]
    await_controllers(operator, 0, 1, 2)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ("--brokers 0,1", ErrorCode.invalid_request, "1, 3 or 5 controllers, not 2"),
        ("--brokers 0,1,9", ErrorCode.broker_id_not_registered, "broker 9 is not registered"),
        ("--brokers 0,1,1", ErrorCode.invalid_request, "broker 1 is named twice"),
        ("--count 2", ErrorCode.invalid_request, "1, 3 or 5 controllers, not 2"),
        ("--count 5", ErrorCode.invalid_request, "5 controllers need as many brokers, there are 4"),
    ],
)
def test_what_cannot_be_is_refused_by_name(operator, raylog, arguments, error, words):
    with pytest.raises(kafka_error(error), match=words):
        raylog("quorum", "move", *arguments.split())
    assert controllers_of(operator) == [0, 1, 2]


@pytest.mark.parametrize("arguments", ["", "--brokers 0 --count 1", "--brokers a,b"])
def test_one_of_the_two_options_is_wanted(raylog, arguments):
    assert raylog("quorum", "move", *arguments.split())[0] == 2


def test_controllers_that_are_not_there_in_time_go_on(operator, raylog):
    with pytest.raises(ClusterError, match=r"not on broker 1, 2, 3 yet: those of broker 0, 1, 2 vote; they go on"):
        raylog("quorum", "move", "--brokers", "1,2,3", "--timeout", "0")
    await_controllers(operator, 1, 2, 3)
    assert raylog("quorum", "move", "--brokers", "0,1,2", "--json")[0] == 0
    await_controllers(operator, 0, 1, 2)


def test_the_broker_of_the_active_controller_is_removed_under_load_its_controller_goes_to_the_fourth(operator, raylog):
    topic = operator.new_topic((0, 1, 2), (1, 2, 3), (2, 3, 0), (3, 0, 1), min_insync_replicas=2)
    active = operator.running.active
    with Load(operator, topic) as load:
        operator.until(lambda: len(load.acked) > 100)
        code, said = raylog("brokers", "remove", str(active), "--json")
        count = len(load.acked)
        operator.until(lambda: len(load.acked) > count + 100)
    rest = sorted({0, 1, 2, 3} - {active})
    assert code == 0 and said["unregistered"] and said["controllers"] == rest
    await_controllers(operator, *rest)
    assert load.errors == []
    assert sorted(load.read_back()) == load.acked
    assert [info.broker for info in operator.admin.describe_cluster().brokers] == rest


def test_where_no_other_broker_can_take_it_there_are_fewer_controllers(operator, raylog):
    with pytest.raises(KafkaError, match="has 3 replicas and there are 2 other brokers"):
        raylog("brokers", "remove", str(operator.running.active))
    assert len(controllers_of(operator)) == 3, "nothing is moved in vain"
    operator.admin.delete_topics(operator.admin.list_topics())
    topic = operator.new_topic(tuple(controllers_of(operator)[:2]))
    leaving = next(broker for broker in controllers_of(operator) if broker != operator.running.active)
    stays = operator.running.active
    with Load(operator, topic) as load:
        code, said = raylog("brokers", "remove", str(leaving))
        operator.until(lambda: len(load.acked) > 100)
    assert code == 0 and f"The controllers are on broker {stays}\n" in said
    await_controllers(operator, stays)
    assert load.errors == []
    assert sorted(load.read_back()) == load.acked
