"""The process that starts a cluster's controllers (``raylog.actors.launch``), as whoever starts it
sees it.

It inherits nothing of this process's Ray. What it imports takes a second or two, so it may be
started before there is a Ray: it waits for its order. It reports how far it is in lines of JSON,
and its answer is the last.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from types import TracebackType
from typing import Any

from raylog.errors import ClusterError
from raylog.placement.ray_environment import RAY_CLUSTERS
from raylog.starting import Start

_COMES_UP_S = 30.0  # in which the process has to come up, to be let into Ray, and to end


class LauncherProcess:
    """One such process, which takes one order. As a context manager it is ended at the end,
    whatever it does.
    """

    def __init__(self, *, is_loopback: bool) -> None:
        """``is_loopback``: the Ray listens on 127.0.0.1 only. Ray has to know that when it is
        imported.
        """
        environment = {**os.environ, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "PYTHONWARNINGS": "ignore"}
        if is_loopback:
            environment[RAY_CLUSTERS] = "0"
        environment.pop("RAY_RUNTIME_ENV_HOOK", None)
        environment.pop("RAY_JOB_CONFIG_JSON_ENV_VAR", None)
        self.is_loopback = is_loopback
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (``close`` closes it)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "raylog.actors.launch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="raylog-launcher", daemon=True).start()

    def __enter__(self) -> LauncherProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        self._errors.close()

    def carry_out(self, order: dict[str, Any], start: Start, *, is_own_ray: bool = False) -> dict[str, Any]:
        """Its answer to the order. ClusterError for what it could not do, and where nothing moves
        any more.

        ``is_own_ray``: this process has started the Ray, and may not have connected to it. The
        launcher may be older than this process's connection, so it is told whether that needed the
        token of this machine.
        """
        offers_token = is_own_ray or os.environ.get("RAY_AUTH_MODE", "").lower() == "token"
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({**order, "offers_token": offers_token}))
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended: its errors say why
        silence_s = start.patience.still_s + _COMES_UP_S
        while True:
            try:
                line = self._lines.get(timeout=silence_s)
            except queue.Empty:
                raise ClusterError(
                    f"the controller did not start within {start.patience.still_s:g} s: the Ray at {order['ray_address']} does not "
                    "let a new program in; see `ray status` and Ray's logs, or `raylog doctor`"
                ) from None
            if line is None:
                raise ClusterError(f"the controller did not start: {self._what_went_wrong()}")
            if not line.startswith("{"):
                continue
            said: dict[str, Any] = json.loads(line)
            if "progress" in said:
                start.saw(said["progress"], said["words"])
            elif "error" in said:
                raise ClusterError(f"the controller did not start: {said['error']}")
            else:
                return said

    def _what_went_wrong(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        return self._errors.read().strip()[-2000:]

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)
