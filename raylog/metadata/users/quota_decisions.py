"""Decisions about client quotas, and what is told of them: KRaft's ClientQuotaControlManager.

An answer has one outcome for each alteration, and an entity with an error keeps all that it had. Of
two alterations of one entity the later one counts, as in Kafka. ``validate_only`` checks and
decides nothing.
"""

from __future__ import annotations

from raylog.metadata.image import MetadataImage
from raylog.metadata.records import ClientQuotaRemoved, ClientQuotaSet, Record
from raylog.metadata.users.quota_requests import (
    AlterClientQuotas,
    ClientQuotasAltered,
    ClientQuotasDescribed,
    DescribeClientQuotas,
    QuotaAlteration,
    QuotaOutcome,
)
from raylog.security.quotas import Entity, Problem, entity_problem, filter_problem, value_problem

_Values = dict[tuple[Entity, str], float]


def decide_quotas(image: MetadataImage, request: AlterClientQuotas) -> tuple[list[Record], ClientQuotasAltered]:
    """The records that do what the request asks, as far as it can be done, and each entity's outcome."""
    records: list[Record] = []
    outcomes = []
    values: _Values = {(entity, key): value for entity, key, value in image.quotas.each()}
    for alteration in request.alterations:
        problem = _problem(alteration)
        if problem is None:
            outcomes.append(QuotaOutcome(alteration.entity))
            records += _changed(values, alteration)
        else:
            outcomes.append(QuotaOutcome(alteration.entity, int(problem[0].value), problem[1]))
    return [] if request.validate_only else records, ClientQuotasAltered(tuple(outcomes))


def describe_quotas(image: MetadataImage, request: DescribeClientQuotas) -> ClientQuotasDescribed:
    problem = filter_problem(request.components)
    if problem is not None:
        return ClientQuotasDescribed((), int(problem[0].value), problem[1])
    found = image.quotas.matching(request.components, strict=request.strict)
    return ClientQuotasDescribed(tuple((entity, tuple(sorted(values.items()))) for entity, values in found))


def _problem(alteration: QuotaAlteration) -> Problem | None:
    problem = entity_problem(alteration.entity)
    entity: Entity = tuple(sorted(alteration.entity, key=lambda part: part[0]))
    for key, value in alteration.changes:
        if problem is None:
            problem = value_problem(entity, key, value)
    return problem


def _changed(values: _Values, alteration: QuotaAlteration) -> list[Record]:
    """What this changes of the values, which have it from now on."""
    entity: Entity = tuple(sorted(alteration.entity))
    records: list[Record] = []
    for key, value in dict(alteration.changes).items():
        known = values.get((entity, key))
        if value is None and known is not None:
            del values[entity, key]
            records.append(ClientQuotaRemoved(entity, key))
        elif value is not None and value != known:
            values[entity, key] = value
            records.append(ClientQuotaSet(entity, key, value))
    return records
