"""The controller's Kafka APIs for configs of topics (2) and of brokers (4; the empty name: of all
brokers).

DescribeConfigs gives synonyms in the order of precedence, types and meanings from version 3.
AlterConfigs replaces all that is set of a resource; IncrementalAlterConfigs sets, deletes, appends
and subtracts. Another type of resource is refused for that resource alone. A password is sensitive:
its value is in no answer. As in ``admin``, each entry of ``APIS`` is two translations.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.configs.topic_configs import ConfigValueType
from raylog.errors import error_for
from raylog.kafka import table
from raylog.kafka.spec import ApiSpec
from raylog.metadata import requests
from raylog.metadata.configuration import config_requests
from raylog.metadata.configuration.config_requests import ConfigChange, ConfigOperation, ResourceType
from raylog.metadata.requests import ControllerReply
from raylog.server.apis.api import Api, answer
from raylog.server.apis.entities import CODES, NO_DELAY, build
from raylog.types import BROKER_SLOT, broker_of, slot_of

INVALID_REQUEST = ErrorCode.invalid_request.value
PASSWORD = ConfigValueType.PASSWORD.value


def _resource_type(number: int) -> ResourceType | int:
    try:
        return ResourceType(number)
    except ValueError:
        return number


# ------------------------------------------------------------------ describing


def _describe_request(body: Any, version: int) -> requests.Request:
    return config_requests.DescribeConfigs(
        tuple(
            config_requests.ConfigQuery(
                _resource_type(each.resource_type),
                each.resource_name,
                None if each.configuration_keys is None else tuple(each.configuration_keys),
            )
            for each in body.resources
        )
    )


def _describe_entity(body: Any, reply: ControllerReply, version: int) -> Any:
    cls, module = answer(table.DESCRIBE_CONFIGS, version)
    assert isinstance(reply, config_requests.ConfigsDescribed), reply
    documented = version >= 3 and body.include_documentation

    def shown(entry: config_requests.DescribedConfig, value: str) -> str | None:
        return None if entry.type == PASSWORD else value

    def synonyms(entry: config_requests.DescribedConfig) -> tuple[Any, ...]:
        if not body.include_synonyms:
            return ()
        return tuple(
            module.DescribeConfigsSynonym(name=each.name, value=shown(entry, each.value), source=each.source)
            for each in entry.synonyms
        )

    results = tuple(
        module.DescribeConfigsResult(
            error_code=CODES[found.error],
            error_message=found.message,
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
            configs=tuple(
                build(
                    module.DescribeConfigsResourceResult,
                    name=entry.name,
                    value=shown(entry, entry.value),
                    read_only=entry.read_only,
                    config_source=entry.source,
                    is_sensitive=entry.type == PASSWORD,
                    synonyms=synonyms(entry),
                    config_type=entry.type,
                    documentation=entry.meaning if documented else None,
                )
                for entry in found.entries
            ),
        )
        for asked, found in zip(body.resources, reply.resources, strict=True)
    )
    return cls(throttle_time=NO_DELAY, results=results)


# ------------------------------------------------------------------ changing


def _operation(number: int) -> ConfigOperation:
    try:
        return ConfigOperation(number)
    except ValueError:
        raise error_for(INVALID_REQUEST, f"config operation {number}: 0 set, 1 delete, 2 append, 3 subtract") from None


def _incremental_request(body: Any, version: int) -> requests.Request:
    return _alteration(
        body,
        lambda config: ConfigChange(config.name, _operation(config.config_operation), config.value),
        replaces=False,
    )


def _replacing_request(body: Any, version: int) -> requests.Request:
    return _alteration(body, lambda config: ConfigChange(config.name, ConfigOperation.SET, config.value), replaces=True)


def _alteration(body: Any, change_of: Any, *, replaces: bool) -> requests.Request:
    return config_requests.AlterConfigs(
        tuple(
            config_requests.ResourceChanges(
                _resource_type(each.resource_type), each.resource_name, tuple(map(change_of, each.configs)), replaces
            )
            for each in body.resources
        ),
        body.validate_only,
    )


def _checked_by(asked: config_requests.AlterConfigs, node: int) -> requests.Request:
    is_broker = node >= 0 and slot_of(node) == BROKER_SLOT
    return replace(asked, checked_by=broker_of(node) if is_broker else None)


def _altered_entity(spec: ApiSpec) -> Any:
    def entity(body: Any, reply: ControllerReply, version: int) -> Any:
        cls, module = answer(spec, version)
        assert isinstance(reply, config_requests.ConfigsAltered), reply
        results = tuple(
            module.AlterConfigsResourceResponse(
                error_code=CODES[found.error],
                error_message=found.message,
                resource_type=asked.resource_type,
                resource_name=asked.resource_name,
            )
            for asked, found in zip(body.resources, reply.resources, strict=True)
        )
        return cls(throttle_time=NO_DELAY, responses=results)

    return entity


APIS = (
    Api(table.DESCRIBE_CONFIGS, _describe_request, _describe_entity),
    Api(table.ALTER_CONFIGS, _replacing_request, _altered_entity(table.ALTER_CONFIGS), sent_by=_checked_by),
    Api(
        table.INCREMENTAL_ALTER_CONFIGS,
        _incremental_request,
        _altered_entity(table.INCREMENTAL_ALTER_CONFIGS),
        sent_by=_checked_by,
    ),
)
