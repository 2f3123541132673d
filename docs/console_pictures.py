"""Draws the pictures of docs/console.md from a running cluster: ``python docs/console_pictures.py``.

It starts a cluster in this process, fills it, lets a broker's processes die once, opens the console
in Chromium without a window, and writes ``docs/console_*.png``. Needs raylog[console] and a Chromium
on the PATH.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.cluster import Cluster
from raylog.console.app import console_app
from raylog.console.serving import ConsoleSettings, listening, server_of
from raylog.console.view import ClusterView
from raylog.testing.in_process import InProcessCluster, cluster

FOLDER = Path(__file__).parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PICTURE_S = 90
SHOTS = {
    "console_overview.png": ("/", (1200, 900), False),
    "console_messages.png": ("/topics/orders/messages?count=4", (1200, 900), True),
    "console_group.png": ("/group?id=billing", (1200, 800), False),
    "console_events.png": ("/events", (1200, 900), True),
    "console_phone.png": ("/", (390, 844), False),
}
"""By file: the page, the window's width and height, and whether it is dark."""


def browser() -> str | None:
    """The path of a Chromium; None where there is none."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def picture(program: str, url: str, path: Path, size: tuple[int, int], *, is_dark: bool) -> None:
    """A screenshot of the page. Raises CalledProcessError and TimeoutExpired."""
    with tempfile.TemporaryDirectory(prefix="console-") as profile:
        subprocess.run(
            [
                program,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                "--virtual-time-budget=1500",
                f"--user-data-dir={profile}",
                f"--window-size={size[0]},{size[1]}",
                *(
                    ["--blink-settings=preferredColorScheme=0"]
                    if is_dark
                    else ["--blink-settings=preferredColorScheme=1"]
                ),
                f"--screenshot={path}",
                url,
            ],
            check=True,
            capture_output=True,
            timeout=PICTURE_S,
        )


def fill(running: InProcessCluster, admin: AdminClient) -> None:
    """Topics, records and a group that is behind; and the processes of broker 2 die once."""
    names = ("orders", "payments", "shipments", "page-views", "inventory", "refunds")
    admin.create_topics([NewTopic(name, 6, 3) for name in names])
    handle = Cluster(running.address)
    with handle.producer() as producer:
        for number in range(3_000):
            value = f'{{"order": {number}, "customer": "c{number % 97}", "amount": {number * 7 % 500}.5}}'
            producer.send("orders", value.encode(), key=f"c{number % 97}".encode(), headers=[("source", b"shop")])
        producer.flush()
    admin.alter_group_offsets("billing", {("orders", partition): 100 for partition in range(6)})
    admin.alter_group_offsets("shipping", {("orders", partition): 400 for partition in range(6)})
    for node in [node for node in running.launcher.servers if node >> 16 == 2]:
        running.crash(node)
    deadline = time.monotonic() + 60
    while (state := handle.status())["under_replicated"] or state["leaderless"]:
        assert time.monotonic() < deadline, "the cluster does not become whole"
        time.sleep(0.2)


@contextmanager
def console(running: InProcessCluster) -> Iterator[tuple[str, Any]]:
    """The URL of a console of that cluster, and its sampler of lag."""
    settings = ConsoleSettings()
    bound, url = listening(settings)
    app = console_app(ClusterView(Cluster(running.address)), settings)
    server = server_of(app, settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        yield url.rstrip("/"), app.state.lags
    finally:
        server.should_exit = True
        thread.join()
        bound.close()


def main(folder: Path) -> None:
    program = browser()
    if program is None:
        sys.exit(f"none of {', '.join(BROWSERS)} is on the PATH")
    with cluster(3) as running, AdminClient(running.address) as admin:
        fill(running, admin)
        with console(running) as (url, sampler):
            for step in range(12):  # a group that catches up, for its graph
                offset = 100 + 30 * step
                admin.alter_group_offsets("billing", {("orders", partition): offset for partition in range(6)})
                sampler.sample()
                time.sleep(0.5)
            for name, (page, size, is_dark) in SHOTS.items():
                picture(program, url + page, folder / name, size, is_dark=is_dark)
                print(folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
