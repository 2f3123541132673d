"""``raylog users``: who may authenticate at a listener that asks for it, and with which password.

A password is read from the terminal, from standard input or from a file. It is never an argument,
since every process of the machine can read those.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, Folder, Timeout, find_cluster
from raylog.cli.output import AsJson, print_columns, print_json, print_text
from raylog.cli.remote import ClusterApp
from raylog.errors import ConfigError
from raylog.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramMechanism

app = ClusterApp(help="Users: list them, set their passwords, delete them.", no_args_is_help=True)

User = Annotated[str, typer.Argument(help="The user's name.")]
Mechanism = Annotated[
    list[str] | None,
    typer.Option(
        "--mechanism",
        help=f"{' or '.join(each.sasl_name for each in ScramMechanism)}; may be repeated. All if none is given.",
        show_default=False,
    ),
]
_ALL = tuple(mechanism.sasl_name for mechanism in ScramMechanism)


@app.command("list")
def list_users(
    folder: Folder = None, address: Address = None, timeout: Timeout = CONNECT_TIMEOUT_S, as_json: AsJson = False
) -> None:
    """List the users that have a password, and the mechanisms that it is kept for."""
    with find_cluster(folder, address, timeout).admin() as admin:
        found = admin.describe_users()
    if as_json:
        print_json([{"user": each.user, "iterations": dict(each.iterations)} for each in found])
        return
    rows = [(each.user, name, str(count)) for each in found for name, count in each.iterations.items()]
    print_columns(("User", "Mechanism", "Iterations"), rows)


@app.command("set")
def set_user(
    user: User,
    password_file: Annotated[
        Path | None,
        typer.Option(
            "--password-file",
            help="A file that holds the password; - is standard input. Without it you are asked for the password.",
            show_default=False,
        ),
    ] = None,
    mechanism: Mechanism = None,
    iterations: Annotated[
        int, typer.Option(min=ITERATIONS_MIN, max=ITERATIONS_MAX, help="Rounds of hashing; more slow down guessing.")
    ] = ITERATIONS_MIN,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Add a user, or replace a user's password.

    Connections that are open stay open; they need the new password when they authenticate again.
    """
    names = tuple(mechanism or _ALL)
    with find_cluster(folder, address, timeout).admin() as admin:
        password = _password(user, password_file)
        admin.set_user(user, password, mechanisms=names, iterations=iterations)
    if as_json:
        print_json({"user": user, "iterations": dict.fromkeys(names, iterations)})
    else:
        print_text(f"User {user} can authenticate by {', '.join(names)}")


@app.command("delete")
def delete_user(
    user: User,
    mechanism: Mechanism = None,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Delete a user's password, for all mechanisms or for some. The connections that it opened end."""
    with find_cluster(folder, address, timeout).admin() as admin:
        admin.delete_user(user, mechanisms=mechanism or ())
    if as_json:
        print_json({"user": user, "deleted": mechanism or "all"})
    else:
        print_text(f"User {user} can no longer authenticate" + (f" by {', '.join(mechanism)}" if mechanism else ""))


def _password(user: str, file: Path | None) -> str:
    """One line ending at the end is not part of it. Raises ConfigError."""
    if file is None:
        if not sys.stdin.isatty():
            raise ConfigError("no terminal to ask for the password: use --password-file (- is standard input)")
        told: str = typer.prompt(f"Password of {user}", hide_input=True, confirmation_prompt=True)
        return told
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the password from {file}: {error}") from None
    return text.removesuffix("\n").removesuffix("\r")
