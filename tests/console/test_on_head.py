"""The console that a cluster of Ray nodes has on its head: whom it lets in, and what it waits for."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from connect_worker import free_port
from console_browser import Browser, Page
from raw_requests import eventually

from raylog.cluster import Cluster
from raylog.console.on_head import HeadConsole, made_password
from raylog.errors import ClusterError, ConfigError
from raylog.testing import Kafka

pytestmark = pytest.mark.core


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[..., HeadConsole]]:
    """Starts the console of what a function finds."""
    started: list[tuple[HeadConsole, threading.Thread]] = []

    def start(find: Callable[[], Cluster], port: int | None = None) -> HeadConsole:
        console = HeadConsole(port or free_port(), password_file=tmp_path / "own" / "password", find=find)
        thread = threading.Thread(target=console.run)
        thread.start()
        started.append((console, thread))
        return console

    yield start
    for console, thread in started:
        console.stop()
        thread.join(60)
        assert not thread.is_alive()


def asked(console: HeadConsole, password: str | None, method: str = "GET", host: str | None = None) -> Page:
    browser = Browser(f"http://127.0.0.1:{console.port}", None)
    given = (
        {} if password is None else {"Authorization": "Basic " + base64.b64encode(f"me:{password}".encode()).decode()}
    )
    return browser.ask(method, "/", headers=given | ({} if host is None else {"Host": host}))


def test_it_waits_for_the_cluster_wants_its_password_and_changes_nothing(
    kafka: Kafka, tmp_path: Path, running: Callable[..., HeadConsole]
) -> None:
    serves = threading.Event()

    def find() -> Cluster:
        if not serves.is_set():
            raise ClusterError("the cluster does not serve yet: 1 of 3 disks has joined")
        return Cluster(kafka.address)

    console = running(find)
    eventually(lambda: console.status()["problem"] == str(_error(find)), "it to say what it waits for")
    assert console.status()["url"] is None
    serves.set()
    eventually(lambda: console.status()["url"], "the console")
    file = tmp_path / "own" / "password"
    assert console.status() == {
        "url": f"http://127.0.0.1:{console.port}/",
        "password_file": str(file),
        "problem": None,
    }
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    password = file.read_text().strip()
    assert len(password) >= 32
    assert asked(console, None).status == asked(console, "wrong").status == 401
    shown = asked(console, password)
    assert shown.status == 200 and "read-only" in shown.text
    assert asked(console, password, "POST").status == 403
    assert asked(console, password, host="a-strangers.example").status == 421


def _error(find: Callable[[], Cluster]) -> ClusterError:
    with pytest.raises(ClusterError) as caught:
        find()
    return caught.value


def test_a_port_that_is_taken_is_waited_for(kafka: Kafka, running: Callable[..., HeadConsole]) -> None:
    first = running(lambda: Cluster(kafka.address))
    eventually(lambda: first.status()["url"], "the console")
    second = running(lambda: Cluster(kafka.address), first.port)
    eventually(lambda: "cannot listen" in (second.status()["problem"] or ""), "it to say that the port is taken")
    first.stop()
    eventually(lambda: second.status()["url"] == f"http://127.0.0.1:{first.port}/", "the port to be free")


def test_the_password_is_made_once_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "password"
    first = made_password(file)
    assert made_password(file) == first
    file.write_text("")
    with pytest.raises(ConfigError, match="is empty"):
        made_password(file)
    with pytest.raises(ConfigError, match="cannot be"):
        made_password(file / "below")
