"""``raylog brokers remove`` against real servers, with a cluster of its own."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode
from operating import Load

from raylog.errors import ClusterError, kafka_error

pytestmark = pytest.mark.core


def test_a_broker_is_emptied_under_load_and_forgotten(operator, raylog):
    topic = operator.new_topic((3, 1), (1, 2), (2, 3), min_insync_replicas=2)
    with Load(operator, topic) as load:
        operator.until(lambda: len(load.acked) > 100)
        code, said = raylog("brokers", "remove", "3", "--json")
        count = len(load.acked)
        operator.until(lambda: len(load.acked) > count + 100)
    assert code == 0 and said["unregistered"]
    assert sorted(each["partition"] for each in said["moved"]) == [0, 2]
    assert load.errors == []
    assert sorted(load.read_back()) == load.acked
    parts = operator.partitions(topic)
    assert all(3 not in part.replicas and len(part.isr) == 2 for part in parts)
    assert parts[1].replicas == (1, 2), "what it did not hold is where it was"
    assert not [each for each in operator.folders(topic) if each.startswith("3/")]
    assert [info.broker for info in operator.admin.describe_cluster().brokers] == [0, 1, 2]
    operator.until(lambda: not [node for node in operator.running.controller.live_nodes() if node >> 16 == 3])
    with pytest.raises(kafka_error(ErrorCode.broker_id_not_registered)):
        operator.admin.unregister_broker(3)


def controllers_of(operator):
    return sorted(operator.running.controllers)


def test_a_broker_that_holds_the_controller_is_removed_under_load_and_nothing_is_lost(operator, raylog):
    topic = operator.new_topic((0, 1), (1, 2), (2, 0), min_insync_replicas=2)
    assert controllers_of(operator) == [0]
    with Load(operator, topic) as load:
        operator.until(lambda: len(load.acked) > 100)
        code, said = raylog("brokers", "remove", "0", "--json")
        count = len(load.acked)
        operator.until(lambda: len(load.acked) > count + 100)
    assert code == 0 and said["unregistered"] and said["controllers"] == [1]
    assert load.errors == []
    assert sorted(load.read_back()) == load.acked
    operator.until(lambda: controllers_of(operator) == [1])
    assert [info.broker for info in operator.admin.describe_cluster().brokers] == [1, 2]
    assert all(0 not in part.replicas and len(part.isr) == 2 for part in operator.partitions(topic))


def test_the_last_broker_keeps_the_controller_and_nothing_is_moved_in_vain(operator, raylog):
    assert controllers_of(operator) == [1]
    operator.admin.delete_topics(operator.admin.list_topics())
    raylog("brokers", "drain", "2", "--timeout", "0", "--json")
    with pytest.raises(ClusterError, match="no other broker is live to take it"):
        raylog("brokers", "remove", "1")
    raylog("brokers", "undrain", "2")
    assert not [each for each in raylog("brokers", "list", "--json")[1] if each["draining"]]
    with pytest.raises(kafka_error(ErrorCode.invalid_request), match="a controller of the cluster lives on broker 1"):
        operator.admin.unregister_broker(1)
