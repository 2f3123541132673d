"""A worker of Kafka Connect as a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kafka_peer import apache_kafka
from raw_requests import eventually

PATIENCE_S = 120.0


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


class Worker:
    """A distributed worker. Killed at the end of ``running``, and started again by the next one with what its topics hold.

    ``replicas``: of its topics. ``security``: what its clients need to come in.
    """

    def __init__(
        self, bootstrap: str, folder: Path, replicas: int = 3, security: Mapping[str, str] | None = None
    ) -> None:
        self._log = folder / "log"
        self._config = folder / "worker.properties"
        self._url = f"http://127.0.0.1:{(port := free_port())}"
        names = {"config": "connect-configs", "offset": "connect-offsets", "status": "connect-status"}
        self._config.write_text(
            f"bootstrap.servers={bootstrap}\ngroup.id=connect\nlisteners=http://127.0.0.1:{port}\n"
            + "".join(
                f"{kind}.storage.topic={name}\n{kind}.storage.replication.factor={replicas}\n"
                for kind, name in names.items()
            )
            + "offset.storage.partitions=3\nstatus.storage.partitions=1\n"
            + "".join(
                f"{side}.converter=org.apache.kafka.connect.storage.StringConverter\n" for side in ("key", "value")
            )
            + "exactly.once.source.support=enabled\nsession.timeout.ms=6000\nheartbeat.interval.ms=1000\n"
            + "offset.flush.interval.ms=500\nscheduled.rebalance.max.delay.ms=0\n"
            + "".join(
                f"{client}{name}={value}\n"
                for client in ("", "admin.", "producer.", "consumer.")
                for name, value in (security or {}).items()
            )
        )

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        kafka = apache_kafka()
        command = kafka.java_command(
            "org.apache.kafka.connect.cli.ConnectDistributed", str(self._config), folder=kafka.connect_libs()
        )
        with self._log.open("a") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            self._await(process)
            yield
            assert process.poll() is None, self.told()
        finally:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
            process.wait()

    def told(self) -> str:
        return self._log.read_text()[-4_000:]

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"{self._url}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def connect(self, name: str, connector: str, **config: str) -> None:
        """Have the connector run, as it is told; asked again while the worker joins its group."""
        given = {"connector.class": connector, "tasks.max": "1", "exactly.once.support": "required"} | config

        def is_taken() -> bool:
            try:
                self.ask("PUT", f"/connectors/{name}/config", given)
            except urllib.error.HTTPError as error:
                assert error.code in (409, 500, 503), error.read()
                return False
            return True

        eventually(is_taken, f"connector {name} to be taken")

    def _await(self, process: subprocess.Popen[bytes]) -> None:
        def answers() -> bool:
            assert process.poll() is None, self.told()
            try:
                self.ask("GET", "/connectors")
            except (urllib.error.URLError, OSError):
                return False
            return True

        eventually(answers, "the worker to answer")
