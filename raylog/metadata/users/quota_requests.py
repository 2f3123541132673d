"""What is asked of the controller about client quotas, and what it answers, as in ``requests``.

An entity is here what the client has said, (type, name) in its order, and perhaps none.
"""

from __future__ import annotations

from dataclasses import dataclass

from raylog.security.quotas import Entity, QuotaComponent


@dataclass(frozen=True, slots=True)
class QuotaAlteration:
    """``changes``: (key, value), the value None to remove the quota."""

    entity: Entity
    changes: tuple[tuple[str, float | None], ...]


@dataclass(frozen=True, slots=True)
class AlterClientQuotas:
    """→ ClientQuotasAltered. What is asked for one entity is done whole or not at all."""

    alterations: tuple[QuotaAlteration, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class QuotaOutcome:
    entity: Entity
    error: int = 0
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ClientQuotasAltered:
    """Each entity that was named, in the order of the request."""

    outcomes: tuple[QuotaOutcome, ...]


@dataclass(frozen=True, slots=True)
class DescribeClientQuotas:
    """→ ClientQuotasDescribed. No components: all entities."""

    components: tuple[QuotaComponent, ...] = ()
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ClientQuotasDescribed:
    """``found``: each entity, and its (key, value)."""

    found: tuple[tuple[Entity, tuple[tuple[str, float], ...]], ...] = ()
    error: int = 0
    message: str | None = None
