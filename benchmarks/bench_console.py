"""The console in front of 1,000 topics and 10 groups: how long its pages take, and what it costs the servers.

- *Pages*: from the request to the last byte of each page, when the console has kept no answer of its cluster. Both ways to the
  cluster: beside it, as with ``--folder``, and at the listeners, as with ``--bootstrap-server``. The console runs in the
  script's process.
- *Polling*: CPU time of all servers, controllers among them, while five pages are open, each asked for again as often as its
  script does, less what the servers need without any console. A share of all cores, since brokers that are busy use them all.
  Contestants alternate.

The brokers and their controller are the production servers in one process of their own, on one event loop, without Ray: so its CPU
time is that of all servers, and a page waits for all of them in turn. Topics have one partition and one replica; every tenth has
records. Each group has committed offsets of 100 topics.
"""

from __future__ import annotations

import http.client
import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from harness import Benchmark, arguments, cpu_ns

import raylog
from raylog.client.admin.admin import NewTopic
from raylog.cluster import Cluster
from raylog.console.app import console_app
from raylog.console.serving import ConsoleSettings, listening, server_of
from raylog.console.view import ClusterView
from raylog.testing.in_process import cluster
from raylog.types import TopicPartition

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

BROKERS = 3
TOPICS, GROUPS, TOPICS_OF_A_GROUP = 1_000, 10, 100
RECORDS = 100
WINDOW_S = 20.0  # a whole number of the periods for which the console keeps its answers
SECONDS_MAX, SHARE_MAX = 1.0, 0.01
BESIDE, LISTENERS, NONE = "beside the cluster", "at the listeners", "no console"
PAGES = {
    "overview": "/",
    "topics": "/topics",
    "a search among the topics": "/topics?search=99",
    "a topic": "/topics/topic-0100",
    "messages": "/topics/topic-0100/messages",
    "groups": "/groups",
    "a group": "/group?id=group-3",
    "transactions": "/transactions",
    "quotas, users, ACLs": "/access",
    "events": "/events",
}
OPEN = {"/": 2, "/topics": 5, "/topics/topic-0100": 3, "/groups": 3, "/group?id=group-3": 2}
"""Pages that are open at the same time, and the seconds after which each is asked for again."""


class Pages:
    """A console that runs in this process, and the way to its pages."""

    def __init__(self, url: str) -> None:
        self._netloc = urlsplit(url).netloc

    def seconds(self, path: str) -> float:
        start = time.perf_counter()
        connection = http.client.HTTPConnection(self._netloc, timeout=60)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        assert answer.status == 200, (path, answer.status, text[-2_000:])
        return time.perf_counter() - start


def serve(pipe: Connection) -> None:
    """The process of the servers, until the other end of the pipe closes."""
    with cluster(BROKERS) as running:
        pipe.send((running.address, running.bootstrap_servers()))
        with suppress(EOFError):
            pipe.recv()


@contextmanager
def servers() -> Iterator[tuple[int, dict[str, Cluster]]]:
    """The process of the servers, and both ways to the cluster."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=serve, args=(there,))
    process.start()
    there.close()
    try:
        address, bootstrap = here.recv()
        assert process.pid is not None
        yield process.pid, {BESIDE: Cluster(address), LISTENERS: raylog.connect(bootstrap_servers=bootstrap)}
    finally:
        here.close()
        process.join()


@contextmanager
def console(seen: Cluster, clock: Callable[[], float] = time.monotonic) -> Iterator[Pages]:
    settings = ConsoleSettings()
    bound, url = listening(settings)
    server = server_of(console_app(ClusterView(seen, clock=clock), settings), settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        yield Pages(url)
    finally:
        server.should_exit = True
        thread.join()
        bound.close()


def polling(servers_pid: int, seen: Cluster | None) -> float:
    """Share of all cores that the servers take: with the pages open, or with no console."""
    over = threading.Event()

    def poll(pages: Pages, path: str, every_s: float) -> None:
        while not over.is_set():
            pages.seconds(path)
            over.wait(every_s)

    with ExitStack() as running:
        if seen is not None:
            pages = running.enter_context(console(seen))
            threads = [threading.Thread(target=poll, args=(pages, path, every)) for path, every in OPEN.items()]
            for path in OPEN:
                pages.seconds(path)
            for thread in threads:
                thread.start()
                running.callback(thread.join)
        running.callback(over.set)
        start, before_ns = time.perf_counter(), cpu_ns(servers_pid)
        time.sleep(WINDOW_S)
        share = (cpu_ns(servers_pid) - before_ns) / 1e9 / (time.perf_counter() - start) / (os.cpu_count() or 1)
    return share


def fill(seen: Cluster, topics: int) -> None:
    """The topics, records in every tenth, and the groups' offsets."""
    names = [f"topic-{number:04}" for number in range(topics)]
    with seen.admin() as admin:
        admin.create_topics([NewTopic(name, 1, 1) for name in names])
        with seen.producer() as producer:
            for name in names[::10]:
                for number in range(RECORDS):
                    producer.send(name, b'{"number": %d}' % number)
        for number in range(GROUPS):
            read = names[number::GROUPS][:TOPICS_OF_A_GROUP]
            admin.alter_group_offsets(f"group-{number}", {TopicPartition(name, 0): 0 for name in read})


def main() -> int:
    quick = arguments().quick
    topics = 150 if quick else TOPICS
    bench = Benchmark(
        "console",
        f"pages of the console with {topics:,} topics and {GROUPS} groups, and what its polling costs the servers",
        settings={"brokers": BROKERS, "topics": topics, "groups": GROUPS, "pages open": list(OPEN)},
        rounds=3,
        quick=quick,
    )
    with servers() as (pid, ways):
        fill(ways[BESIDE], topics)
        for way, seen in ways.items():
            with console(seen, itertools.count(0, 1_000).__next__) as pages:  # no answer is kept
                for name, path in PAGES.items():
                    pages.seconds(path)
                    values = [pages.seconds(path) for _ in range(bench.rounds)]
                    measured = bench.record(f"page: {name}", way, values, unit="s")
                    bench.target(f"seconds of {name}, {way}", measured.median, at_most=SECONDS_MAX)
        contestants: dict[str, Callable[[], float]] = {NONE: partial(polling, pid, None)}
        for way, seen in ways.items():
            contestants[f"{len(OPEN)} pages open, {way}"] = partial(polling, pid, seen)
        shares = bench.alternate("share of all cores that the servers take", contestants, unit="of all cores")
    for name, measured in shares.items():
        if name != NONE:
            bench.target(
                f"{name}: share of the servers' cores", measured.median - shares[NONE].median, at_most=SHARE_MAX
            )
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
