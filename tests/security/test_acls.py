"""ACLs: what applies to a resource, what is allowed there, and what a filter names, against a model that looks at each ACL."""

from __future__ import annotations

import uuid
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.errors import ConfigError, KafkaError
from raylog.security.acl import AclBinding, AclFilter
from raylog.security.acls import Acls
from raylog.security.authorizer import Authorizer, parse_super_users
from raylog.security.permissions import Operation, PatternType, PermissionType, Resource

NAMES = ["a", "ab", "abc", "b", "*"]
USERS = ["User:alice", "User:bob", "User:*"]
HOSTS = ["10.0.0.1", "10.0.0.2", "*"]
OPERATIONS = [Operation(number) for number in range(2, 15)]
RESOURCES = [Resource.TOPIC, Resource.GROUP]
IMPLIED = {
    (Operation.READ, Operation.DESCRIBE),
    (Operation.WRITE, Operation.DESCRIBE),
    (Operation.DELETE, Operation.DESCRIBE),
    (Operation.ALTER, Operation.DESCRIBE),
    (Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS),
}

bindings = st.builds(
    AclBinding,
    st.sampled_from(RESOURCES),
    st.sampled_from(NAMES),
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from(USERS),
    st.sampled_from(HOSTS),
    st.sampled_from(OPERATIONS),
    st.sampled_from([PermissionType.DENY, PermissionType.ALLOW]),
)


def acl(
    operation: Operation = Operation.READ,
    *,
    name: str = "a",
    principal: str = "User:alice",
    host: str = "*",
    pattern: PatternType = PatternType.LITERAL,
    permission: PermissionType = PermissionType.ALLOW,
    resource: Resource = Resource.TOPIC,
) -> AclBinding:
    return AclBinding(resource, name, pattern, principal, host, operation, permission)


def of(*bindings: AclBinding) -> Acls:
    return Acls({uuid.UUID(int=number): each for number, each in enumerate(bindings)})


def is_about(each: AclBinding, resource: Resource, name: str) -> bool:
    if each.pattern is PatternType.PREFIXED:
        return each.resource is resource and name.startswith(each.name)
    return each.resource is resource and each.name in (name, "*")


def naive(
    acls: list[AclBinding], everyone: bool, user: str, host: str, operation: Operation, resource: Resource, name: str
) -> bool:
    about = [each for each in acls if is_about(each, resource, name)]
    if not about:
        return everyone
    mine = [each for each in about if each.principal in (user, "User:*") and each.host in (host, "*")]
    exact = [each for each in mine if each.operation in (operation, Operation.ALL)]
    if any(each.permission is PermissionType.DENY for each in exact):
        return False
    implying = [each for each in mine if (each.operation, operation) in IMPLIED]
    return any(each.permission is PermissionType.ALLOW for each in (*exact, *implying))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(bindings, unique=True, max_size=30),
    st.data(),
    st.booleans(),
    st.sampled_from(["User:alice", "User:bob", "User:carol"]),
    st.sampled_from(["10.0.0.1", "10.0.0.3"]),
)
def test_decisions_are_those_of_the_model(
    found: list[AclBinding], data: st.DataObject, everyone: bool, user: str, host: str
) -> None:
    acls = of(*found)
    gone = data.draw(st.lists(st.sampled_from(found), unique=True)) if found else []
    for each in gone:
        acls.remove(acls.ids[each])
        acls.check()
    left = [each for each in found if each not in gone]
    authorizer = Authorizer(acls, allows_everyone=everyone)
    for resource in RESOURCES:
        for name in ["a", "ab", "abcd", "b", "c"]:
            for operation in OPERATIONS:
                expected = naive(left, everyone, user, host, operation, resource, name)
                assert authorizer.may(user, host, operation, resource, name) == expected, (operation, resource, name)


@settings(max_examples=200, deadline=None)
@given(st.lists(bindings, unique=True, max_size=12), st.booleans())
def test_some_resource_is_allowed_only_if_there_is_one(found: list[AclBinding], everyone: bool) -> None:
    authorizer = Authorizer(of(*found), allows_everyone=everyone)
    who = "User:alice", "10.0.0.1"
    # what ACLs name, what begins as they do, and what none names
    names = ["a", "ab", "abc", "abcX", "abX", "aX", "b", "bX", "*X", "hardcode"]
    exists = any(naive(found, everyone, *who, Operation.WRITE, Resource.TOPIC, name) for name in names)
    assert authorizer.may_on_some(*who, Operation.WRITE, Resource.TOPIC) <= exists
    if not any(each.permission is PermissionType.DENY for each in found) and not everyone:
        assert authorizer.may_on_some(*who, Operation.WRITE, Resource.TOPIC) == exists


def test_a_wildcard_that_denies_leaves_no_resource_to_write_to() -> None:
    denied = acl(Operation.WRITE, name="*", permission=PermissionType.DENY)
    allowed = acl(Operation.WRITE, name="a")
    assert not Authorizer(of(allowed, denied)).may_on_some("User:alice", "h", Operation.WRITE, Resource.TOPIC)
    assert Authorizer(of(allowed)).may_on_some("User:alice", "h", Operation.WRITE, Resource.TOPIC)
    narrower = acl(Operation.WRITE, name="a", pattern=PatternType.PREFIXED, permission=PermissionType.DENY)
    assert not Authorizer(of(allowed, narrower)).may_on_some("User:alice", "h", Operation.WRITE, Resource.TOPIC)


