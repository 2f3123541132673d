"""What a disk keeps of its broker's listeners: two lines among its properties, and, if there are
settings, a file that only the owner may read.

::

    listeners.json   {"listeners": "SSL://:9093", "ssl.keystore.location": "/etc/raylog/broker.pem", "ssl.key.password": "…", …}

The file has the listeners once more, and goes before the properties: it is replaced as a whole, so
listeners always have the settings that were given with them, whenever a process dies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from raylog.configs.broker_configs import SASL_MECHANISMS
from raylog.configs.server_properties import ServerProperties
from raylog.disks.small_files import read_text, remove_file, replace_file
from raylog.errors import ConfigError
from raylog.security.sasl import OAUTHBEARER
from raylog.wire.listeners import Listeners, check_tokens, checked, has_tls, listeners_of, listeners_of_brokers

LISTENERS_FILE = "listeners.json"
T = TypeVar("T")


def wanted_listeners(
    brokers: int, listeners: Sequence[str] | None, advertised: Sequence[str] | None, configs: ServerProperties
) -> list[Listeners | None]:
    """Those of each broker; None: what it had. Reads their certificates and keys. Raises
    ConfigError, and MissingExtraError.
    """
    told = (listeners or configs.listeners, advertised or configs.advertised_listeners)
    found = checked(listeners_of_brokers(brokers, *told, settings_of_listeners(told[0] or (), configs)))
    if OAUTHBEARER in configs.configs.get(SASL_MECHANISMS, ""):
        for listeners_of_one in filter(None, found):
            check_tokens(listeners_of_one)
    return found


def settings_of_listeners(listeners: Sequence[str], configs: ServerProperties) -> Mapping[str, str]:
    """Those that are told of these listeners, and not of the links inside."""
    settings = configs.listener_configs
    if configs.link_configs and not has_tls(listeners, settings):  # then they are those of the links inside
        return {name: value for name, value in settings.items() if not name.startswith("ssl.")}
    return settings


def listener_lines(listeners: Listeners | None) -> list[str]:
    """The lines of a properties file."""
    if listeners is None:
        return []
    advertised = listeners.advertised_text
    return [f"listeners={listeners}", *([f"advertised.listeners={advertised}"] if advertised else [])]


def write_listeners(path: Path, listeners: Listeners | None, write_properties: Callable[[], T]) -> T:
    """Write the listeners into the disk's folder, durably. ``write_properties`` writes the lines,
    and its value is returned. Raises OSError.
    """
    file = path / LISTENERS_FILE
    if listeners is None or not listeners.configs:
        written = write_properties()
        remove_file(file)
        return written
    both = dict(line.split("=", 1) for line in listener_lines(listeners)) | dict(listeners.configs)
    replace_file(file, json.dumps(both, indent=1) + "\n", mode=0o600)
    return write_properties()


def read_listeners(path: Path, properties: Mapping[str, str]) -> Listeners | None:
    """The listeners of the folder's file, or of its properties. Raises ConfigError."""
    names = ("listeners", "advertised.listeners")
    try:
        found: dict[str, str] = json.loads(read_text(path / LISTENERS_FILE))
    except (FileNotFoundError, NotADirectoryError):
        found = {name: properties[name] for name in names if name in properties}
    except (OSError, ValueError):
        raise ConfigError(f"{LISTENERS_FILE} can't be read") from None
    listeners, advertised = (found.pop(name, None) for name in names)
    return listeners_of(listeners, advertised, found)
