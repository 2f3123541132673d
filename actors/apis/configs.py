"""The controller's Kafka APIs for configs of topics (2) and of brokers (4; the empty name: of all brokers).

=========================  ===  ========  ==================================================================
API                        key  versions  notes
=========================  ===  ========  ==================================================================
DescribeConfigs             32  1–4       synonyms in the order of precedence, types and meanings from version 3
AlterConfigs                33  0–2       replaces all that is set of a resource
IncrementalAlterConfigs     44  0–1       set, delete, append, subtract
=========================  ===  ========  ==================================================================

As in ``admin``: each entry of ``APIS`` is (key, versions, to_request, to_entity). Another type of resource is refused for that resource
alone. Nothing here is sensitive.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from raylog.actors.apis.api import Api, answer
from raylog.actors.apis.entities import CODES, NO_DELAY, build
from raylog.errors import error_for
from raylog.metadata import requests
from raylog.metadata.requests import ConfigChange, ConfigOperation, ControllerReply, Refused, ResourceType

INVALID_REQUEST = ErrorCode.invalid_request.value
DESCRIBE_CONFIGS, ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS = 32, 33, 44


def _resource_type(number: int) -> ResourceType | int:
    try:
        return ResourceType(number)
    except ValueError:
        return number


# ------------------------------------------------------------------ describing


def _describe_request(body: Any, version: int) -> requests.Request:
    return requests.DescribeConfigs(
        tuple(
            requests.ConfigQuery(
                _resource_type(each.resource_type),
                each.resource_name,
                None if each.configuration_keys is None else tuple(each.configuration_keys),
            )
            for each in body.resources
        )
    )


def _describe_entity(body: Any, reply: ControllerReply, version: int) -> Any:
    cls, module = answer(DESCRIBE_CONFIGS, version)
    if isinstance(reply, Refused):
        reply = requests.ConfigsDescribed(
            tuple(
                requests.ConfigDescription(each.resource_type, each.resource_name, reply.error, reply.message)
                for each in body.resources
            )
        )
    assert isinstance(reply, requests.ConfigsDescribed), reply
    documented = version >= 3 and body.include_documentation

    def synonyms(entry: requests.ConfigEntry) -> tuple[Any, ...]:
        if not body.include_synonyms:
            return ()
        return tuple(
            module.DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source)
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
                    value=entry.value,
                    read_only=entry.read_only,
                    config_source=entry.source,
                    is_sensitive=False,
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
    return requests.AlterConfigs(
        tuple(
            requests.ResourceChanges(
                _resource_type(each.resource_type), each.resource_name, tuple(map(change_of, each.configs)), replaces
            )
            for each in body.resources
        ),
        body.validate_only,
    )


def _altered_entity(key: int) -> Any:
    def entity(body: Any, reply: ControllerReply, version: int) -> Any:
        cls, module = answer(key, version)
        if isinstance(reply, Refused):
            reply = requests.ConfigsAltered(
                tuple(
                    requests.ResourceOutcome(each.resource_type, each.resource_name, reply.error, reply.message)
                    for each in body.resources
                )
            )
        assert isinstance(reply, requests.ConfigsAltered), reply
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
    Api(DESCRIBE_CONFIGS, range(1, 5), _describe_request, _describe_entity),
    Api(ALTER_CONFIGS, range(3), _replacing_request, _altered_entity(ALTER_CONFIGS)),
    Api(INCREMENTAL_ALTER_CONFIGS, range(2), _incremental_request, _altered_entity(INCREMENTAL_ALTER_CONFIGS)),
)
