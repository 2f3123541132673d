"""``raylog brokers`` against real servers: draining under load, and undraining."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode
from operating import NO_TIMEOUT_MS, Load

from raylog.errors import kafka_error

pytestmark = pytest.mark.core


@pytest.fixture(autouse=True)
def undrained(operator):
    yield
    for info in operator.admin.describe_cluster().brokers:
        operator.admin.undrain_broker(info.broker)


def test_draining_moves_leaders_without_an_error_for_a_producer(operator, raylog):
    topic = operator.new_topic((1, 2, 3), min_insync_replicas=2)
    with Load(operator, topic) as load:
        operator.until(lambda: len(load.acked) > 100)
        code, said = raylog("brokers", "drain", "1", "--json")
        count = len(load.acked)
        operator.until(lambda: len(load.acked) > count + 100)
    assert code == 0 and {"topic": topic, "partition": 0} in said["moved"] and said["remaining"] == []
    assert operator.partition(topic).leader == 2
    assert load.errors == []
    assert load.read_back() == load.acked
    assert max(load.pauses_ms) < NO_TIMEOUT_MS, sorted(load.pauses_ms)[-5:]


def test_undraining_lets_leaders_return_by_election(operator, raylog):
    topic = operator.new_topic((1, 2, 3))
    assert raylog("brokers", "drain", "1")[0] == 0
    command = ("leader-election", "--election-type", "preferred", "--topic", topic, "--partition", "0")
    code, text = raylog(*command)
    assert code == 1 and "being drained" in text
    code, text = raylog("brokers", "undrain", "1")
    assert code == 0 and "raylog leader-election" in text
    assert raylog(*command)[0] == 0
    operator.until(lambda: operator.partition(topic).leader == 1)


def test_what_nobody_else_can_lead_is_named_and_the_exit_code_says_so(operator, raylog):
    topic = operator.new_topic((3,))
    code, text = raylog("brokers", "drain", "3", "--timeout", "0.3")
    assert code == 1 and f"{topic}-0: nobody else is in sync" in text
    assert operator.partition(topic).leader == 3


def test_brokers_are_listed_with_what_they_hold(operator, raylog):
    operator.new_topic((2, 1))
    raylog("brokers", "drain", "0")
    listed = raylog("brokers", "list", "--json")[1]
    assert [(each["broker"], each["draining"]) for each in listed] == [(0, True), (1, False), (2, False), (3, False)]
    assert listed[2]["leads"] >= 1 and listed[1]["replicas"] >= 1
    assert "draining" in raylog("brokers", "list")[1]


def test_a_broker_that_is_not_there_is_named(operator):
    with pytest.raises(kafka_error(ErrorCode.broker_id_not_registered), match="broker 77"):
        operator.admin.drain_broker(77)


def test_a_broker_is_refused_to_be_forgotten_while_something_lives_on_it(operator):
    operator.new_topic((3, 1))
    with pytest.raises(kafka_error(ErrorCode.invalid_request), match="raylog brokers remove 3"):
        operator.admin.unregister_broker(3)
