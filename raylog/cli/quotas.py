"""``raylog quotas``: how much clients may send, read and ask for, by user, client id or address.

A quota is about a user, a client id, both together, or an address. ``--default-user`` and its like
stand for all that no other quota names.
"""

from __future__ import annotations

from typing import Annotated

import typer

from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, Folder, Timeout, find_cluster
from raylog.cli.output import AsJson, print_columns, print_json, print_text
from raylog.cli.remote import ClusterApp
from raylog.client.security.quotas import QuotaDescription
from raylog.errors import ConfigError
from raylog.security.quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    KEYS,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    MatchType,
    QuotaComponent,
)

app = ClusterApp(help="Quotas: how much clients may send, read and ask for.", no_args_is_help=True)

User = Annotated[str | None, typer.Option("--user", help="A user.", show_default=False)]
DefaultUser = Annotated[bool, typer.Option("--default-user", help="Each user without a quota of its own.")]
ClientId = Annotated[str | None, typer.Option("--client-id", help="A client id.", show_default=False)]
DefaultClientId = Annotated[bool, typer.Option("--default-client-id", help="Each client id without one of its own.")]
Ip = Annotated[str | None, typer.Option("--ip", help="An address.", show_default=False)]
DefaultIp = Annotated[bool, typer.Option("--default-ip", help="Each address without a quota of its own.")]

Parts = dict[str, str | None]


@app.command("list")
def list_quotas(
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """List quotas: those of the users, client ids and addresses that are named, or all."""
    parts = _parts(user, default_user, client_id, default_client_id, ip, default_ip)
    components = [
        QuotaComponent(kind, MatchType.DEFAULT if name is None else MatchType.EXACT, name)
        for kind, name in parts.items()
    ]
    with find_cluster(folder, address, timeout).admin() as admin:
        found = admin.describe_quotas(components)
    if as_json:
        print_json([{"entity": dict(each.entity), "quotas": dict(each.values)} for each in found])
        return
    rows = [
        (_shown(each), key, f"{value:g}" if value % 1 else f"{value:.0f}")
        for each in found
        for key, value in each.values.items()
    ]
    print_columns(("Entity", "Quota", "Value"), rows)


@app.command("set")
def set_quotas(
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    producer_byte_rate: Annotated[
        float | None, typer.Option(help="Bytes of Produce requests per second and broker.", show_default=False)
    ] = None,
    consumer_byte_rate: Annotated[
        float | None, typer.Option(help="Bytes of Fetch answers per second and broker.", show_default=False)
    ] = None,
    request_percentage: Annotated[
        float | None, typer.Option(help="Share of a broker's time, in percent.", show_default=False)
    ] = None,
    controller_mutation_rate: Annotated[
        float | None, typer.Option(help="Partitions created and deleted per second and broker.", show_default=False)
    ] = None,
    connection_creation_rate: Annotated[
        float | None, typer.Option(help="Connections per second and broker, of an address.", show_default=False)
    ] = None,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Set quotas of one user, client id, user with a client id, or address."""
    parts = _one(_parts(user, default_user, client_id, default_client_id, ip, default_ip))
    given = {
        PRODUCER_BYTE_RATE: producer_byte_rate,
        CONSUMER_BYTE_RATE: consumer_byte_rate,
        REQUEST_PERCENTAGE: request_percentage,
        CONTROLLER_MUTATION_RATE: controller_mutation_rate,
        CONNECTION_CREATION_RATE: connection_creation_rate,
    }
    values = {key: value for key, value in given.items() if value is not None}
    if not values:
        raise ConfigError("name a quota, such as --producer-byte-rate 1048576")
    with find_cluster(folder, address, timeout).admin() as admin:
        admin.alter_quotas(parts, values)
    if as_json:
        print_json({"entity": parts, "quotas": values})
    else:
        print_text(f"Set {', '.join(values)} of {_shown(QuotaDescription(parts, values))}")


@app.command("remove")
def remove_quotas(
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    quota: Annotated[
        list[str] | None,
        typer.Option(
            "--quota", help=f"One of {', '.join(KEYS)}; may be repeated. All if none is given.", show_default=False
        ),
    ] = None,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Remove quotas of one user, client id, user with a client id, or address."""
    parts = _one(_parts(user, default_user, client_id, default_client_id, ip, default_ip))
    unknown = sorted(set(quota or ()) - set(KEYS))
    if unknown:
        raise ConfigError(f"there is no quota {unknown[0]!r}: choose from {', '.join(KEYS)}")
    components = [
        QuotaComponent(kind, MatchType.DEFAULT if name is None else MatchType.EXACT, name)
        for kind, name in parts.items()
    ]
    with find_cluster(folder, address, timeout).admin() as admin:
        known = [key for each in admin.describe_quotas(components, strict=True) for key in each.values]
        removed = [key for key in known if not quota or key in quota]
        if not removed:
            raise ConfigError(f"{_shown(QuotaDescription(parts, {}))} has no such quota")
        admin.alter_quotas(parts, dict.fromkeys(removed))
    if as_json:
        print_json({"entity": parts, "removed": removed})
    else:
        print_text(f"Removed {', '.join(removed)} of {_shown(QuotaDescription(parts, {}))}")


def _parts(
    user: str | None,
    default_user: bool,
    client_id: str | None,
    default_client_id: bool,
    ip: str | None,
    default_ip: bool,
) -> Parts:
    """Raises ConfigError for a name and the default of one kind."""
    parts: Parts = {}
    for kind, name, is_default in (
        (USER, user, default_user),
        (CLIENT_ID, client_id, default_client_id),
        (IP, ip, default_ip),
    ):
        if is_default and name is not None:
            raise ConfigError(f"give --{kind} or --default-{kind}, not both")
        if is_default or name is not None:
            parts[kind] = name
    return parts


def _one(parts: Parts) -> Parts:
    if not parts:
        raise ConfigError("say whom the quota is about: --user, --client-id, both, or --ip")
    return parts


def _shown(description: QuotaDescription) -> str:
    parts = description.entity.items()
    return ", ".join(f"{kind} {name}" if name is not None else f"default {kind}" for kind, name in parts)
