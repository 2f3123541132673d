"""A stream from topic to topic whose tasks and drivers are killed, each at a point that is known and not guessed.

``StreamUnderFire`` has Kafka in this process and one driver at a time in a process of its own (``killed_driver``), with its JVM. Each kind
of kill brings the driver to its point, shows that it is there, kills, and starts the next driver:

- ``task``: a worker process that has written some rows of a batch, found by the lock that it holds;
- ``before_planning``: records came while the driver stood still, and no entry of the ledger names them;
- ``after_the_range_file``: the JVM stood still, an entry was written, and no batch has it;
- ``mid_task``: some rows of a batch are in the topic, others are not;
- ``after_the_write``: all rows of a batch are in the topic, and no task has said so;
- ``before_the_transactions_commit``: the tasks have said so, and the batch's transaction has not ended (exactly once only);
- ``before_the_commit``: the batch is written, and Spark has not committed it.

A driver is killed with its JVM by SIGKILL of their process group; what their workers do then is watched, too.

A stream that is written at least once has counts per key, and is right as a table. One that is written exactly once has copies, and
whoever reads what is committed gets each of them once.
"""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import raylog.testing
from raylog.client.sync import Consumer, Producer
from raylog.testing.kafka import Kafka

KILLS = ("task", "before_planning", "after_the_range_file", "mid_task", "after_the_write", "before_the_commit")
KILLS_OF_TRANSACTIONS = (*KILLS, "before_the_transactions_commit")
KEYS = 12
_PATIENCE_S = 240.0
_DRIVER = Path(__file__).with_name("killed_driver.py")


