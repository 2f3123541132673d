"""raylog's servers without Ray, one process per replica: for figures of single processes and for looking into them.

The controller and the brokers run in the script's process, on the loop of an ``InProcessCluster``; every replica is the
production ``ReplicaServer`` on uvloop in a process of its own, as in its actor. Each such process counts how many
record batches it decodes: all decoding in raylog goes through one C class that ``raylog.records.codec`` holds, and here
that name stands for a counting twin. ``pids`` and ``decoded_batches`` ask the processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import uvloop

from raylog.actors.malloc_settings import keep_freed_memory
from raylog.actors.survivors import Survivors
from raylog.client.admin.admin import NewTopic
from raylog.client.links.address import ClusterAddress
from raylog.client.sync import AdminClient
from raylog.records import codec
from raylog.server.replica_server import ReplicaServer
from raylog.server.spec import ServerSpec
from raylog.testing.in_process import InProcessCluster, InProcessLauncher
from raylog.types import Endpoint

_decoded = 0


def _count_decoding() -> None:
    original = codec.DefaultRecordBatch

    def counting(buffer: Any) -> Any:
        global _decoded
        _decoded += 1
        return original(buffer)

    codec.DefaultRecordBatch = counting  # type: ignore[misc, assignment]


def _serve(spec: ServerSpec, port: Pipe, build: Callable[[ServerSpec], ReplicaServer]) -> None:
    _count_decoding()
    keep_freed_memory()

    async def main() -> None:
        server = build(spec)
        port.send(await server.start())
        Survivors().watch()
        ended = asyncio.create_task(server.ended())
        loop = asyncio.get_running_loop()
        loop.add_reader(port.fileno(), answer, server)
        await ended

    def answer(server: ReplicaServer) -> None:
        try:
            asked = port.recv()
        except EOFError:
            raise SystemExit(0) from None
        port.send(_decoded if asked is None else getattr(server, asked))

    uvloop.run(main())


class ProcessLauncher(InProcessLauncher):
    """Starts replicas as processes; everything else as its parent does."""

    def __init__(self, loop: asyncio.AbstractEventLoop, replica: type[ReplicaServer]) -> None:
        super().__init__(loop)
        self._replica = replica
        self.processes: dict[int, tuple[multiprocessing.process.BaseProcess, Pipe]] = {}
        self._starting = threading.Lock()

    def launch(self, kind: str, spec: ServerSpec) -> Endpoint:
        if kind != "replica":
            return super().launch(kind, spec)
        context = multiprocessing.get_context("spawn")
        with self._starting:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(spec, theirs, self._replica), daemon=True)
            process.start()
            theirs.close()
            self.processes[spec.node_id] = (process, ours)
        endpoint: Endpoint = ours.recv()
        return endpoint

    def end_processes(self) -> None:
        for process, pipe in self.processes.values():
            pipe.close()
            process.join(10)
            process.kill()


class ReplicaProcesses:
    """A running cluster. Use ``replica_processes``."""

    def __init__(self, running: InProcessCluster, launcher: ProcessLauncher) -> None:
        self._running = running
        self._launcher = launcher

    @property
    def address(self) -> ClusterAddress:
        return self._running.address

    def create_topic(self, topic: str, *, replication_factor: int) -> None:
        """One partition; returns when its ISR is whole."""
        configs = {"min.insync.replicas": str(min(2, replication_factor))}
        with AdminClient(self.address) as admin:
            admin.create_topics(NewTopic(topic, 1, replication_factor, configs))
            while (
                len(admin.describe_topics(topic)[topic].partitions[0].isr) < replication_factor
                or self.leader(topic) < 0
            ):
                threading.Event().wait(0.02)

    def leader(self, topic: str) -> int:
        """The node id of the leader; −1 while nobody leads."""
        with AdminClient(self.address) as admin:
            partition = admin.describe_topics(topic)[topic].partitions[0]
            return partition.leader_node if partition.leader >= 0 else -1

    def bootstrap_servers(self) -> str:
        """Where Kafka clients reach the brokers."""
        return self._running.bootstrap_servers()

    def ask(self, node: int, attribute: str) -> Any:
        """An attribute of a replica's server."""
        _, pipe = self._launcher.processes[node]
        pipe.send(attribute)
        return pipe.recv()

    @property
    def pids(self) -> dict[int, int]:
        """Node id → process id of every replica's server."""
        return {node: process.pid or 0 for node, (process, _) in self._launcher.processes.items()}

    def decoded_batches(self) -> int:
        """How many record batches all those processes have decoded so far."""
        total = 0
        for _, pipe in self._launcher.processes.values():
            pipe.send(None)
            total += pipe.recv()
        return total


@contextlib.contextmanager
def replica_processes(brokers: int, replica: type[ReplicaServer] = ReplicaServer) -> Iterator[ReplicaProcesses]:
    """A cluster of that many brokers, in a temporary folder, until the end of ``with``. ``replica``: another class of replicas."""
    folder = Path(tempfile.mkdtemp(prefix="rlb"))
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    running = InProcessCluster(folder, brokers)
    running.launcher = launcher = ProcessLauncher(running.loop, replica)
    try:
        running.start()
        yield ReplicaProcesses(running, launcher)
    finally:
        running.stop()
        launcher.end_processes()
        shutil.rmtree(folder, ignore_errors=True)
