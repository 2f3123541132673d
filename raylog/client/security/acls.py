"""What an admin client can do with ACLs. Who may do it is the authorizer's to say, where the client
comes in by a Kafka listener; a native client that knows the cluster's secret may everything.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from importlib import import_module
from typing import Any, TypeVar

from raylog.errors import error_for
from raylog.security.acl import AclBinding, AclFilter
from raylog.security.permissions import Operation, PatternType, PermissionType, Resource

T = TypeVar("T")
VERSION = 3


class AsyncAclCalls:
    """Mixed into ``AsyncAdminClient``."""

    async def _ask(self, request: Any) -> Any:
        raise NotImplementedError

    async def describe_acls(self, filter: AclFilter | None = None) -> list[AclBinding]:
        """The ACLs that the filter names, in order; without one, all. Raises KafkaError
        (SECURITY_DISABLED) where the cluster has no authorizer.
        """
        module = _module("describe_acls")
        reply = await self._ask(module.DescribeAclsRequest(**_fields(filter or AclFilter())))
        _raise(reply)
        return sorted(
            AclBinding(
                Resource(resource.resource_type),
                str(resource.resource_name),
                PatternType(resource.pattern_type),
                str(acl.principal),
                str(acl.host),
                Operation(acl.operation),
                PermissionType(acl.permission_type),
            )
            for resource in reply.resources
            for acl in resource.acls
        )

    async def create_acls(self, acls: Iterable[AclBinding]) -> None:
        """Create ACLs; those that are there stay. Raises KafkaError for the first that cannot be."""
        module = _module("create_acls")
        creations = tuple(
            module.AclCreation(
                resource_type=acl.resource.value,
                resource_name=acl.name,
                resource_pattern_type=acl.pattern.value,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation.value,
                permission_type=acl.permission.value,
            )
            for acl in acls
        )
        for result in (await self._ask(module.CreateAclsRequest(creations=creations))).results:
            _raise(result)

    async def delete_acls(self, filters: Iterable[AclFilter]) -> list[AclBinding]:
        """Delete all ACLs that one of the filters names; returns them, in order."""
        module = _module("delete_acls")
        asked = tuple(module.DeleteAclsFilter(**_fields(each)) for each in filters)
        reply = await self._ask(module.DeleteAclsRequest(filters=asked))
        found = set()
        for result in reply.filter_results:
            _raise(result)
            for acl in result.matching_acls:
                found.add(
                    AclBinding(
                        Resource(acl.resource_type),
                        str(acl.resource_name),
                        PatternType(acl.pattern_type),
                        str(acl.principal),
                        str(acl.host),
                        Operation(acl.operation),
                        PermissionType(acl.permission_type),
                    )
                )
        return sorted(found)


class AclCalls:
    """The same, blocking. Mixed into ``AdminClient``."""

    _client: AsyncAclCalls

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def describe_acls(self, filter: AclFilter | None = None) -> list[AclBinding]:
        """See ``AsyncAdminClient.describe_acls``."""
        return self._run(self._client.describe_acls(filter))

    def create_acls(self, acls: Iterable[AclBinding]) -> None:
        """See ``AsyncAdminClient.create_acls``."""
        self._run(self._client.create_acls(acls))

    def delete_acls(self, filters: Iterable[AclFilter]) -> list[AclBinding]:
        """See ``AsyncAdminClient.delete_acls``."""
        return self._run(self._client.delete_acls(filters))


def _module(name: str) -> Any:
    return import_module(f"kio.schema.{name}.v{VERSION}.request")


def _fields(filter: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": filter.resource.value,
        "resource_name_filter": filter.name,
        "pattern_type_filter": filter.pattern.value,
        "principal_filter": filter.principal,
        "host_filter": filter.host,
        "operation": filter.operation.value,
        "permission_type": filter.permission.value,
    }


def _raise(result: Any) -> None:
    if result.error_code:
        raise error_for(int(result.error_code), result.error_message)