class StreamUnderFire:
    """One stream and its whole life. ``with``; then kills, in any order; then ``finish``."""

    def __init__(self, threads: int = 2, *, exactly_once: bool = False) -> None:
        """``threads``: of each driver's Spark, and tasks of a batch."""
        self._threads = threads
        self._exactly_once = exactly_once
        self._copies: list[int] = []
        """Those that a reader of what is committed has got."""
        self.folder = Path(tempfile.mkdtemp(prefix="rl"))
        self.checkpoint = self.folder / "checkpoint"
        self.worker_ends_s: list[float] = []
        """How long worker processes lived on after their driver."""
        self._broker = raylog.testing.broker(topics={"a": 2, "b": 2})
        self._kafka: Kafka
        self._driver: subprocess.Popen[bytes] | None = None
        self._drivers = 0
        self._sent = 0

    def __enter__(self) -> StreamUnderFire:
        self._kafka = self._broker.__enter__()
        (self.folder / "address").write_bytes(pickle.dumps(self._kafka.address))
        self._reader = Consumer(self._kafka.address, auto_offset_reset="earliest", isolation_level="read_committed")
        self._reader.assign([("b", number) for number in range(2)])
        self.send()
        self.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._driver is not None:
            self._kill()
        self._reader.close()
        self._broker.__exit__(*error)
        shutil.rmtree(self.folder, ignore_errors=True)

    # ------------------------------------------------------------------ the stream

    def send(self) -> None:
        """Two more records for each key of topic a."""
        numbers = range(self._sent, self._sent + 2 * KEYS)
        with Producer(self._kafka.address) as producer:
            keys = [b"key %d" % (number % KEYS) for number in numbers]
            producer.send_batch("a", [b"%d" % number for number in numbers], keys=keys).result(60)
        self._sent += len(numbers)

    def start(self) -> None:
        """The next driver; returns when its query runs."""
        self._drivers += 1
        with open(self._said_in, "wb") as out, open(self.folder / f"driver-{self._drivers}.err", "wb") as err:
            command = [
                sys.executable,
                str(_DRIVER),
                str(self.folder / "address"),
                str(self.folder),
                "a",
                "b",
                str(self._threads),
                "exactly-once" if self._exactly_once else "at-least-once",
            ]
            self._driver = subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True)
        self._await(lambda: "repeated_batches" in self.said, "the driver's query")

    @property
    def said(self) -> dict[str, Any]:
        """What the driver has noted, merged."""
        merged: dict[str, Any] = {}
        for line in self._said_in.read_text().splitlines():
            merged |= json.loads(line)
        return merged

    def settle(self) -> None:
        """Until all that was sent is in batches that are committed."""
        self._await(lambda: self._is_complete and self._offsets == self._commits, "the stream to settle")

    def finish(self) -> dict[str, Any]:
        """End the last driver in order; what it says of table and recomputation."""
        self.settle()
        assert self._driver is not None
        (self.folder / "finish").touch()
        assert self._driver.wait(_PATIENCE_S) == 0, self._errors
        self._driver = None
        return self.said

    # ------------------------------------------------------------------ kills

    def task(self) -> None:
        self.settle()
        before, reruns = self._written, self.said["reruns"]
        self._arm("mid-task")
        self.send()
        self._await(lambda: self._stops("row") and self._written > before, "a task to stop amid its rows")
        writers = self._writers()
        assert writers, "a task writes"
        (self.folder / "armed").unlink()
        for pid in {*writers, *self._stops("row")}:
            with suppress(ProcessLookupError):  # it has ended with one of the others
                os.kill(pid, signal.SIGKILL)
        self._await(lambda: self.said["reruns"] > reruns, "the task to be run again")
        self._clear()
        self.settle()

    def before_planning(self) -> None:
        assert self._driver is not None
        self.settle()
        os.killpg(self._driver.pid, signal.SIGSTOP)
        before = self._entries
        self.send()
        assert self._entries == before
        self._kill_and_restart(repeats=0)

    def after_the_range_file(self) -> None:
        self.settle()
        os.kill(self.said["jvm"], signal.SIGSTOP)
        before, batches = self._entries, self._offsets
        self.send()
        self._await(lambda: self._entries > before, "an entry of the ledger")
        assert self._offsets == batches
        self._kill_and_restart(repeats=0)

    def mid_task(self) -> None:
        self.settle()
        before = self._written
        self._arm("mid-task")
        self.send()
        self._await(lambda: self._stops("row") and self._written > before, "a batch to be written in part")
        assert self._offsets > self._commits
        self._kill_and_restart(repeats=1)

    def after_the_write(self) -> None:
        self.settle()
        before = self._written
        self._arm("after the write")
        self.send()
        self._await(lambda: len(self._stops("end")) == self._threads, "all tasks of a batch to stop at their ends")
        handed_over = sum(self._stops("end").values())
        self._await(lambda: self._written == before + handed_over, "what was handed over to be written")
        assert self._offsets > self._commits
        self._kill_and_restart(repeats=1)

    def before_the_transactions_commit(self) -> None:
        self.settle()
        self._arm("before the transaction's commit")
        self.send()
        self._await((self.folder / "batch").exists, "a batch to be written")
        assert not self._is_complete
        self._kill_and_restart(repeats=1)

    def before_the_commit(self) -> None:
        self.settle()
        self._arm("before the commit")
        self.send()
        self._await((self.folder / "batch").exists, "a batch to be written")
        assert self._offsets > self._commits
        self._kill_and_restart(repeats=1, skips=1)

    def _kill_and_restart(self, *, repeats: int, skips: int = 0) -> None:
        """``repeats``: batches that the next driver writes anew, at least once; ``skips``: those that it finds committed."""
        workers = [*self._stops("row"), *self._stops("end"), *self._writers()]
        self._kill()
        killed_s = time.monotonic()
        self._await(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "the workers to end")
        if workers:
            self.worker_ends_s.append(time.monotonic() - killed_s)
        self._clear()
        self.start()
        self.settle()
        self._await(lambda: self.said["batches"] + self.said["skipped_batches"] >= 1, "a batch to be counted")
        found = self.said["repeated_batches"], self.said["skipped_batches"]
        assert found == ((0, skips) if self._exactly_once else (repeats, 0)), self.said

    def _kill(self) -> None:
        """The driver and its JVM."""
        assert self._driver is not None
        os.killpg(self._driver.pid, signal.SIGKILL)
        self._driver.wait()
        self._driver = None

    def _arm(self, point: str) -> None:
        (self.folder / "armed").write_text(point)

    def _clear(self) -> None:
        for path in self.folder.glob("*"):
            if path.name in ("armed", "batch") or path.name.startswith(("row-", "end-")):
                path.unlink()

    # ------------------------------------------------------------------ what is so

    def _stops(self, kind: str) -> dict[int, int]:
        """The pids of tasks that stopped there, and how many rows each had handed over."""
        found = self.folder.glob(f"{kind}-*")
        return {int(path.name.partition("-")[2]): int(path.read_text()) for path in found}

    def _writers(self) -> list[int]:
        """The pids of processes that write as tasks, or may: with transactions nothing but their brokers tells them from other workers."""
        if not self._exactly_once:
            holder = self._holder_of_a_lock()
            return [] if holder is None else [holder]
        assert self._driver is not None
        programs: dict[int, tuple[int, bytes]] = {}
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                facts = (path / "stat").read_text().rpartition(")")[2].split()
                if int(facts[3]) == self._driver.pid:  # its session
                    programs[int(path.name)] = int(facts[1]), (path / "cmdline").read_bytes()
        return [
            pid
            for pid, (parent, program) in programs.items()
            if b"preloaded_daemon" in program and b"preloaded_daemon" in programs.get(parent, (0, b""))[1]
        ]

    def _holder_of_a_lock(self) -> int | None:
        """The pid of a process that has the right to write as a task."""
        with open(self.checkpoint / "raylog" / ".write.fence") as file:
            asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 64, 0, 0)
            kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else pid

    @property
    def _entries(self) -> int:
        """The number of the ledger's newest entry."""
        return max(int(path.stem) for path in (self.checkpoint / "raylog" / "a").glob("0*.jsonl"))

    @property
    def _offsets(self) -> int:
        """The newest batch that Spark has planned."""
        return self._newest("offsets")

    @property
    def _commits(self) -> int:
        return self._newest("commits")

    def _newest(self, name: str) -> int:
        return max((int(path.name) for path in (self.checkpoint / name).glob("*") if path.name.isdecimal()), default=-1)

    @property
    def _written(self) -> int:
        return len(self._kafka.records("b"))

    @property
    def _is_complete(self) -> bool:
        """Whether topic b has all that was sent to a."""
        if not self._exactly_once:
            return self._sums == self._sent_sums
        self._copies += [int((each.value or b"").rstrip(b".")) for each in self._reader.consume(1000, timeout=0.1)]
        assert len(self._copies) == len(set(self._copies)), f"copies are there twice: {sorted(self._copies)}"
        return len(self._copies) == self._sent

    @property
    def _sums(self) -> dict[str, str]:
        """Topic b as a table."""
        return {
            str((each.key or b"").decode()): (each.value or b"").decode().rstrip(".")
            for each in self._kafka.records("b")
        }

    @property
    def _sent_sums(self) -> dict[str, str]:
        return {
            f"key {key}": f"{len(numbers)} records, sum {sum(numbers)}"
            for key in range(KEYS)
            if (numbers := range(key, self._sent, KEYS))
        }

    @property
    def _said_in(self) -> Path:
        return self.folder / f"driver-{self._drivers}.out"

    @property
    def _errors(self) -> str:
        return (self.folder / f"driver-{self._drivers}.err").read_text()[-4000:]

    def _await(self, condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            if self._driver is not None and self._driver.poll() is not None:
                raise AssertionError(f"the driver ended before {what}: {self._errors}")
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"not within {_PATIENCE_S:g} s: {what}; the driver said {self.said} {self._errors}"
                )
            threading.Event().wait(0.02)
