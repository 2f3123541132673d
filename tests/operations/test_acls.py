"""``raylog acls``: its options mean what those of kafka-acls mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from raylog.client.sync import AdminClient
from raylog.errors import ConfigError, KafkaError
from raylog.security.acl import AclBinding, AclFilter
from raylog.security.permissions import Operation, PatternType, PermissionType, Resource
from raylog.server.start_configs import set_static
from raylog.testing.in_process import InProcessCluster

pytestmark = pytest.mark.core

Raylog = Callable[..., tuple[int, Any]]
ALICE = ("--allow-principal", "User:alice")


@pytest.fixture(autouse=True)
def admin(running: InProcessCluster) -> Iterator[AdminClient]:
    """Of a cluster that has an authorizer, and no ACLs."""
    set_static(running.address, {"authorizer.class.name": "raylog"}, timeout_s=30)
    with AdminClient(running.address) as found:
        found.delete_acls([AclFilter()])
        yield found
    set_static(running.address, {}, timeout_s=30)


def allowed(
    operation: Operation,
    resource: Resource,
    name: str,
    *,
    pattern: PatternType = PatternType.LITERAL,
    principal: str = "User:alice",
    host: str = "*",
    permission: PermissionType = PermissionType.ALLOW,
) -> AclBinding:
    return AclBinding(resource, name, pattern, principal, host, operation, permission)


def test_what_is_added_is_listed_and_removed(raylog: Raylog, admin: AdminClient) -> None:
    code, added = raylog(
        "acls", "add", *ALICE, "--topic", "t", "--topic", "u", "--operation", "Read", "--operation", "describe_configs",
        "--allow-host", "10.0.0.1",
    )  # fmt: skip
    assert code == 0
    assert "Adding ACLs for resource `ResourcePattern(resourceType=TOPIC, name=t, patternType=LITERAL)`:" in added
    assert "(principal=User:alice, host=10.0.0.1, operation=READ, permissionType=ALLOW)" in added
    wanted = {
        allowed(operation, Resource.TOPIC, name, host="10.0.0.1")
        for operation in (Operation.READ, Operation.DESCRIBE_CONFIGS)
        for name in ("t", "u")
    }
    assert set(admin.describe_acls()) == wanted
    code, listed = raylog("acls", "list", "--topic", "t", "--json")
    assert code == 0
    assert [(each["resource_name"], each["operation"]) for each in listed] == [("t", "READ"), ("t", "DESCRIBE_CONFIGS")]
    assert raylog("acls", "list", "--principal", "User:bob", "--json") == (0, [])
    code, gone = raylog("acls", "remove", "--topic", "t", "--force", "--json")
    assert code == 0 and len(gone) == 2
    assert {each.name for each in admin.describe_acls()} == {"u"}


def test_a_producer_and_a_consumer_get_what_they_need(raylog: Raylog, admin: AdminClient) -> None:
    producer = ("--producer", "--topic", "t", "--transactional-id", "x", "--idempotent")
    assert raylog("acls", "add", *ALICE, *producer)[0] == 0
    of_producer = {
        *(allowed(each, Resource.TOPIC, "t") for each in (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)),
        *(allowed(each, Resource.TRANSACTIONAL_ID, "x") for each in (Operation.WRITE, Operation.DESCRIBE)),
        allowed(Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, "kafka-cluster"),
    }
    assert set(admin.describe_acls()) == of_producer
    consumer = ("--consumer", "--topic", "t", "--group", "g")
    assert raylog("acls", "add", *ALICE, *consumer, "--resource-pattern-type", "prefixed")[0] == 0
    of_consumer = {
        *(
            allowed(each, Resource.TOPIC, "t", pattern=PatternType.PREFIXED)
            for each in (Operation.READ, Operation.DESCRIBE)
        ),
        allowed(Operation.READ, Resource.GROUP, "g", pattern=PatternType.PREFIXED),
    }
    assert set(admin.describe_acls()) == of_producer | of_consumer
    affecting = raylog("acls", "list", "--topic", "tt", "--resource-pattern-type", "match", "--json")[1]
    assert {each["pattern_type"] for each in affecting} == {"PREFIXED"}
    assert raylog("acls", "remove", *ALICE, *producer, "--force")[0] == 0
    assert set(admin.describe_acls()) == of_consumer


def test_denials_and_all_operations_on_the_cluster(raylog: Raylog, admin: AdminClient) -> None:
    assert raylog("acls", "add", "--deny-principal", "User:*", "--deny-host", "10.0.0.9", "--cluster")[0] == 0
    (found,) = admin.describe_acls()
    assert found == allowed(
        Operation.ALL,
        Resource.CLUSTER,
        "kafka-cluster",
        principal="User:*",
        host="10.0.0.9",
        permission=PermissionType.DENY,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "--topic", "t"), "--allow-principal or --deny-principal"),
        (("add", *ALICE), "name a resource"),
        (("add", *ALICE, "--topic", "t", "--operation", "Write", "--producer"), "leave --operation away"),
        (("add", *ALICE, "--group", "g", "--producer"), "--producer needs --topic"),
        (("add", *ALICE, "--topic", "t", "--consumer"), "--topic and --group"),
        (("add", *ALICE, "--topic", "t", "--group", "g", "--producer"), "nothing that --producer"),
        (("add", *ALICE, "--topic", "t", "--idempotent"), "goes with --producer"),
        (("add", *ALICE, "--topic", "t", "--operation", "IdempotentWrite"), "no operation on Topic"),
        (("add", *ALICE, "--topic", "t", "--operation", "Fly"), "choose from All, Read"),
        (("add", *ALICE, "--topic", "t", "--resource-pattern-type", "match"), "choose from literal, prefixed"),
        (("add", *ALICE, "--topic", "t", "--deny-host", "h"), "goes with --deny-principal"),
        (("remove", "--topic", "t", "--operation", "Read", "--force"), "say whose ACLs"),
    ],
)
def test_what_makes_no_sense_is_told(raylog: Raylog, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        raylog("acls", *arguments)


def test_a_principal_without_a_type_is_refused(raylog: Raylog, admin: AdminClient) -> None:
    with pytest.raises(KafkaError, match="Could not parse principal from `alice`"):
        raylog("acls", "add", "--allow-principal", "alice", "--topic", "t")
    assert admin.describe_acls() == []


def test_without_an_authorizer_there_are_no_acls(raylog: Raylog, running: InProcessCluster) -> None:
    set_static(running.address, {}, timeout_s=30)
    with pytest.raises(KafkaError, match="No Authorizer is configured"):
        raylog("acls", "list")
