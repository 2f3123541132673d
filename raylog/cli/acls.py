"""``raylog acls``: what Kafka's ``kafka-acls`` does, with its options and its lines.

``--producer`` and ``--consumer`` stand for the ACLs that a producer or a consumer needs. What an
option does not say holds for all: hosts, operations, and for ``list`` and ``remove`` resources and
principals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Annotated

import typer

from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, Folder, Timeout, find_cluster
from raylog.cli.output import AsJson, notice, print_json, print_text
from raylog.cli.remote import ClusterApp
from raylog.errors import ConfigError
from raylog.security.acl import CLUSTER_NAME, AclBinding, AclFilter
from raylog.security.permissions import OPERATIONS, Operation, PatternType, PermissionType, Resource

app = ClusterApp(help="ACLs: who may do what on which resource.", no_args_is_help=True)

Names = list[str] | None
Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster.")]
Topic = Annotated[Names, typer.Option("--topic", help="A topic; may be repeated.", show_default=False)]
Group = Annotated[Names, typer.Option("--group", help="A consumer group.", show_default=False)]
TransactionalId = Annotated[Names, typer.Option("--transactional-id", help="A transactional id.", show_default=False)]
DelegationToken = Annotated[Names, typer.Option("--delegation-token", help="A delegation token.", show_default=False)]
UserPrincipal = Annotated[Names, typer.Option("--user-principal", help="A user, as a resource.", show_default=False)]
Pattern = Annotated[
    str,
    typer.Option("--resource-pattern-type", help="literal or prefixed; to find ACLs also any or match."),
]
AllowPrincipal = Annotated[
    Names, typer.Option("--allow-principal", help="Who may, such as User:alice.", show_default=False)
]
DenyPrincipal = Annotated[
    Names, typer.Option("--deny-principal", help="Who may not, such as User:bob.", show_default=False)
]
AllowHost = Annotated[Names, typer.Option("--allow-host", help="From which addresses; all (*).", show_default=False)]
DenyHost = Annotated[Names, typer.Option("--deny-host", help="From which addresses not; all (*).", show_default=False)]
Operations = Annotated[
    Names, typer.Option("--operation", help="What, such as Read or DescribeConfigs; All.", show_default=False)
]
Principals = Annotated[Names, typer.Option("--principal", help="Only ACLs of this principal.", show_default=False)]
AsProducer = Annotated[bool, typer.Option("--producer", help="What a producer needs: --topic and --transactional-id.")]
AsConsumer = Annotated[bool, typer.Option("--consumer", help="What a consumer needs: --topic and --group.")]
Idempotent = Annotated[bool, typer.Option("--idempotent", help="With --producer: it may be idempotent.")]

Place = tuple[Resource, str]
Grants = dict[Place, tuple[Operation, ...]]

_OF_CONSUMERS = {Resource.TOPIC: (Operation.READ, Operation.DESCRIBE), Resource.GROUP: (Operation.READ,)}
_OF_PRODUCERS = {
    Resource.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
    Resource.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}


@app.command("add")
def add(
    cluster: Cluster = False,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    delegation_token: DelegationToken = None,
    user_principal: UserPrincipal = None,
    pattern: Pattern = "literal",
    allow_principal: AllowPrincipal = None,
    deny_principal: DenyPrincipal = None,
    allow_host: AllowHost = None,
    deny_host: DenyHost = None,
    operation: Operations = None,
    producer: AsProducer = False,
    consumer: AsConsumer = False,
    idempotent: Idempotent = False,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Add ACLs to resources. They are in force within a second."""
    places = _places(cluster, topic, group, transactional_id, delegation_token, user_principal)
    entries = list(_entries(allow_principal, allow_host, deny_principal, deny_host))
    if not entries:
        raise ConfigError("say whom the ACLs are about: --allow-principal or --deny-principal")
    grants = _grants(places, operation, producer, consumer, idempotent)
    named = _pattern(pattern, finds=False)
    acls = [
        AclBinding(resource, name, named, principal, host, each, permission)
        for (resource, name), operations in grants.items()
        for (principal, host, permission), each in product(entries, operations)
    ]
    for acl in acls:
        acl.check()
    with find_cluster(folder, address, timeout).admin() as admin:
        admin.create_acls(acls)
    _print(acls, as_json, "Adding ACLs")