def test_super_users_and_the_clusters_processes_may_everything() -> None:
    denied = acl(Operation.ALL, principal="User:*", permission=PermissionType.DENY)
    authorizer = Authorizer(of(denied), frozenset({"User:root"}))
    for principal, may in (("User:root", True), ("Cluster:client", True), ("Cluster:65537", True), ("User:x", False)):
        assert authorizer.may(principal, "h", Operation.READ, Resource.TOPIC, "a") is may


def test_operations_are_a_set_of_bits() -> None:
    authorizer = Authorizer(of(acl(Operation.READ), acl(Operation.ALTER_CONFIGS)))
    bits = authorizer.operations("User:alice", "h", Resource.TOPIC, "a")
    assert bits == 1 << 3 | 1 << 8 | 1 << 10 | 1 << 11
    assert Authorizer(of(), allows_everyone=True).operations("User:x", "h", Resource.GROUP, "g") == 0b110101001000


filters = st.builds(
    AclFilter,
    st.sampled_from([Resource.ANY, *RESOURCES]),
    st.sampled_from([None, *NAMES]),
    st.sampled_from([PatternType.ANY, PatternType.MATCH, PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from([None, *USERS]),
    st.sampled_from([None, *HOSTS]),
    st.sampled_from([Operation.ANY, *OPERATIONS]),
    st.sampled_from([PermissionType.ANY, PermissionType.DENY, PermissionType.ALLOW]),
)


@settings(max_examples=300, deadline=None)
@given(filters, st.lists(bindings, unique=True, max_size=20))
def test_a_filter_names_what_each_of_its_parts_names(filter: AclFilter, found: list[AclBinding]) -> None:
    def is_named(each: AclBinding) -> bool:
        if filter.name is not None:
            if filter.pattern is PatternType.MATCH:
                if filter.name != each.name and not is_about(each, each.resource, filter.name):
                    return False
            elif filter.name != each.name:
                return False
        return (
            filter.resource in (Resource.ANY, each.resource)
            and filter.pattern in (PatternType.ANY, PatternType.MATCH, each.pattern)
            and filter.principal in (None, each.principal)
            and filter.host in (None, each.host)
            and filter.operation in (Operation.ANY, each.operation)
            and filter.permission in (PermissionType.ANY, each.permission)
        )

    assert of(*found).matching(filter) == sorted(each for each in found if is_named(each))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (acl(resource=Resource.ANY), "Invalid resourceType ANY"),
        (acl(pattern=PatternType.MATCH), "Invalid patternType MATCH"),
        (acl(Operation.ANY), "Invalid operation ANY"),
        (acl(permission=PermissionType.ANY), "Invalid permissionType ANY"),
        (acl(name=""), "Invalid empty resource name"),
        (acl(resource=Resource.CLUSTER, name="mine"), "The only valid name for the CLUSTER resource is kafka-cluster"),
        (acl(principal="alice"), "Could not parse principal from `alice`"),
    ],
)
def test_what_makes_no_sense_is_no_acl(wrong: AclBinding, message: str) -> None:
    with pytest.raises(KafkaError, match=message):
        wrong.check()


def test_a_filter_with_something_unknown_is_refused() -> None:
    with pytest.raises(KafkaError, match="unknown element"):
        AclFilter(operation=Operation.UNKNOWN).check()
    AclFilter().check()


def test_super_users_are_written_with_their_type() -> None:
    assert parse_super_users(" User:a; User:CN=b,O=c;") == {"User:a", "User:CN=b,O=c"}
    with pytest.raises(ConfigError, match="'alice' is no principal"):
        parse_super_users("User:a;alice")


def test_a_decision_looks_at_few_of_many_acls() -> None:
    numbers = count()
    many = [acl(name=f"topic-{number}", principal=f"User:{number % 7}") for number in range(1_000)]
    many += [acl(name=f"p{number:03}", pattern=PatternType.PREFIXED) for number in range(1_000)]
    acls = Acls({uuid.UUID(int=next(numbers)): each for each in many})
    looked_at = sum(len(each) for by_name in acls.about(Resource.TOPIC, "topic-7") for each in by_name.values())
    assert looked_at == 1
    assert [list(each) for each in acls.about(Resource.TOPIC, "p0071")] == [["User:alice"]]


def test_match_finds_what_affects_a_name_and_nothing_else() -> None:
    literal, wildcard, prefixed = acl(name="a"), acl(name="*"), acl(name="a", pattern=PatternType.PREFIXED)
    acls = of(literal, wildcard, prefixed, acl(name="abc", pattern=PatternType.PREFIXED))
    affecting = acls.matching(AclFilter(name="ab", pattern=PatternType.MATCH))
    assert affecting == sorted([wildcard, prefixed])
    assert literal in acls.matching(AclFilter(name="a", pattern=PatternType.MATCH))
