"""Which quota counts for whom, and what Kafka refuses as an entity, a value and a filter."""

from __future__ import annotations

import pytest

from raylog.security import quotas
from raylog.security.quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    AppliedQuota,
    ClientQuotas,
    MatchType,
    QuotaComponent,
    entity_of,
    entity_problem,
    filter_problem,
    value_problem,
)


def of(**parts: str | None):
    return entity_of({name.replace("_", "-"): value for name, value in parts.items()})


IN_ORDER = [
    (of(user="alice", client_id="app"), ("alice", "app")),
    (of(user="alice", client_id=None), ("alice", "app")),
    (of(user="alice"), ("alice", None)),
    (of(user=None, client_id="app"), ("alice", "app")),
    (of(user=None, client_id=None), ("alice", "app")),
    (of(user=None), ("alice", None)),
    (of(client_id="app"), (None, "app")),
    (of(client_id=None), (None, "app")),
]


@pytest.mark.parametrize("first", range(len(IN_ORDER)))
def test_the_most_specific_quota_counts_in_kafkas_order(first: int) -> None:
    known = ClientQuotas(
        {entity: {PRODUCER_BYTE_RATE: 100.0 + at} for at, (entity, _) in enumerate(IN_ORDER) if at >= first}
    )
    assert known.of_client(PRODUCER_BYTE_RATE, "alice", "app") == AppliedQuota(100.0 + first, *IN_ORDER[first][1])
    assert known.of_client(CONSUMER_BYTE_RATE, "alice", "app") is None


def test_precedence_is_that_of_each_key() -> None:
    known = ClientQuotas({of(user="alice"): {PRODUCER_BYTE_RATE: 1.0}, of(client_id=None): {CONSUMER_BYTE_RATE: 2.0}})
    assert known.of_client(CONSUMER_BYTE_RATE, "alice", "app") == (2.0, None, "app")
    assert known.of_client(PRODUCER_BYTE_RATE, "bob", "app") is None
    assert known.has(CONSUMER_BYTE_RATE) and not known.has(REQUEST_PERCENTAGE)


def test_an_address_has_its_own_rate_or_the_default() -> None:
    known = ClientQuotas(
        {of(ip=None): {CONNECTION_CREATION_RATE: 5.0}, of(ip="10.0.0.1"): {CONNECTION_CREATION_RATE: 1.0}}
    )
    assert (known.of_address("10.0.0.1"), known.of_address("10.0.0.2")) == (1.0, 5.0)
    known.remove(of(ip=None), CONNECTION_CREATION_RATE)
    assert known.of_address("10.0.0.2") is None


def test_a_removed_quota_leaves_nothing_behind() -> None:
    known = ClientQuotas()
    known.set(of(user="alice"), PRODUCER_BYTE_RATE, 1.0)
    known.set(of(user="alice"), CONSUMER_BYTE_RATE, 1.0)
    before = known.revision
    known.remove(of(user="alice"), PRODUCER_BYTE_RATE)
    known.check()
    assert known.revision > before
    assert known == ClientQuotas({of(user="alice"): {CONSUMER_BYTE_RATE: 1.0}})
    known.remove(of(user="alice"), CONSUMER_BYTE_RATE)
    known.check()
    assert len(known) == 0 and not known.has(PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "Invalid empty client quota entity"),
        ([("user", "a"), ("user", "b")], "specified entity type user more than once"),
        ([("group", "a")], "Unhandled client quota entity type: group"),
        ([("user", "")], "Empty user not supported"),
        ([("ip", "10.0.0.1"), ("user", "a")], "IP entity should not be combined"),
        ([("ip", "no address")], "not a valid IP"),
    ],
)
def test_what_is_no_entity_is_refused(parts, message: str) -> None:
    problem = entity_problem(parts)
    assert problem is not None
    assert (problem[0].name, message in problem[1]) == ("invalid_request", True), problem


@pytest.mark.parametrize(
    "parts", [[("user", None)], [("client-id", "x"), ("user", "CN=a,O=b")], [("ip", None)], [("ip", "::1")]]
)
def test_what_is_an_entity_is_taken(parts) -> None:
    assert entity_problem(parts) is None


@pytest.mark.parametrize(
    ("entity", "key", "value", "message"),
    [
        (of(user="a"), "bad", 1.0, "Invalid configuration key bad"),
        (of(user="a"), CONNECTION_CREATION_RATE, 1.0, "Invalid configuration key"),
        (of(ip="10.0.0.1"), PRODUCER_BYTE_RATE, 1.0, "Invalid configuration key"),
        (of(user="a"), PRODUCER_BYTE_RATE, 0.0, "must be greater than 0"),
        (of(user="a"), PRODUCER_BYTE_RATE, float("nan"), "must be greater than 0"),
        (of(user="a"), CONSUMER_BYTE_RATE, 1.5, "cannot be a fractional value"),
        (of(user="a"), CONSUMER_BYTE_RATE, 1e30, "too large for a LONG"),
        (of(ip=None), CONNECTION_CREATION_RATE, float(1 << 31), "too large for an INT"),
    ],
)
def test_values_that_kafka_refuses_are_refused(entity, key: str, value: float, message: str) -> None:
    problem = value_problem(entity, key, value)
    assert problem is not None and message in problem[1], problem


def test_values_that_kafka_takes_are_taken() -> None:
    for key, value in ((PRODUCER_BYTE_RATE, 1.0), (REQUEST_PERCENTAGE, 0.25), ("controller_mutation_rate", 0.5)):
        assert value_problem(of(user="a"), key, value) is None
    assert value_problem(of(ip=None), CONNECTION_CREATION_RATE, 10.0) is None


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", 2, None)], "invalid_request"),
        ([("user", 2, None), ("user", 2, None)], "invalid_request"),
        ([("group", 2, None)], "unsupported_version"),
        ([("user", 0, None)], "invalid_request"),
        ([("user", 1, "a")], "invalid_request"),
        ([("user", 2, "a")], "invalid_request"),
        ([("user", 3, None)], "invalid_request"),
        ([("user", 2, None), ("ip", 2, None)], "invalid_request"),
    ],
)
def test_a_filter_that_kafka_refuses_is_refused(components, code: str) -> None:
    problem = filter_problem(QuotaComponent(*each) for each in components)
    assert problem is not None and problem[0].name == code


def found(
    known: ClientQuotas, *components: tuple[str, MatchType, str | None], strict: bool = False
) -> list[quotas.Entity]:
    asked = [QuotaComponent(*each) for each in components]
    assert filter_problem(asked) is None
    return [entity for entity, _ in known.matching(asked, strict=strict)]


def test_filters_match_names_defaults_and_types() -> None:
    both, user, default, client = of(user="a", client_id="x"), of(user="a"), of(user=None), of(client_id="x")
    known = ClientQuotas({each: {PRODUCER_BYTE_RATE: 1.0} for each in (both, user, default, client, of(ip=None))})
    assert found(known, ("user", MatchType.EXACT, "a")) == [both, user]
    assert found(known, ("user", MatchType.EXACT, "a"), strict=True) == [user]
    assert found(known, ("user", MatchType.DEFAULT, None)) == [default]
    assert found(known, ("user", MatchType.SPECIFIED, None), strict=True) == [default, user]
    assert found(known, ("user", MatchType.SPECIFIED, None), ("client-id", MatchType.EXACT, "x")) == [both]
    assert found(known, ("ip", MatchType.SPECIFIED, None)) == [of(ip=None)]
    assert len(found(known)) == 5
    assert found(known, strict=True) == []
