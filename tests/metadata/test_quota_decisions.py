"""Decisions about client quotas: Kafka's errors, and all or nothing for each entity."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from raylog.metadata.users.quota_requests import AlterClientQuotas, DescribeClientQuotas, QuotaAlteration
from raylog.security.quotas import QuotaComponent

ALICE = (("user", "alice"),)
APP = (("user", "alice"), ("client-id", "app"))
APP_SORTED = (("client-id", "app"), ("user", "alice"))
PRODUCES, READS = "producer_byte_rate", "consumer_byte_rate"


def alter(world, *asked: QuotaAlteration, validate_only: bool = False) -> list[str]:
    reply = world.ask(AlterClientQuotas(asked, validate_only))
    assert [each.entity for each in reply.outcomes] == [each.entity for each in asked]
    return [ErrorCode(each.error).name for each in reply.outcomes]


def found(world, *components: QuotaComponent, strict: bool = False):
    reply = world.ask(DescribeClientQuotas(components, strict))
    return dict(reply.found) if not reply.error else ErrorCode(reply.error).name


def test_quotas_are_set_replaced_described_and_removed(world) -> None:
    both = QuotaAlteration(ALICE, ((PRODUCES, 10.0), (READS, 20.0)))
    assert alter(world, both, QuotaAlteration(APP, ((READS, 5.0),))) == ["none", "none"]
    assert found(world) == {ALICE: ((READS, 20.0), (PRODUCES, 10.0)), APP_SORTED: ((READS, 5.0),)}
    assert found(world, QuotaComponent("user", 0, "alice"), strict=True).keys() == {ALICE}
    assert alter(world, QuotaAlteration(ALICE, ((PRODUCES, None), (READS, 30.0)))) == ["none"]
    assert found(world)[ALICE] == ((READS, 30.0),)
    assert alter(world, QuotaAlteration(ALICE, ((READS, None), (PRODUCES, None)))) == ["none"]
    assert found(world).keys() == {APP_SORTED}
    assert found(world, QuotaComponent("group", 2)) == "unsupported_version"


def test_an_entity_with_an_error_keeps_all_that_it_had(world) -> None:
    assert alter(world, QuotaAlteration(ALICE, ((PRODUCES, 10.0),))) == ["none"]
    wrong = QuotaAlteration(ALICE, ((PRODUCES, 20.0), (READS, -1.0)))
    assert alter(world, wrong, QuotaAlteration(APP, ((READS, 5.0),)), QuotaAlteration((), ())) == [
        "invalid_request",
        "none",
        "invalid_request",
    ]
    assert found(world) == {ALICE: ((PRODUCES, 10.0),), APP_SORTED: ((READS, 5.0),)}


def test_validating_changes_nothing(world) -> None:
    assert alter(world, QuotaAlteration(ALICE, ((PRODUCES, 10.0),)), validate_only=True) == ["none"]
    assert alter(world, QuotaAlteration(ALICE, ((PRODUCES, -1.0),)), validate_only=True) == ["invalid_request"]
    assert found(world) == {}


def test_of_two_alterations_of_one_entity_the_later_one_counts(world) -> None:
    first, second = QuotaAlteration(ALICE, ((PRODUCES, 10.0),)), QuotaAlteration(ALICE, ((PRODUCES, None),))
    assert alter(world, first, second, QuotaAlteration(ALICE, ((READS, 1.0),))) == ["none"] * 3
    assert found(world) == {ALICE: ((READS, 1.0),)}
    world.controller.image.check()
