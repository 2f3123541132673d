"""The options by which a command decodes messages through a schema registry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raylog.cli.output import notice
from raylog.errors import ConfigError

if TYPE_CHECKING:
    from raylog.schemas.decoding import SchemaDecoder

RegistryUrl = Annotated[
    str | None,
    typer.Option(
        "--schema-registry",
        metavar="URL",
        help="Decode Avro, Protobuf and JSON Schema by the schemas of this registry, such as "
        "https://registry:8081. Needs raylog[schemas].",
        show_default=False,
    ),
]
RegistryUser = Annotated[
    str | None,
    typer.Option("--schema-registry-user", metavar="NAME", help="A user of the registry.", show_default=False),
]
RegistryPasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--schema-registry-password-file",
        metavar="FILE",
        help="Its first line is the password of that user.",
        show_default=False,
    ),
]
RegistryCa = Annotated[
    Path | None,
    typer.Option(
        "--schema-registry-ca",
        metavar="FILE",
        help="The authority in PEM that the registry's certificate is checked by.",
        show_default=False,
    ),
]


def decoder_of(url: str | None, user: str | None, password_file: Path | None, ca: Path | None) -> SchemaDecoder | None:
    """None without a registry. Raises ConfigError, MissingExtraError. Asks the registry nothing."""
    if url is None:
        if user is not None or password_file is not None or ca is not None:
            raise typer.BadParameter("give --schema-registry, which the other --schema-registry-… options are for")
        return None
    from raylog.schemas.decoding import SchemaDecoder
    from raylog.schemas.registry import RegistrySettings

    password = None if password_file is None else password_in(password_file)
    settings = RegistrySettings(url, user, password, ca)
    for line in settings.checked():
        notice(line)
    return SchemaDecoder(settings)


def password_in(path: Path) -> str:
    """A password in a file. Raises ConfigError for one that is empty or can't be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the password cannot be read from {path}: {error}") from error
    password = text.split("\n", 1)[0].rstrip("\r")
    if not password:
        raise ConfigError(f"{path} is empty: its first line is the password")
    return password
