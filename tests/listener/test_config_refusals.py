"""Which error a config that cannot be set has, by what it would be set of and by who asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from outside import Client, request
from raw_requests import ask

from raylog.testing.in_process import InProcessCluster, cluster

pytestmark = pytest.mark.core

TOPIC, BROKER, GROUP = 2, 4, 32
INVALID_CONFIG, INVALID_REQUEST = ErrorCode.invalid_config, ErrorCode.invalid_request


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    with cluster(brokers=1) as found:
        client = Client(found, 0)
        client.ask(request(19, 5, topics=topics))
        client.close()
        yield found


def topics(module: Any) -> Any:
    return (module.CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=(), configs=()),)


def alteration(api_key: int, *resources: tuple[int, str, str, str]) -> Any:
    """Each sets one config of a resource."""
    set_it: dict[str, Any] = {"config_operation": 0} if api_key == 44 else {}

    def each(module: Any) -> Any:
        return tuple(
            module.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=(module.AlterableConfig(name=config, value=value, **set_it),),
            )
            for kind, name, config, value in resources
        )

    return request(api_key, 1, resources=each, validate_only=False)


@pytest.mark.parametrize("api_key", [33, 44])
def test_of_a_broker_it_is_an_invalid_request_and_of_all_else_an_invalid_config(
    running: InProcessCluster, api_key: int
) -> None:
    client = Client(running, 0)
    asked = alteration(
        api_key,
        (BROKER, "0", "log.retention.ms", "soon"),
        (TOPIC, "t", "retention.ms", "soon"),
        (BROKER, "", "node.id", "7"),
        (GROUP, "g", "consumer.session.timeout.ms", "50000"),
    )
    try:
        told = client.ask(asked).responses
    finally:
        client.close()
    assert [each.error_code for each in told] == [INVALID_REQUEST, INVALID_CONFIG, INVALID_REQUEST, INVALID_CONFIG]
    assert told[0].error_message == "log.retention.ms='soon' is no long: must be at least -1"
    assert [(each.resource_type, each.resource_name) for each in told] == [(4, "0"), (2, "t"), (4, ""), (32, "g")]


def test_of_a_broker_that_cannot_be_named_so_it_stays_what_it_is(running: InProcessCluster) -> None:
    client = Client(running, 0)
    try:
        (told,) = client.ask(alteration(44, (BROKER, "nobody", "log.retention.ms", "7"))).responses
        (done,) = client.ask(alteration(44, (BROKER, "0", "log.retention.ms", "7000"))).responses
    finally:
        client.close()
    assert told.error_code is ErrorCode.invalid_request
    assert (done.error_code, done.error_message) == (ErrorCode.none, None)


def test_the_clusters_own_programs_hear_of_an_invalid_config(running: InProcessCluster) -> None:
    asked = alteration(44, (BROKER, "0", "log.retention.ms", "soon"))
    (told,) = ask(running, running.controller._endpoint, asked).responses
    assert told.error_code is INVALID_CONFIG
