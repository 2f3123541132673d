"""A broker as `raylog up --secure` sets it up, without Ray, and the texts that the command prints for clients."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raw_requests import eventually

from raylog.client.admin.admin import NewTopic
from raylog.cluster import Cluster
from raylog.configs.server_properties import server_properties
from raylog.disks.listener_file import wanted_listeners
from raylog.secure_up import finish, lines_of, make_secure
from raylog.testing.in_process import InProcessCluster, cluster

ADDRESS = "127.0.0.1"


class PrintedTexts:
    def __init__(self, running: InProcessCluster, printed: str) -> None:
        self.running = running
        self._printed = printed

    def of(self, client: str) -> str:
        """What is to be pasted for that client."""
        found = re.search(rf"^# {re.escape(client)}\n(.*?)\n(\n# |\n*\Z)", self._printed, re.MULTILINE | re.DOTALL)
        assert found is not None, self._printed
        return found[1]


@contextmanager
def printed_texts(folder: Path, *, is_mutual: bool) -> Iterator[PrintedTexts]:
    """With a topic ``events``. ``is_mutual``: with `--client-certificates`."""
    settings: dict[str, Any] = {"configs": server_properties(None), "brokers": 1, "host": ADDRESS}
    settings |= {"listeners": None, "advertised_listeners": None}
    files = make_secure(folder, settings, is_mutual=is_mutual)
    (listeners,) = wanted_listeners(1, [f"{files.protocol}://{ADDRESS}:0"], None, settings["configs"])
    with cluster(brokers=1, listeners=listeners) as running:
        started = Cluster(running.address)
        with started.admin() as admin:
            admin.create_topics([NewTopic("events", 1, 1)])
        security = finish(started, files, started.status()["brokers"])
        if not is_mutual:
            router = running.launcher.servers[0].router
            eventually(lambda: router._sasl._credentials(), "the broker knows the user")
        yield PrintedTexts(running, "\n".join(lines_of(security)))
