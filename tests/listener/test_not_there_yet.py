"""What raylog does not have yet, it refuses: ACLs, with the codes that end a client's attempt at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from outside import Client, request

pytestmark = pytest.mark.core

Open = Callable[..., Client]
NO_AUTHORIZER = ErrorCode.security_disabled


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acls_are_answered_as_by_kafka_without_an_authorizer(client: Open, version: int) -> None:
    everything: dict[str, Any] = {
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    described = client().ask(request(29, version, resource_type_filter=1, **everything))
    assert described.error_code is NO_AUTHORIZER and not described.resources
    acl = {"resource_type": 2, "resource_name": "t", "principal": "User:a", "host": "*", "operation": 3}
    created = client().ask(
        request(
            30,
            version,
            creations=lambda module: (
                module.AclCreation(**acl, resource_pattern_type=3, permission_type=3),
                module.AclCreation(**acl, resource_pattern_type=4, permission_type=2),
            ),
        )
    )
    assert [each.error_code for each in created.results] == [NO_AUTHORIZER] * 2
    deleted = client().ask(
        request(
            31,
            version,
            filters=lambda module: (module.DeleteAclsFilter(resource_type_filter=1, **everything),),
        )
    )
    assert [each.error_code for each in deleted.filter_results] == [NO_AUTHORIZER]
    assert "No Authorizer" in deleted.filter_results[0].error_message
