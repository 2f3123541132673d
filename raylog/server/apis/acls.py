"""DescribeAcls, CreateAcls and DeleteAcls, which the controller answers. ACLs of one resource pattern
stand together in an answer.

A number that is none of Kafka's becomes UNKNOWN, which the controller refuses.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, TypeVar

from raylog.kafka import table
from raylog.metadata import requests
from raylog.metadata.configuration import acl_requests
from raylog.metadata.requests import ControllerReply
from raylog.security.acl import AclBinding, AclFilter
from raylog.security.permissions import Operation, PatternType, PermissionType, Resource
from raylog.server.apis.api import Api, answer
from raylog.server.apis.entities import CODES, NO_DELAY

Code = TypeVar("Code", bound=enum.IntEnum)


def _code(kind: type[Code], number: int) -> Code:
    return kind(number) if number in kind._value2member_map_ else kind(0)


def _filter(asked: Any) -> AclFilter:
    return AclFilter(
        _code(Resource, asked.resource_type_filter),
        asked.resource_name_filter,
        _code(PatternType, asked.pattern_type_filter),
        asked.principal_filter,
        asked.host_filter,
        _code(Operation, asked.operation),
        _code(PermissionType, asked.permission_type),
    )


# ------------------------------------------------------------------ DescribeAcls


def _describe_request(body: Any, version: int) -> requests.Request:
    return acl_requests.DescribeAcls(_filter(body))


def _describe_entity(body: Any, reply: ControllerReply, version: int) -> Any:
    cls, module = answer(table.DESCRIBE_ACLS, version)
    assert isinstance(reply, acl_requests.AclsDescribed), reply
    return cls(
        throttle_time=NO_DELAY,
        error_code=CODES[reply.error],
        error_message=reply.message,
        resources=_by_resource(module, reply.acls),
    )


def _by_resource(module: Any, acls: Iterable[AclBinding]) -> tuple[Any, ...]:
    grouped: dict[tuple[Resource, str, PatternType], list[Any]] = {}
    for acl in acls:
        grouped.setdefault((acl.resource, acl.name, acl.pattern), []).append(
            module.AclDescription(
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation.value,
                permission_type=acl.permission.value,
            )
        )
    return tuple(
        module.DescribeAclsResource(
            resource_type=resource.value, resource_name=name, pattern_type=pattern.value, acls=tuple(found)
        )
        for (resource, name, pattern), found in grouped.items()
    )


# ------------------------------------------------------------------ CreateAcls


def _create_request(body: Any, version: int) -> requests.Request:
    return acl_requests.CreateAcls(
        tuple(
            AclBinding(
                _code(Resource, each.resource_type),
                each.resource_name,
                _code(PatternType, each.resource_pattern_type),
                each.principal,
                each.host,
                _code(Operation, each.operation),
                _code(PermissionType, each.permission_type),
            )
            for each in body.creations
        )
    )


def _create_entity(body: Any, reply: ControllerReply, version: int) -> Any:
    cls, module = answer(table.CREATE_ACLS, version)
    assert isinstance(reply, acl_requests.AclsCreated), reply
    results = tuple(
        module.AclCreationResult(error_code=CODES[each.error], error_message=each.message) for each in reply.outcomes
    )
    return cls(throttle_time=NO_DELAY, results=results)


# ------------------------------------------------------------------ DeleteAcls


def _delete_request(body: Any, version: int) -> requests.Request:
    return acl_requests.DeleteAcls(tuple(_filter(each) for each in body.filters))


def _delete_entity(body: Any, reply: ControllerReply, version: int) -> Any:
    cls, module = answer(table.DELETE_ACLS, version)
    assert isinstance(reply, acl_requests.AclsDeleted), reply
    results = tuple(
        module.DeleteAclsFilterResult(
            error_code=CODES[each.error],
            error_message=each.message,
            matching_acls=tuple(_deleted(module, acl) for acl in each.deleted),
        )
        for each in reply.outcomes
    )
    return cls(throttle_time=NO_DELAY, filter_results=results)


def _deleted(module: Any, acl: AclBinding) -> Any:
    return module.DeleteAclsMatchingAcl(
        error_code=CODES[0],
        error_message=None,
        resource_type=acl.resource.value,
        resource_name=acl.name,
        pattern_type=acl.pattern.value,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation.value,
        permission_type=acl.permission.value,
    )


APIS = (
    Api(table.DESCRIBE_ACLS, _describe_request, _describe_entity),
    Api(table.CREATE_ACLS, _create_request, _create_entity),
    Api(table.DELETE_ACLS, _delete_request, _delete_entity),
)