@app.command("list")
def list_acls(
    cluster: Cluster = False,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    delegation_token: DelegationToken = None,
    user_principal: UserPrincipal = None,
    pattern: Pattern = "literal",
    principal: Principals = None,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """List ACLs: of resources, or all."""
    places = _places(cluster, topic, group, transactional_id, delegation_token, user_principal)
    named = _pattern(pattern, finds=True) if places else PatternType.ANY
    filters = [AclFilter(resource, name, named) for resource, name in places] or [AclFilter()]
    with find_cluster(folder, address, timeout).admin() as admin:
        found = {acl for each in filters for acl in admin.describe_acls(each)}
    _print(sorted(acl for acl in found if not principal or acl.principal in principal), as_json, "Current ACLs")


@app.command("remove")
def remove(
    cluster: Cluster = False,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    delegation_token: DelegationToken = None,
    user_principal: UserPrincipal = None,
    pattern: Pattern = "literal",
    allow_principal: AllowPrincipal = None,
    deny_principal: DenyPrincipal = None,
    allow_host: AllowHost = None,
    deny_host: DenyHost = None,
    operation: Operations = None,
    producer: AsProducer = False,
    consumer: AsConsumer = False,
    idempotent: Idempotent = False,
    force: Annotated[bool, typer.Option("--force", help="Do not ask first.")] = False,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Remove ACLs of resources: those that the options describe, or without a principal all."""
    places = _places(cluster, topic, group, transactional_id, delegation_token, user_principal)
    grants = _grants(places, operation, producer, consumer, idempotent)
    named = _pattern(pattern, finds=True)
    entries = list(_entries(allow_principal, allow_host, deny_principal, deny_host))
    if not entries and (operation or producer or consumer):
        raise ConfigError("say whose ACLs are to go: --allow-principal or --deny-principal; without operations all go")
    filters = [
        AclFilter(resource, name, named, principal, host, each, permission)
        for (resource, name), operations in grants.items()
        for (principal, host, permission), each in product(entries, operations)
    ] or [AclFilter(resource, name, named) for resource, name in grants]
    if not force:
        typer.confirm(f"Remove the ACLs of {_named(grants)}?", abort=True, err=True)
    with find_cluster(folder, address, timeout).admin() as admin:
        _print(admin.delete_acls(filters), as_json, "Removed ACLs")


def _places(
    cluster: bool, topics: Names, groups: Names, transactional_ids: Names, tokens: Names, users: Names
) -> list[Place]:
    named = {
        Resource.TOPIC: topics,
        Resource.GROUP: groups,
        Resource.CLUSTER: [CLUSTER_NAME] if cluster else None,
        Resource.TRANSACTIONAL_ID: transactional_ids,
        Resource.DELEGATION_TOKEN: tokens,
        Resource.USER: users,
    }
    return [(resource, name.strip()) for resource, names in named.items() for name in names or ()]


def _grants(places: list[Place], operation: Names, is_producer: bool, is_consumer: bool, is_idempotent: bool) -> Grants:
    """The operations that are meant, by resource."""
    if not places:
        raise ConfigError(
            "name a resource: --topic, --group, --cluster, --transactional-id, --delegation-token or --user-principal"
        )
    kinds = {resource for resource, _ in places}
    if not (is_producer or is_consumer):
        if is_idempotent:
            raise ConfigError("--idempotent goes with --producer")
        operations = tuple(_operation(each) for each in operation or ["All"])
        for resource in kinds:
            _check_operations(resource, operations)
        return dict.fromkeys(places, operations)
    if operation:
        raise ConfigError("--producer and --consumer stand for operations: leave --operation away")
    if Resource.TOPIC not in kinds or (is_consumer and Resource.GROUP not in kinds):
        raise ConfigError("--producer needs --topic; --consumer needs --topic and --group")
    fitting = [_OF_PRODUCERS] * is_producer + [_OF_CONSUMERS] * is_consumer
    strange = kinds.difference(*fitting)
    if strange:
        raise ConfigError(f"{_title(min(strange).name)} is nothing that --producer or --consumer is about")
    grants: Grants = {}
    for place in places:
        found = (each for operations in fitting for each in operations.get(place[0], ()))
        grants[place] = tuple(dict.fromkeys(found))
    if is_idempotent:
        grants[Resource.CLUSTER, CLUSTER_NAME] = (Operation.IDEMPOTENT_WRITE,)
    return grants


def _check_operations(resource: Resource, operations: Iterable[Operation]) -> None:
    possible = {*OPERATIONS[resource], Operation.ALL}
    for each in operations:
        if each not in possible:
            names = ", ".join(_title(known.name) for known in sorted(possible))
            raise ConfigError(f"{_title(each.name)} is no operation on {_title(resource.name)}: it has {names}")


def _entries(
    allowed: Names, allowed_hosts: Names, denied: Names, denied_hosts: Names
) -> Iterator[tuple[str, str, PermissionType]]:
    for principals, hosts, permission in (
        (allowed, allowed_hosts, PermissionType.ALLOW),
        (denied, denied_hosts, PermissionType.DENY),
    ):
        if hosts and not principals:
            raise ConfigError(f"a host goes with --{permission.name.lower()}-principal")
        for principal, host in product(principals or (), hosts or ("*",)):
            yield principal, host, permission


def _pattern(text: str, *, finds: bool) -> PatternType:
    found = PatternType.__members__.get(text.upper())
    possible = [PatternType.LITERAL, PatternType.PREFIXED] + [PatternType.ANY, PatternType.MATCH] * finds
    if found not in possible:
        raise ConfigError(f"--resource-pattern-type {text}: choose from {', '.join(p.name.lower() for p in possible)}")
    return found


def _operation(text: str) -> Operation:
    known = {_title(each.name).lower(): each for each in Operation if each > Operation.ANY}
    found = known.get(text.replace("_", "").lower())
    if found is None:
        raise ConfigError(f"--operation {text}: choose from {', '.join(_title(each.name) for each in known.values())}")
    return found


def _title(name: str) -> str:
    """As Kafka's tool writes it: DescribeConfigs."""
    return "".join(each.capitalize() for each in name.split("_"))


def _named(places: Iterable[Place]) -> str:
    return ", ".join(f"{_title(resource.name)} {name}" for resource, name in places)


def _print(acls: Iterable[AclBinding], as_json: bool, what: str) -> None:
    if as_json:
        print_json(
            [
                {
                    "resource_type": acl.resource.name,
                    "resource_name": acl.name,
                    "pattern_type": acl.pattern.name,
                    "principal": acl.principal,
                    "host": acl.host,
                    "operation": acl.operation.name,
                    "permission_type": acl.permission.name,
                }
                for acl in acls
            ]
        )
        return
    by_resource: dict[tuple[Resource, str, PatternType], list[AclBinding]] = {}
    for acl in acls:
        by_resource.setdefault((acl.resource, acl.name, acl.pattern), []).append(acl)
    if not by_resource:
        notice("There are no such ACLs.")
    for (resource, name, pattern), found in by_resource.items():
        print_text(
            f"{what} for resource `ResourcePattern(resourceType={resource.name}, name={name}, patternType={pattern.name})`:"
        )
        print_text(
            *(
                f"  (principal={acl.principal}, host={acl.host}, operation={acl.operation.name}, "
                f"permissionType={acl.permission.name})"
                for acl in found
            )
        )
