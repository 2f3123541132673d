"""ListConfigResources (KIP-1142), which Kafka's tools ask what there is that has configs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from outside import Client, request
from raw_requests import eventually

from raylog.client.sync import AdminClient
from raylog.kafka import table
from raylog.metadata.configuration.config_requests import ResourceType
from raylog.testing.in_process import InProcessCluster

pytestmark = pytest.mark.core
KEY = table.LIST_CONFIG_RESOURCES.key
BROKERS = {"0", "1", "2"}


def listed(connection: Client, *kinds: int) -> dict[ResourceType, set[str]]:
    reply = connection.ask(request(KEY, 1, resource_types=kinds))
    assert reply.error_code is ErrorCode.none
    found: dict[ResourceType, set[str]] = {}
    for each in reply.config_resources:
        names = found.setdefault(ResourceType(each.resource_type), set())
        assert each.resource_name not in names
        names.add(each.resource_name)
    return found


def test_all_that_has_configs_is_listed_by_kind(
    running: InProcessCluster, client: Callable[..., Client], new_topic: Callable[..., str]
) -> None:
    name, one = new_topic((0,)), client()
    found = listed(one)
    assert set(found) == {ResourceType.TOPIC, ResourceType.BROKER, ResourceType.BROKER_LOGGER}
    assert name in found[ResourceType.TOPIC]
    assert found[ResourceType.BROKER] == found[ResourceType.BROKER_LOGGER] == BROKERS
    assert listed(one, 4, 4) == {ResourceType.BROKER: BROKERS}
    assert listed(one, 16, 32) == {}
    with AdminClient(running.address) as admin:
        admin.alter_client_metrics("of all", set={"metrics": "*"})
        eventually(lambda: listed(one, 16, 32) == {ResourceType.CLIENT_METRICS: {"of all"}}, "the subscription")
        assert [each.resource_name for each in one.ask(request(KEY, 0)).config_resources] == ["of all"]
        admin.alter_client_metrics("of all", delete=["metrics"])
    eventually(lambda: listed(one, 16) == {}, "no subscription")


def test_an_unknown_kind_is_refused_and_version_0_asks_for_clients_metrics(client: Callable[..., Client]) -> None:
    one = client()
    refused: Any = one.ask(request(KEY, 1, resource_types=(2, 99)))
    assert (refused.error_code, refused.config_resources) == (ErrorCode.unsupported_version, ())
    reply = one.ask(request(KEY, 0))
    assert (reply.error_code, reply.config_resources) == (ErrorCode.none, ())
