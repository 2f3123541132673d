"""Configs as Kafka's requests and answers, in each version that is spoken."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from raylog.errors import kafka_error
from raylog.kafka import table
from raylog.kafka.refusal import refusal
from raylog.metadata.configuration.config_requests import (
    AlterConfigs,
    ConfigChange,
    ConfigDescription,
    ConfigOperation,
    ConfigQuery,
    ConfigsAltered,
    ConfigsDescribed,
    DescribeConfigs,
    DescribedConfig,
    DescribedSynonym,
    ResourceChanges,
    ResourceOutcome,
    ResourceType,
)
from raylog.server.apis import configs
from raylog.server.apis.entities import module_of, request_class

BY_SPEC = {api.spec: api for api in configs.APIS}
ENTRY = DescribedConfig(
    "retention.ms",
    (DescribedSynonym("retention.ms", "7", 1), DescribedSynonym("log.retention.ms", "604800000", 5)),
    5,
    "how long",
    read_only=True,
)


def refused(spec, version, body):
    return refusal(spec, version, body, ErrorCode.not_controller, "another one decides")


def describe(version, *, synonyms=True, documentation=True):
    cls = request_class(table.DESCRIBE_CONFIGS, version)
    module = module_of(cls)
    resources = (
        module.DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=("retention.ms",)),
        module.DescribeConfigsResource(resource_type=8, resource_name="1", configuration_keys=None),
    )
    extra = {"include_documentation": documentation} if version >= 3 else {}
    return cls(resources=resources, include_synonyms=synonyms, **extra)


@pytest.mark.parametrize("version", list(table.DESCRIBE_CONFIGS.versions))
def test_describing(version):
    api = BY_SPEC[table.DESCRIBE_CONFIGS]
    body = describe(version)
    topic, logger = (
        ConfigQuery(ResourceType.TOPIC, "t", ("retention.ms",)),
        ConfigQuery(ResourceType.BROKER_LOGGER, "1"),
    )
    assert api.to_request(body, version) == DescribeConfigs((topic, logger))
    found = ConfigsDescribed(
        (
            ConfigDescription(ResourceType.TOPIC, "t", entries=(ENTRY,)),
            ConfigDescription(8, "1", ErrorCode.invalid_request, "no"),
        )
    )
    entity = api.to_entity(body, found, version)
    (entry,) = entity.results[0].configs
    assert (entry.name, entry.value, entry.config_source, entry.read_only) == ("retention.ms", "7", 1, True)
    assert [(each.name, each.value, each.source) for each in entry.synonyms] == [
        ("retention.ms", "7", 1),
        ("log.retention.ms", "604800000", 5),
    ]
    if version >= 3:
        assert (entry.config_type, entry.documentation) == (5, "how long")
    assert (entity.results[1].error_code, entity.results[1].resource_type) == (ErrorCode.invalid_request, 8)
    assert {each.error_code for each in refused(api.spec, version, body).results} == {ErrorCode.not_controller}


def test_synonyms_and_documentation_come_only_where_they_are_asked_for():
    api = BY_SPEC[table.DESCRIBE_CONFIGS]
    body = describe(4, synonyms=False, documentation=False)
    two = ConfigDescription(ResourceType.TOPIC, "t", entries=(ENTRY,))
    (entry,) = api.to_entity(body, ConfigsDescribed((two, two)), 4).results[0].configs
    assert entry.synonyms == () and entry.documentation is None


@pytest.mark.parametrize("version", list(table.ALTER_CONFIGS.versions))
def test_replacing(version):
    api = BY_SPEC[table.ALTER_CONFIGS]
    cls = request_class(table.ALTER_CONFIGS, version)
    module = module_of(cls)
    configured = (module.AlterableConfig(name="retention.ms", value="7"),)
    resource = module.AlterConfigsResource(resource_type=4, resource_name="1", configs=configured)
    body = cls(resources=(resource,), validate_only=True)
    change = ConfigChange("retention.ms", ConfigOperation.SET, "7")
    wanted = ResourceChanges(ResourceType.BROKER, "1", (change,), replaces=True)
    assert api.to_request(body, version) == AlterConfigs((wanted,), validate_only=True)
    outcome = ResourceOutcome(ResourceType.BROKER, "1", ErrorCode.invalid_config, "unknown")
    (response,) = api.to_entity(body, ConfigsAltered((outcome,)), version).responses
    assert (response.error_code, response.error_message) == (ErrorCode.invalid_config, "unknown")
    assert (response.resource_type, response.resource_name) == (4, "1")
    assert refused(api.spec, version, body).responses[0].error_code is ErrorCode.not_controller


def incremental(version, operation):
    cls = request_class(table.INCREMENTAL_ALTER_CONFIGS, version)
    module = module_of(cls)
    configured = (module.AlterableConfig(name="cleanup.policy", config_operation=operation, value="delete"),)
    resource = module.AlterConfigsResource(resource_type=2, resource_name="t", configs=configured)
    return cls(resources=(resource,), validate_only=False)


@pytest.mark.parametrize("operation", list(ConfigOperation))
@pytest.mark.parametrize("version", list(table.INCREMENTAL_ALTER_CONFIGS.versions))
def test_changing(version, operation):
    api = BY_SPEC[table.INCREMENTAL_ALTER_CONFIGS]
    wanted = ResourceChanges(ResourceType.TOPIC, "t", (ConfigChange("cleanup.policy", operation, "delete"),))
    assert api.to_request(incremental(version, operation.value), version) == AlterConfigs((wanted,))


def test_an_unknown_operation_is_refused():
    with pytest.raises(kafka_error(ErrorCode.invalid_request), match="config operation 9"):
        BY_SPEC[table.INCREMENTAL_ALTER_CONFIGS].to_request(incremental(1, 9), 1)
