"""What is asked of the controller about ACLs, and what it answers: plain values, as in
``raylog.metadata.requests``.
"""

from __future__ import annotations

from dataclasses import dataclass

from raylog.security.acl import AclBinding, AclFilter


@dataclass(frozen=True, slots=True)
class DescribeAcls:
    """→ AclsDescribed."""

    filter: AclFilter


@dataclass(frozen=True, slots=True)
class AclsDescribed:
    acls: tuple[AclBinding, ...]
    error: int = 0
    message: str | None = None


@dataclass(frozen=True, slots=True)
class CreateAcls:
    """→ AclsCreated, in the same order."""

    acls: tuple[AclBinding, ...]


@dataclass(frozen=True, slots=True)
class AclOutcome:
    """``deleted``: what a filter has deleted."""

    error: int = 0
    message: str | None = None
    deleted: tuple[AclBinding, ...] = ()


@dataclass(frozen=True, slots=True)
class AclsCreated:
    outcomes: tuple[AclOutcome, ...]


@dataclass(frozen=True, slots=True)
class DeleteAcls:
    """→ AclsDeleted, in the same order."""

    filters: tuple[AclFilter, ...]


@dataclass(frozen=True, slots=True)
class AclsDeleted:
    outcomes: tuple[AclOutcome, ...]
