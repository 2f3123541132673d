"""What each API of a listener is denied without an ACL, and gets with it: the table of ``acl_cases``, tried on a cluster."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import pytest
from acl_cases import CASES, TRANSACTION, WITHOUT_DENIALS, Case, denials, transaction
from authorized import Clients, authorized_cluster

from raylog.kafka import table
from raylog.kafka.spec import Permission, ServerKind
from raylog.listener.access.rules import PRIVATE, RULES
from raylog.security.acl import AclBinding
from raylog.security.permissions import IMPLYING, Operation, PermissionType, Resource
from raylog.wire.private_transactions import KeepTransactionRequest

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    with authorized_cluster() as found:
        yield found


def denied_cases() -> Iterator[Any]:
    for case in CASES:
        for version in case.tried_versions():
            for index, step in enumerate(case.steps):
                yield pytest.param(case, version, index, id=f"{case}-v{version}-{step.error.name}")


def allowed_cases() -> Iterator[Any]:
    for case in CASES:
        for version in case.tried_versions():
            for acls in itertools.zip_longest(*(step.any_of for step in case.steps)):
                granted = [found or step.any_of[0] for found, step in zip(acls, case.steps, strict=True)]
                named = ",".join(f"{each.operation.name}:{each.resource.name}" for each in granted)
                yield pytest.param(case, version, granted, id=f"{case}-v{version}-{named}")


def test_each_api_of_a_listener_has_a_rule_and_a_case() -> None:
    served = set(table.served_by(ServerKind.BROKER))
    assert RULES.keys() == served
    assert {case.spec for case in CASES} | WITHOUT_DENIALS.keys() == served
    assert len(list(denied_cases())) + len(list(allowed_cases())) > 250


def test_the_cases_need_what_the_table_of_apis_says() -> None:
    for spec in {case.spec for case in CASES}:
        needed = {
            Permission(acl.operation, acl.resource)
            for case in CASES
            if case.spec is spec
            for step in case.steps
            for acl in step.any_of
        }
        hidden = {Permission(Operation.DESCRIBE, Resource.TOPIC)} if spec is table.DESCRIBE_TRANSACTIONS else set()
        assert set(spec.authorised_by) - hidden <= needed, f"{spec} has no case of {set(spec.authorised_by) - needed}"
        implying = {
            Permission(each, permission.resource)
            for permission in spec.authorised_by
            for each in IMPLYING.get(permission.operation, ())
        }
        assert needed <= set(spec.authorised_by) | implying, f"{spec}: {needed - set(spec.authorised_by) - implying}"


def test_an_api_without_a_rule_keeps_a_listener_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    from raylog.listener.access import guard

    monkeypatch.setattr(guard, "RULES", {spec: rule for spec, rule in RULES.items() if spec is not table.HEARTBEAT})
    handlers: dict[int, Any] = {table.HEARTBEAT.key: lambda request: None}
    with pytest.raises(KeyError):
        guard.Guard(lambda: None).guarded(handlers, table.BY_KEY)  # type: ignore[arg-type, return-value]
    with pytest.raises(KeyError):
        guard.Guard(lambda: None).guarded({20_999: lambda request: None}, table.BY_KEY)  # type: ignore[arg-type, return-value]
    assert set(PRIVATE) == {20_020, 20_021, 20_022}


@pytest.mark.parametrize(("case", "version", "missing"), list(denied_cases()))
def test_without_an_acl_its_error_is_the_only_one(clients: Clients, case: Case, version: int, missing: int) -> None:
    clients.grant(*(step.any_of[0] for index, step in enumerate(case.steps) if index != missing))
    reply = clients.ask(case.body(version, clients.topic_id))
    assert denials(reply) == {case.steps[missing].error}, reply


@pytest.mark.parametrize(("case", "version", "granted"), list(allowed_cases()))
def test_with_its_acls_a_request_is_denied_nothing(
    clients: Clients, case: Case, version: int, granted: Collection[AclBinding]
) -> None:
    clients.grant(*granted)
    reply = clients.ask(case.body(version, clients.topic_id))
    assert denials(reply) == set(), reply


@pytest.mark.parametrize("case", [case for case in CASES if len(case.steps) == 1], ids=str)
def test_one_acl_that_denies_counts_before_all_that_allow(clients: Clients, case: Case) -> None:
    (step,) = case.steps
    version = case.tried_versions()[-1]
    denying = [replace(each, permission=PermissionType.DENY, principal="User:*") for each in step.any_of]
    clients.grant(*step.any_of, *denying)
    assert denials(clients.ask(case.body(version, clients.topic_id))) == {step.error}


def test_transactions_of_several_producers_need_write(clients: Clients) -> None:
    asked = KeepTransactionRequest(TRANSACTION, 1, 0)
    clients.grant()
    assert clients.ask(asked).error_code == 53
    clients.grant(transaction(Operation.WRITE))
    assert clients.ask(asked).error_code != 53
