"""ACLs at the controller: what is created, found and deleted, and what is refused."""

from __future__ import annotations

from dataclasses import replace

from kio.schema.errors import ErrorCode

from raylog.metadata.configuration.acl_requests import AclOutcome, CreateAcls, DeleteAcls, DescribeAcls
from raylog.metadata.configuration.config_requests import (
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    ResourceChanges,
    ResourceType,
    SetStaticConfigs,
)
from raylog.metadata.records import AclCreated, StaticSource
from raylog.security.acl import AclBinding, AclFilter
from raylog.security.permissions import Operation, PatternType, PermissionType, Resource

READS = AclBinding(Resource.TOPIC, "t", PatternType.LITERAL, "User:a", "*", Operation.READ, PermissionType.ALLOW)
WRITES = replace(READS, operation=Operation.WRITE)
WRONG = replace(READS, principal="a")
EVERYTHING = AclFilter()


def start_authorizer(world, **others):
    configs = {"authorizer.class.name": "raylog"} | {name.replace("_", "."): value for name, value in others.items()}
    (outcome,) = world.ask(SetStaticConfigs(StaticSource.START, tuple(sorted(configs.items())))).resources
    return outcome


def codes(reply):
    return [ErrorCode(each.error) for each in reply.outcomes]


def test_acls_are_created_once_each_and_found(world):
    start_authorizer(world)
    assert codes(world.ask(CreateAcls((READS, WRONG, READS, WRITES)))) == [
        ErrorCode.none,
        ErrorCode.invalid_request,
        ErrorCode.none,
        ErrorCode.none,
    ]
    assert world.ask(CreateAcls((WRITES,))).outcomes == (AclOutcome(),)
    assert world.ask(DescribeAcls(EVERYTHING)).acls == (READS, WRITES)
    assert world.ask(DescribeAcls(AclFilter(operation=Operation.WRITE))).acls == (WRITES,)
    assert [each for each in world.image.records() if isinstance(each, AclCreated)] == [
        AclCreated(id, world.image.acls.by_id[id]) for id in sorted(world.image.acls.by_id)
    ]


def test_filters_delete_what_they_name(world):
    start_authorizer(world)
    world.ask(CreateAcls((READS, WRITES)))
    wrong = AclFilter(operation=Operation.UNKNOWN)
    reply = world.ask(DeleteAcls((AclFilter(operation=Operation.WRITE), wrong, EVERYTHING)))
    assert codes(reply) == [ErrorCode.none, ErrorCode.invalid_request, ErrorCode.none]
    assert [each.deleted for each in reply.outcomes] == [(WRITES,), (), (READS, WRITES)]
    assert not world.image.acls
    assert world.ask(DeleteAcls((EVERYTHING,))).outcomes == (AclOutcome(),)
    assert world.ask(DescribeAcls(wrong)).error == ErrorCode.invalid_request


def test_acls_outlive_a_controller(world):
    start_authorizer(world)
    world.ask(CreateAcls((READS,)))
    ids = dict(world.image.acls.by_id)
    world.restart_controller()
    assert world.image.acls.by_id == ids and len(ids) == 1


def test_without_an_authorizer_acls_are_disabled(world):
    disabled = ErrorCode.security_disabled
    assert world.ask(DescribeAcls(EVERYTHING)).error == disabled
    assert codes(world.ask(CreateAcls((READS, WRITES)))) == [disabled] * 2
    assert codes(world.ask(DeleteAcls((EVERYTHING,)))) == [disabled]
    assert not world.image.acls


def test_nobody_changes_the_authorizer_while_the_cluster_runs(world):
    start_authorizer(world)
    for name in ("authorizer.class.name", "super.users", "allow.everyone.if.no.acl.found"):
        for change in (ConfigChange(name, ConfigOperation.SET, "true"), ConfigChange(name, ConfigOperation.DELETE)):
            changes = ResourceChanges(ResourceType.BROKER, "", (change,))
            (outcome,) = world.ask(AlterConfigs((changes,))).resources
            assert outcome.error == ErrorCode.invalid_config, (name, outcome)
            assert "fixed when the cluster starts" in outcome.message


def test_a_start_takes_no_authorizer_that_it_does_not_know_and_no_super_user_without_one(world):
    assert start_authorizer(world, super_users="User:a;User:b").error == 0
    wrong = (
        {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"},
        {"super.users": "User:a"},
        {"allow.everyone.if.no.acl.found": "true"},
        {"authorizer.class.name": "raylog", "super.users": "alice"},
    )
    for configs in wrong:
        (outcome,) = world.ask(SetStaticConfigs(StaticSource.START, tuple(configs.items()))).resources
        assert outcome.error == ErrorCode.invalid_config, configs
