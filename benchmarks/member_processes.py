"""Consumers of a group, each a process of its own, for measuring rebalances: raylog's own consumer, or confluent-kafka's.

``Members`` starts the processes and collects what they tell; each imports its client before it says that it is ready, so that joining is
measured and importing is not. A member polls until it is told to stop, and tells, with the machine's monotonic clock::

    ("ready",)                      its client is imported
    ("assigned", at, partitions)    what it owns now, all of it
    ("read", at, partition)         its first record of a partition since it was assigned something last
    ("committed", at)               a commit that was asked for at its fixed rate has succeeded
    ("left",)                       its consumer is closed

Run as ``python member_processes.py FD``: a pipe to the script that started it.
"""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

POLL_S = 0.1
START_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Membership:
    """What a member is told to be. ``options`` are its client's; ``commits_every_s``: 0 for none but the client's own."""

    client: str  # "raylog" or "confluent-kafka"
    address: Any
    topic: str
    options: dict[str, Any]
    commits_every_s: float = 0.0


# ------------------------------------------------------------------ in the member's process


class _Client(Protocol):
    def poll(self) -> list[int]:
        """The partitions that records came from, after a moment at most."""

    def commit(self, partition: int, offset: int) -> None: ...

    def close(self) -> None: ...


class _Raylog:
    def __init__(self, membership: Membership, owns: Callable[[list[int]], None]) -> None:
        from raylog.client.consumer.sync_consumer import Consumer

        self._topic = membership.topic
        self._consumer = Consumer(membership.address, membership.options)

        def changed(_: list[Any]) -> None:
            owns([key.partition for key in self._consumer.assignment()])

        self._consumer.subscribe(membership.topic, on_assigned=changed)

    def poll(self) -> list[int]:
        return [record.partition for record in self._consumer.consume(timeout=POLL_S)]

    def commit(self, partition: int, offset: int) -> None:
        self._consumer.commit({(self._topic, partition): offset})

    def close(self) -> None:
        self._consumer.close()


class _Confluent:
    def __init__(self, membership: Membership, owns: Callable[[list[int]], None]) -> None:
        from confluent_kafka import Consumer

        self._topic = membership.topic
        self._consumer = Consumer({"bootstrap.servers": membership.address, "log_level": 0, **membership.options})

        def changed(consumer: Any, partitions: list[Any]) -> None:
            owns([each.partition for each in partitions])

        self._consumer.subscribe([membership.topic], on_assign=changed)

    def poll(self) -> list[int]:
        first = self._consumer.poll(POLL_S)
        if first is None:
            return []
        messages = [first, *self._consumer.consume(500, timeout=0)]  # with a timeout it would wait for all 500
        return [each.partition() for each in messages if each.error() is None]

    def commit(self, partition: int, offset: int) -> None:
        from confluent_kafka import TopicPartition

        done = self._consumer.commit(offsets=[TopicPartition(self._topic, partition, offset)], asynchronous=False)
        if done[0].error is not None:
            raise RuntimeError(done[0].error)

    def close(self) -> None:
        self._consumer.close()


_CLIENTS: dict[str, Callable[[Membership, Callable[[list[int]], None]], _Client]] = {
    "raylog": _Raylog,
    "confluent-kafka": _Confluent,
}


def _attend(pipe: Connection, membership: Membership) -> None:
    """One membership, until anything comes over the pipe."""
    owned: list[int] = []
    unread: set[int] = set()

    def owns(partitions: list[int]) -> None:
        owned[:] = partitions
        unread.clear()
        unread.update(partitions)
        pipe.send(("assigned", time.monotonic(), sorted(partitions)))

    client = _CLIENTS[membership.client](membership, owns)
    commit_at = time.monotonic()
    offset = 0
    while not pipe.poll():
        for partition in client.poll():
            if partition in unread:
                unread.discard(partition)
                pipe.send(("read", time.monotonic(), partition))
        if membership.commits_every_s and owned and time.monotonic() >= commit_at:
            commit_at = time.monotonic() + membership.commits_every_s
            offset += 1
            try:
                client.commit(owned[0], offset)
            except Exception as error:  # told, and tried again: the pause goes on
                pipe.send(("refused", time.monotonic(), str(error)))
            else:
                pipe.send(("committed", time.monotonic()))
    client.close()


