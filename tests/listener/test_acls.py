"""The APIs of ACLs while there is no authorizer: SECURITY_DISABLED where clients look for it, once for each thing asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from outside import request

from raylog.kafka import table
from raylog.kafka.refusal import refused_with
from raylog.kafka.spec import ApiSpec
from raylog.listener import acls

FILTER = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
ACL = {
    "resource_type": 2,
    "resource_name": "t",
    "resource_pattern_type": 3,
    "principal": "User:x",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}


def bodies(version: int) -> list[tuple[ApiSpec, Any]]:
    two = range(2)
    creations = request(30, version, creations=lambda module: tuple(module.AclCreation(**ACL) for _ in two))
    filters = request(31, version, filters=lambda module: tuple(module.DeleteAclsFilter(**FILTER) for _ in two))
    return [
        (table.DESCRIBE_ACLS, request(29, version, **FILTER)),
        (table.CREATE_ACLS, creations),
        (table.DELETE_ACLS, filters),
    ]


@pytest.mark.parametrize("version", table.CREATE_ACLS.versions)
def test_acls_are_disabled_whatever_is_asked(version: int) -> None:
    replies: list[Any] = []
    for spec, body in bodies(version):
        acls.handler(spec)(SimpleNamespace(version=version, body=body, reply=replies.append))  # type: ignore[arg-type]
    assert [refused_with(reply) for reply in replies] == [ErrorCode.security_disabled] * 3
    described, created, deleted = replies
    assert (described.error_message, described.resources) == (acls.MESSAGE, ())
    for results in (created.results, deleted.filter_results):
        assert [(each.error_code, each.error_message) for each in results] == [
            (ErrorCode.security_disabled, acls.MESSAGE)
        ] * 2
