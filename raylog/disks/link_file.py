"""What a disk keeps of TLS on the links between the cluster's processes: a file that only the owner may
read, and that is absent where links are plain.

::

    internal.json    {"ssl.keystore.location": "/etc/raylog/broker.pem", "ssl.truststore.location": "…", …}
"""

from __future__ import annotations

import json
from pathlib import Path

from raylog.configs.server_properties import ServerProperties
from raylog.disks.small_files import read_text, remove_file, replace_file
from raylog.errors import ConfigError
from raylog.wire.internal_tls import check_links

LINKS_FILE = "internal.json"
Links = tuple[tuple[str, str], ...]
"""Settings by name, sorted; none: links are plain."""


def told_links(configs: ServerProperties) -> Links | None:
    """The settings of links, unchecked; None: what the disks have."""
    return None if configs.link_configs is None else tuple(sorted(configs.link_configs.items()))


def wanted_links(configs: ServerProperties, host: str | None) -> Links | None:
    """The settings of links between processes at ``host`` (None: not known yet); None: what the disks
    have. Reads their certificates and keys. Raises ConfigError.
    """
    links = told_links(configs)
    if links is not None:
        check_links(links, host)
    return links


def write_links(path: Path, links: Links) -> None:
    """Write the settings into the disk's folder, durably. Raises OSError."""
    file = path / LINKS_FILE
    if links:
        replace_file(file, json.dumps(dict(links), indent=1) + "\n", mode=0o600)
    else:
        remove_file(file)


def read_links(path: Path) -> Links:
    """The settings of the folder's file. Raises ConfigError."""
    try:
        found: dict[str, str] = json.loads(read_text(path / LINKS_FILE))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except (OSError, ValueError):
        raise ConfigError(f"{LINKS_FILE} can't be read") from None
    return tuple(sorted(found.items()))
