"""Subscriptions to client metrics as configs of a kind of resource, decided by a controller."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from raylog.configs.client_metrics_configs import SELECTORS, subscription_of
from raylog.metadata.configuration.config_requests import (
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    ConfigQuery,
    DescribeConfigs,
    ResourceChanges,
    ResourceType,
)
from raylog.metadata.records import ConfiguredKind, decode_batch, encode_batch

KIND = ResourceType.CLIENT_METRICS
OF_ALL = (ConfiguredKind.CLIENT_METRICS, "all")
SET, DELETE = ConfigOperation.SET, ConfigOperation.DELETE


def alter(world, *changes, name="all", replaces=False):
    asked = ResourceChanges(KIND, name, tuple(ConfigChange(*change) for change in changes), replaces)
    return world.ask(AlterConfigs((asked,))).resources[0]


def described(world, name="all"):
    (found,) = world.ask(DescribeConfigs((ConfigQuery(KIND, name),))).resources
    assert found.error == 0, found
    return {entry.name: (entry.value, entry.source) for entry in found.entries}


def test_a_subscription_is_set_described_and_gone_with_its_last_config(world):
    assert described(world) == {"interval.ms": ("300000", 5), "match": ("", 5), "metrics": ("", 5)}
    assert alter(world, ("metrics", SET, "org.a, org.b"), ("interval.ms", SET, "100")).error == 0
    assert described(world) == {"interval.ms": ("100", 7), "match": ("", 5), "metrics": ("org.a, org.b", 7)}
    assert alter(world, ("metrics", ConfigOperation.APPEND, "org.c")).error == 0
    assert world.image.resource_configs[OF_ALL]["metrics"] == "org.a, org.b,org.c"
    assert alter(world, ("match", SET, "client_id=a"), replaces=True).error == 0
    assert world.image.resource_configs == {OF_ALL: {"match": "client_id=a"}}
    assert alter(world, ("match", DELETE)).error == 0
    assert world.image.resource_configs == {}


def test_the_records_survive_their_bytes(world):
    alter(world, ("metrics", SET, "*"))
    records = tuple(world.image.records())
    assert decode_batch(encode_batch(records)) == records


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("interval.ms", "99", ErrorCode.invalid_request),
        ("interval.ms", "3600001", ErrorCode.invalid_request),
        ("interval.ms", "soon", ErrorCode.invalid_request),
        ("intervall.ms", "100", ErrorCode.invalid_request),
        ("match", "client_id", ErrorCode.invalid_config),
        ("match", "client_id=a=b", ErrorCode.invalid_config),
        ("match", "client_id=", ErrorCode.invalid_config),
        ("match", "client_color=red", ErrorCode.invalid_config),
        ("match", "client_id=(", ErrorCode.invalid_config),
    ],
)
def test_what_is_no_config_of_a_subscription_is_refused_and_changes_nothing(world, key, value, error):
    refused = alter(world, ("metrics", SET, "*"), (key, SET, value))
    assert refused.error == error and refused.message
    assert world.image.resource_configs == {}


def test_a_subscription_needs_a_name(world):
    assert alter(world, ("metrics", SET, "*"), name="").error == ErrorCode.invalid_request
    (found,) = world.ask(DescribeConfigs((ConfigQuery(KIND, ""),))).resources
    assert found.error == ErrorCode.invalid_request


CLIENT = dict.fromkeys(SELECTORS, "") | {"client_id": "orders-7", "client_source_address": "10.0.0.7"}


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        ("", True),
        ("client_id=orders-.", True),
        ("client_id=orders", False),  # the whole of it must match
        ("client_id=orders-[0-9]+,client_source_address=10\\..*", True),
        ("client_id=orders-[0-9]+,client_source_address=10\\.1\\..*", False),
        ("client_software_name=librdkafka", False),
    ],
)
def test_a_client_matches_if_all_patterns_match_the_whole(match, matches):
    assert subscription_of((("match", match),)).matches(CLIENT) is matches
