"""``raylog tokens``: delegation tokens, by which workers authenticate without a user's password.

A token's HMAC is a secret. It is printed by ``create`` and ``list``, as by Kafka's tool, or written to
a file that only its owner can read. It is read from a file, never given as an argument, since every
process of the machine can read those.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, Folder, Timeout, find_cluster
from raylog.cli.output import AsJson, print_columns, print_json, print_text
from raylog.cli.remote import ClusterApp
from raylog.errors import ConfigError

if TYPE_CHECKING:
    from raylog.client.security.tokens import TokenDescription

app = ClusterApp(help="Delegation tokens: create, renew, expire and list them.", no_args_is_help=True)

COLUMNS = ("TOKENID", "HMAC", "OWNER", "REQUESTER", "RENEWERS", "ISSUEDATE", "EXPIRYDATE", "MAXDATE")
HmacFile = Annotated[
    Path,
    typer.Option(
        "--hmac-file",
        help="A file that holds the token's HMAC, or that `create --to` has written; - is standard input.",
    ),
]
Owners = Annotated[
    list[str] | None,
    typer.Option(
        "--owner-principal",
        help="Of whom, such as User:alice; may be repeated. All that you may see if none is given.",
        show_default=False,
    ),
]


@app.command("create")
def create_token(
    owner: Annotated[
        str | None,
        typer.Option(
            "--owner-principal",
            help="Whose token it is, such as User:alice. You, if you have authenticated.",
            show_default=False,
        ),
    ] = None,
    renewers: Annotated[
        list[str] | None,
        typer.Option("--renewer-principal", help="Who may renew it, too; may be repeated.", show_default=False),
    ] = None,
    lifetime_ms: Annotated[
        int, typer.Option("--max-life-time-period", help="How long it lasts at most, in milliseconds; -1: the longest.")
    ] = -1,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="A new file for the token; only you can read it. Then no HMAC is printed."),
    ] = None,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Create a token. Whoever has its id and its HMAC can authenticate as its owner."""
    if to is not None and to.exists():
        raise ConfigError(f"{to} exists: a token is written to a new file")
    with find_cluster(folder, address, timeout).admin() as admin:
        made = admin.create_delegation_token(owner=owner, renewers=renewers or (), lifetime_ms=lifetime_ms)
    if to is not None:
        _write(to, made)
    if as_json:
        print_json(_plain(made, shows_hmac=to is None))
    else:
        _print([made], shows_hmac=to is None)


@app.command("renew")
def renew_token(
    hmac_file: HmacFile,
    period_ms: Annotated[
        int, typer.Option("--renew-time-period", help="How long it lasts from now, in milliseconds; -1: the longest.")
    ] = -1,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Have a token last longer, up to the end of its life."""
    hmac = _hmac(hmac_file)
    with find_cluster(folder, address, timeout).admin() as admin:
        until = admin.renew_delegation_token(hmac, period_ms=period_ms)
    _print_until("renewal", until, as_json=as_json)


@app.command("expire")
def expire_token(
    hmac_file: HmacFile,
    period_ms: Annotated[
        int, typer.Option("--expiry-time-period", help="How long it lasts from now, in milliseconds; -1: it ends now.")
    ] = -1,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """End a token, now or soon. The connections that it opened end with it."""
    hmac = _hmac(hmac_file)
    with find_cluster(folder, address, timeout).admin() as admin:
        until = admin.expire_delegation_token(hmac, period_ms=period_ms)
    _print_until("expiry", until, as_json=as_json)


@app.command("list")
def list_tokens(
    owners: Owners = None,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """List the tokens that you may see, with their HMACs."""
    with find_cluster(folder, address, timeout).admin() as admin:
        found = admin.describe_delegation_tokens(owners)
    if as_json:
        print_json([_plain(each) for each in found])
    else:
        _print(found)


def _print(found: list[TokenDescription], *, shows_hmac: bool = True) -> None:
    print_columns(
        COLUMNS,
        [
            (
                each.token_id,
                each.password if shows_hmac else "-",
                each.owner,
                each.requester,
                ",".join(each.renewers) or "-",
                *map(_date, (each.issued_at_ms, each.expires_at_ms, each.ends_at_ms)),
            )
            for each in found
        ],
    )


def _date(unix_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(unix_ms / 1_000))


def _print_until(what: str, until_ms: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"expires_at_ms": until_ms})
    else:
        print_text(f"Completed {what} operation. The token expires at {_date(until_ms)}")


def _plain(each: TokenDescription, *, shows_hmac: bool = True) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "token_id": each.token_id,
        "owner": each.owner,
        "requester": each.requester,
        "renewers": list(each.renewers),
        "issued_at_ms": each.issued_at_ms,
        "expires_at_ms": each.expires_at_ms,
        "ends_at_ms": each.ends_at_ms,
    }
    return plain | ({"hmac": each.password} if shows_hmac else {})


def _write(file: Path, made: TokenDescription) -> None:
    """Raises ConfigError."""
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            json.dump(_plain(made), opened, indent=2)
            opened.write("\n")
    except OSError as error:
        raise ConfigError(
            f"token {made.token_id} is not written to {file}, but there it is; `raylog tokens list` shows it: {error}"
        ) from None


def _hmac(file: Path) -> bytes:
    """What ``create --to`` writes, or the HMAC alone. Raises ConfigError."""
    from raylog.client.security.tokens import hmac_of

    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read a token from {file}: {error}") from None
    if text.lstrip().startswith("{"):
        try:
            text = json.loads(text)["hmac"]
        except (ValueError, KeyError):
            raise ConfigError(f"{file} has no token that `raylog tokens create --to` has written") from None
    return hmac_of(text.strip())