def main() -> None:
    pipe = Connection(int(sys.argv[1]))
    with contextlib.suppress(EOFError):
        client = pipe.recv()
        importlib.import_module("raylog.client.consumer.sync_consumer" if client == "raylog" else "confluent_kafka")
        pipe.send(("ready",))
        while True:
            said = pipe.recv()
            if isinstance(said, Membership):
                _attend(pipe, said)
            else:
                pipe.send(("left",))


# ------------------------------------------------------------------ in the script's process


@dataclass(slots=True)
class Member:
    """One process, and what it has told of its present membership."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    is_ready: bool = False
    has_left: bool = True
    assigned: list[tuple[float, list[int]]] = field(default_factory=list)
    read: list[tuple[float, int]] = field(default_factory=list)
    committed: list[float] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    @property
    def owned(self) -> list[int]:
        return self.assigned[-1][1] if self.assigned else []


class Members:
    """So many processes with the same client. ``changed`` is notified of whatever one of them tells."""

    def __init__(self, client: str, count: int) -> None:
        self._client = client
        self._stopped = False
        self.changed = threading.Condition()
        self.all = [self._start() for _ in range(count)]
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        self.await_true(lambda: all(each.is_ready for each in self.all), "all clients are imported")

    def _start(self) -> Member:
        ours, theirs = Pipe()
        process = subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()])
        theirs.close()
        ours.send(self._client)
        return Member(process, ours)

    def _listen(self) -> None:
        while not self._stopped:
            pipes = {each.pipe: each for each in self.all if not each.pipe.closed}
            for pipe in wait(list(pipes), timeout=0.2):
                assert isinstance(pipe, Connection)
                with self.changed:
                    try:
                        self._note(pipes[pipe], pipe.recv())
                    except (EOFError, ConnectionError):
                        pipe.close()
                    self.changed.notify_all()

    @staticmethod
    def _note(member: Member, told: tuple[Any, ...]) -> None:
        match told:
            case ("ready",):
                member.is_ready = True
            case ("assigned", at, partitions):
                member.assigned.append((at, partitions))
            case ("read", at, partition):
                member.read.append((at, partition))
            case ("committed", at):
                member.committed.append(at)
            case ("refused", _, why):
                member.refused.append(why)
            case ("left",):
                member.has_left = True

    def await_true(self, condition: Callable[[], Any], what: str, timeout_s: float = START_TIMEOUT_S) -> None:
        with self.changed:
            if not self.changed.wait_for(condition, timeout_s):
                told = [(len(each.owned), each.has_left, each.refused[-1:]) for each in self.all]
                raise TimeoutError(f"not within {timeout_s:.0f} s: {what}; {told}")

    def join(self, membership: Membership) -> float:
        """All of those that are out join; gives the moment after the last was told."""
        for member in self.all:
            if member.has_left:
                member.has_left = False
                member.assigned, member.read, member.committed, member.refused = [], [], [], []
                member.pipe.send(membership)
        return time.monotonic()

    def replace(self, member: Member) -> None:
        """A new process in the place of one that is dead."""
        member.process.wait()
        place = self.all.index(member)
        new = self._start()
        with self.changed:
            self.all[place] = new
        self.await_true(lambda: new.is_ready, "the new member's client is imported")

    def leave(self) -> None:
        """Everybody closes its consumer; returns when all have."""
        for member in self.all:
            if not member.has_left:
                member.pipe.send(None)
        self.await_true(lambda: all(each.has_left for each in self.all), "everybody has left")

    def stop(self) -> None:
        self._stopped = True
        self._thread.join()
        for member in self.all:
            member.pipe.close()
            member.process.kill()
            member.process.wait()


if __name__ == "__main__":
    import member_processes

    member_processes.main()  # not this one's: what comes over the pipe is of that module
