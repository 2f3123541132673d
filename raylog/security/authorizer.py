"""Decides whether a principal may do something, as Apache Kafka's StandardAuthorizer does.

In this order: a super user may do everything; an ACL that denies it counts before any that allows
it; one that allows it; where no ACL at all applies to the resource,
``allow.everyone.if.no.acl.found``; else it is denied. An ACL applies if its resource, principal,
host and operation do.

The processes of this cluster, and native clients that prove the cluster's secret, have principals
of the type ``Cluster``, and are super users.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from raylog.errors import ConfigError
from raylog.security.acl import WILDCARD, AclBinding
from raylog.security.acls import Acls
from raylog.security.permissions import IMPLYING, OPERATIONS, Operation, PatternType, PermissionType, Resource

CLUSTER_PRINCIPALS: Final = "Cluster:"
EVERYBODY: Final = "User:*"
_ANY_NAME: Final = "hardcode"  # Kafka's: a name that stands for all that no ACL names


class AclVerdict(NamedTuple):
    """``rule`` in words for the log."""

    is_allowed: bool
    rule: str


_SUPER_USER: Final = AclVerdict(True, "SuperUser")
_NO_ACL_ALLOWS: Final = AclVerdict(True, "DefaultAllow")
_NO_ACL_DENIES: Final = AclVerdict(False, "DefaultDeny")


@dataclass(frozen=True, slots=True)
class Authorizer:
    """``acls`` may change meanwhile; each decision is about those of the moment."""

    acls: Acls
    super_users: frozenset[str] = frozenset()
    allows_everyone: bool = False

    def is_super_user(self, principal: str) -> bool:
        return principal in self.super_users or principal.startswith(CLUSTER_PRINCIPALS)

    def decide(self, principal: str, host: str, operation: Operation, resource: Resource, name: str) -> AclVerdict:
        if self.is_super_user(principal):
            return _SUPER_USER
        about = self.acls.about(resource, name)
        if not about:
            return _NO_ACL_ALLOWS if self.allows_everyone else _NO_ACL_DENIES
        implying = IMPLYING.get(operation, ())
        allowing: AclBinding | None = None
        for by_principal in about:
            for named in (principal, EVERYBODY):
                for acl in by_principal.get(named, ()):
                    if acl.host != host and acl.host != WILDCARD:
                        continue
                    is_this = acl.operation is operation or acl.operation is Operation.ALL
                    if acl.permission is PermissionType.DENY:
                        if is_this:
                            return AclVerdict(False, f"MatchingAcl({acl})")
                    elif is_this or acl.operation in implying:
                        allowing = acl
        return _NO_ACL_DENIES if allowing is None else AclVerdict(True, f"MatchingAcl({allowing})")

    def may(self, principal: str, host: str, operation: Operation, resource: Resource, name: str) -> bool:
        return self.decide(principal, host, operation, resource, name).is_allowed

    def may_on_some(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        """Whether there can be a resource of that kind on which it may (Kafka's
        authorizeByResourceType).
        """
        if self.may(principal, host, operation, resource, _ANY_NAME):
            return True
        found = list(self.acls.of_operation(operation, resource, (principal, EVERYBODY), (host, WILDCARD)))
        denied = [acl for acl in found if acl.permission is PermissionType.DENY]
        allowed = (acl for acl in found if acl.permission is PermissionType.ALLOW)
        return any(not any(_covers(deny, allow) for deny in denied) for allow in allowed)

    def operations(self, principal: str, host: str, resource: Resource, name: str) -> int:
        """All that it may do there, as a set of bits."""
        return sum(1 << each for each in OPERATIONS[resource] if self.may(principal, host, each, resource, name))


def _covers(deny: AclBinding, allow: AclBinding) -> bool:
    """Whether everything that the one allows is denied by the other."""
    if deny.pattern is PatternType.PREFIXED:
        return allow.name.startswith(deny.name) and not (
            allow.pattern is PatternType.LITERAL and allow.name == WILDCARD
        )
    if deny.name == WILDCARD:
        return True
    return allow.pattern is PatternType.LITERAL and allow.name == deny.name


def parse_super_users(text: str) -> frozenset[str]:
    """Of ``super.users``: principals between semicolons. Raises ConfigError for one without a type."""
    users = [each.strip() for each in text.split(";") if each.strip()]
    for user in users:
        kind, colon, name = user.partition(":")
        if not (kind and colon and name):
            raise ConfigError(f"super.users: {user!r} is no principal; write a type and a name, such as User:alice")
    return frozenset(users)
