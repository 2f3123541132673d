"""ACLs as Apache Kafka has them (KIP-11, KIP-290, KIP-679): what one says, and which ones a filter
names.

An ``AclBinding`` allows or denies a principal an operation, from a host, on a resource. Its
resource is named literally, or by the start of its name; the literal name ``*`` means every
resource of its kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from raylog.errors import KafkaError, error_for
from raylog.security.permissions import Operation, PatternType, PermissionType, Resource

WILDCARD: Final = "*"
CLUSTER_NAME: Final = "kafka-cluster"
INVALID_REQUEST: Final = ErrorCode.invalid_request.value


@dataclass(frozen=True, slots=True, order=True)
class AclBinding:
    """``principal`` is a type and a name, such as ``User:alice``; ``User:*`` is everybody. ``host``
    is an address, or ``*``.
    """

    resource: Resource
    name: str
    pattern: PatternType
    principal: str
    host: str
    operation: Operation
    permission: PermissionType

    def __str__(self) -> str:
        return (
            f"{self.permission.name} {self.principal} {self.operation.name} from {self.host} on "
            f"{self.resource.name}:{self.pattern.name}:{self.name}"
        )

    def check(self) -> None:
        """Raises KafkaError (INVALID_REQUEST) for an ACL that nobody may create."""
        if self.resource in (Resource.UNKNOWN, Resource.ANY):
            raise _invalid(f"Invalid resourceType {self.resource.name}")
        if self.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
            raise _invalid(f"Invalid patternType {self.pattern.name}")
        if self.operation in (Operation.UNKNOWN, Operation.ANY):
            raise _invalid(f"Invalid operation {self.operation.name}")
        if self.permission not in (PermissionType.DENY, PermissionType.ALLOW):
            raise _invalid(f"Invalid permissionType {self.permission.name}")
        if self.resource is Resource.CLUSTER and self.name != CLUSTER_NAME:
            raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
        if not self.name:
            raise _invalid("Invalid empty resource name")
        if ":" not in self.principal:
            raise _invalid(
                f"Could not parse principal from `{self.principal}` "
                "(no colon is present separating the principal type from the principal name)"
            )


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Names ACLs. None and ANY match everything; the pattern MATCH, all that affect the resource of
    that name.
    """

    resource: Resource = Resource.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: PermissionType = PermissionType.ANY

    def check(self) -> None:
        """Raises KafkaError (INVALID_REQUEST) for a filter with something unknown in it."""
        if 0 in (self.resource, self.pattern, self.operation, self.permission):
            raise _invalid("The filter contains an unknown element")

    def matches(self, acl: AclBinding) -> bool:
        return (
            self.resource in (Resource.ANY, acl.resource)
            and self._matches_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (PermissionType.ANY, acl.permission)
        )

    def _matches_name(self, acl: AclBinding) -> bool:
        if self.pattern not in (PatternType.ANY, PatternType.MATCH, acl.pattern):
            return False
        if self.name is None or self.name == acl.name:
            return True
        if self.pattern is not PatternType.MATCH:
            return False
        return acl.name == WILDCARD if acl.pattern is PatternType.LITERAL else self.name.startswith(acl.name)


def _invalid(message: str) -> KafkaError:
    return error_for(INVALID_REQUEST, message)
