"""Files in the format of Java's properties, and values that stand elsewhere.

::

    ${env:NAME}          the environment variable NAME, as Kafka's EnvVarConfigProvider gives it
    ${file:PATH:NAME}    the entry NAME of the properties file PATH, as Kafka's FileConfigProvider does

No provider has to be declared for these two. What such a value gives is taken as it stands: a
reference in it is not followed. Errors name the reference and never a value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from raylog.errors import ConfigError

_REFERENCE = re.compile(r"\$\{([^}]*)\}")


def dotted(name: str) -> str:
    """A config's name, which keyword arguments write with ``_`` for each ``.``. One that has dots
    stands as it is: names of listeners may have ``_``.
    """
    return name if "." in name else name.replace("_", ".")


def read_properties(path: Path) -> dict[str, str]:
    """The entries of a file. Raises ConfigError for one that cannot be read, or that has a name
    twice.
    """
    from javaproperties import InvalidUEscapeError, load  # not at the top: most starts read no file

    def once(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
        values: dict[str, str] = {}
        for name, value in pairs:
            if name in values:
                raise ConfigError(f"{path} has {name} twice: keep one of them")
            values[name] = value
        return values

    try:
        with path.open(encoding="utf-8") as file:
            return load(file, object_pairs_hook=once)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, InvalidUEscapeError) as error:
        raise ConfigError(f"{path} is no properties file: {error}") from None


def resolved(name: str, text: str, *, keeps_files: bool = False) -> str:
    """The value of the config ``name`` with what its references stand for. ``keeps_files``: those to
    files stay, with the whole path. Raises ConfigError for a reference that leads nowhere.
    """

    def put(match: re.Match[str]) -> str:
        value = _referred(f"{name}={match.group()}", match.group(1))
        if not keeps_files or not match.group(1).startswith("file:"):
            return value
        path, _, entry = match.group(1).removeprefix("file:").rpartition(":")
        return f"${{file:{Path(path).absolute()}:{entry}}}"

    return _REFERENCE.sub(put, text)


def _referred(where: str, reference: str) -> str:
    provider, _, place = reference.partition(":")
    if provider == "env":
        if place not in os.environ:
            raise ConfigError(f"{where}: the environment variable {place!r} is not set")
        return os.environ[place]
    if provider == "file":
        path, colon, entry = place.rpartition(":")
        if not colon or not path or not entry:
            raise ConfigError(f"{where}: write ${{file:PATH:NAME}}, the NAME of an entry of the properties file PATH")
        try:
            return read_properties(Path(path))[entry]
        except KeyError:
            raise ConfigError(f"{where}: {path} has no {entry}") from None
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
    raise ConfigError(f"{where}: values come from ${{env:NAME}} and ${{file:PATH:NAME}}, not from {provider!r}")
