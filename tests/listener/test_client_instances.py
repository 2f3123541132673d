"""What a Broker answers client instances that push metrics, by Apache Kafka's rules (KIP-714)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from kio.schema.errors import ErrorCode

from raylog.configs.client_metrics_configs import SELECTORS
from raylog.listener import client_instances
from raylog.listener.client_instances import ClientInstance, ClientInstances, shown_id, subscription_id

A = uuid.UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6")
KNOWN_BY = dict.fromkeys(SELECTORS[1:], "") | {"client_id": "app"}
ALL = {"all": (("interval.ms", "1000"), ("metrics", "*"))}
NONE, THROTTLED = ErrorCode.none, ErrorCode.throttling_quota_exceeded
UNKNOWN, INVALID = ErrorCode.unknown_subscription_id, ErrorCode.invalid_request


def numbers() -> Iterator[int]:
    yield from range(1, 1_000_000)


class World:
    def __init__(self, configs: client_instances.SetConfigs = ALL) -> None:
        ids = numbers()
        self.instances = ClientInstances(lambda: uuid.UUID(int=next(ids)))
        self.instances.follow(configs)

    def ask(self, now_ms: int, id: uuid.UUID | None = A) -> ErrorCode:
        return self.instances.ask(id, KNOWN_BY, now_ms)[1]

    def subscribed(self, now_ms: int = 0, id: uuid.UUID | None = A) -> ClientInstance:
        instance, error = self.instances.ask(id, KNOWN_BY, now_ms)
        assert error is NONE
        return instance

    def push(self, now_ms: int, **given: object) -> ErrorCode:
        values = {"subscription_id": subscription_id(("*",), 1_000, A), "compression": 0, "size": 1, "size_max": 100}
        values |= {"is_terminating": False, "id": A} | given
        return self.instances.push(values.pop("id"), KNOWN_BY, now_ms, **values)[1]  # type: ignore[arg-type]


def test_a_new_client_gets_an_id_and_a_known_one_keeps_its_own() -> None:
    world = World()
    assert world.subscribed(id=None).id == uuid.UUID(int=1)
    assert world.subscribed(id=None).id == uuid.UUID(int=2)
    assert world.subscribed().id == A


def test_matching_subscriptions_are_joined_with_the_shortest_interval() -> None:
    configs = {
        "one": (("interval.ms", "5000"), ("metrics", "org.b,org.a")),
        "other": (("interval.ms", "2000"), ("match", "client_id=a.*"), ("metrics", "org.c,org.a")),
        "no match": (("interval.ms", "100"), ("match", "client_id=b"), ("metrics", "*")),
    }
    found = World(configs).subscribed()
    assert (found.metrics, found.interval_ms) == (("org.a", "org.b", "org.c"), 2_000)
    everything = World(configs | ALL).subscribed()
    assert (everything.metrics, everything.interval_ms) == (("*",), 1_000)
    nothing = World({}).subscribed()
    assert (nothing.metrics, nothing.interval_ms) == ((), 300_000)


def test_a_subscription_can_name_one_client_instance() -> None:
    world = World({"one": (("match", f"client_instance_id={shown_id(A)}"), ("metrics", "*"))})
    assert world.subscribed().metrics == ("*",) and world.subscribed(id=None).metrics == ()


def test_the_subscription_id_is_apache_kafkas() -> None:
    """Taken from ClientMetricsManager.computeSubscriptionId of Apache Kafka 3.9.1."""
    assert subscription_id(("*",), 1_000, uuid.UUID(int=0)) == 848016057
    assert subscription_id(("*",), 1_000, A) == -654211183
    assert subscription_id(("a",), 300_000, A) == 1419801226


def test_a_client_asks_again_only_after_its_interval() -> None:
    world = World()
    assert [world.ask(now_ms) for now_ms in (0, 999, 1_000)] == [NONE, THROTTLED, NONE]
    assert world.push(1_500) is NONE
    assert [world.ask(now_ms) for now_ms in (2_499, 2_500)] == [THROTTLED, NONE]
    assert world.instances.throttled == 2


def test_a_client_pushes_once_after_asking_and_then_once_each_interval() -> None:
    world = World()
    world.subscribed(0)
    assert [world.push(now_ms) for now_ms in (1, 2, 1_000, 1_001)] == [NONE, THROTTLED, THROTTLED, NONE]
    world.subscribed(2_001)
    assert world.push(2_002) is NONE


def test_the_last_push_may_come_early_and_none_after_it() -> None:
    world = World()
    world.subscribed(0)
    assert world.push(1) is NONE
    assert world.push(2, is_terminating=True) is NONE
    assert world.push(5_000) is INVALID and world.push(10_000, is_terminating=True) is INVALID


def test_another_subscription_is_told_and_may_be_asked_for_at_once() -> None:
    world = World()
    before = world.subscribed(0)
    assert world.push(1) is NONE
    world.instances.follow({"all": (("interval.ms", "2000"), ("metrics", "*"))})
    assert world.push(2_001, subscription_id=before.subscription_id) is not NONE
    assert world.ask(2_002) is NONE
    assert world.push(2_003, subscription_id=subscription_id(("*",), 2_000, A)) is NONE
    assert (world.instances.unknown_subscriptions, world.instances.throttled) == (1, 0)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"id": None}, INVALID),
        ({"subscription_id": 7}, UNKNOWN),
        ({"compression": 5}, ErrorCode.unsupported_compression_type),
        ({"compression": -1}, ErrorCode.unsupported_compression_type),
        ({"size": 101}, ErrorCode.telemetry_too_large),
        ({"size": 100, "compression": 4}, NONE),
    ],
)
def test_a_push_is_judged(given: dict[str, object], error: ErrorCode) -> None:
    world = World()
    world.subscribed(0)
    assert world.push(1, **given) is error


def test_a_push_to_a_broker_that_does_not_know_the_instance_is_taken() -> None:
    assert World().push(0) is NONE


def test_the_instances_that_were_away_longest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_instances, "INSTANCES_MAX", 2)
    world = World()
    one, two, three = (uuid.UUID(int=100 + number) for number in range(3))
    for now_ms, id in enumerate((one, two)):
        world.subscribed(now_ms, id)
    assert world.ask(2, one) is THROTTLED  # it is the newer one now
    world.subscribed(3, three)
    assert len(world.instances) == 2
    assert world.ask(4, one) is THROTTLED
    assert world.ask(5, two) is NONE, "it was forgotten"
