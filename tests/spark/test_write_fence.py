"""One batch of a streaming write at a time: what still writes for an earlier one is waited for, what comes late is shut out."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ray_clusters import eventually

from raylog.errors import ClusterError, ConfigError
from raylog.spark.write_fence import WriteFence, WriteTurn

pytestmark = pytest.mark.spark

PATIENCE_S = 120.0
A, B = "a" * 32, "b" * 32
TASK = """
import sys
from raylog.spark.write_fence import WriteTurn
with WriteTurn(sys.argv[1], sys.argv[2], int(sys.argv[3])).taken(int(sys.argv[4])) as check:
    print("taken", flush=True)
    for line in sys.stdin:
        check()
        print("checked", flush=True)
print("left", flush=True)
"""


class Task:
    """A process that writes in a turn: a line to it is a table of rows."""

    def __init__(self, turn: WriteTurn, number: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", TASK, turn.path, turn.run, str(turn.batch), str(number)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdin and self.process.stdout
        self.input, self.output = self.process.stdin, self.process.stdout

    def says(self) -> str:
        return self.output.readline().strip()

    def write(self) -> None:
        self.input.write("rows\n")
        self.input.flush()


@pytest.fixture
def task() -> Iterator[Callable[[WriteTurn, int], Task]]:
    tasks: list[Task] = []

    def started(turn: WriteTurn, number: int) -> Task:
        tasks.append(Task(turn, number))
        return tasks[-1]

    yield started
    for each in tasks:
        each.process.kill()
        each.process.communicate()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fence"


class Beginning:
    """A batch that begins in a thread; ``events`` has "begun" when it has."""

    def __init__(self, fence: WriteFence, batch: int, path: Path) -> None:
        self.events: list[str] = []
        self._fence, self._batch = fence, batch
        self._thread = threading.Thread(target=self._begin)
        self._thread.start()
        while int(path.read_bytes()[33:53]) < batch:
            threading.Event().wait(0.05)

    def _begin(self) -> None:
        self._fence.begin(self._batch)
        self.events.append("begun")

    def end(self) -> list[str]:
        self._thread.join()
        return self.events


def test_a_batch_that_was_begun_before_is_known_to_the_same_run_and_to_the_next(path: Path) -> None:
    first = WriteFence(path, A, patience_s=PATIENCE_S)
    assert [first.begin(number)[1] for number in (0, 1, 1, 2)] == [False, False, True, False]
    second = WriteFence(path, B, patience_s=PATIENCE_S)
    assert [second.begin(number)[1] for number in (2, 3)] == [True, False]


def test_a_batch_begins_when_no_task_of_an_earlier_one_writes(
    path: Path, task: Callable[[WriteTurn, int], Task]
) -> None:
    turn, _ = WriteFence(path, A, patience_s=PATIENCE_S).begin(6)
    writing = task(turn, 3)
    assert writing.says() == "taken"
    beginning = Beginning(WriteFence(path, B, patience_s=PATIENCE_S), 7, path)
    beginning.events.append("the task goes on")
    writing.write()
    assert writing.says() == "", "it writes no more"
    assert beginning.end() == ["the task goes on", "begun"]
    assert "batch 6 is no longer written: batch 7 has begun" in writing.process.communicate()[1]


def test_a_task_that_is_killed_holds_nobody_up(path: Path, task: Callable[[WriteTurn, int], Task]) -> None:
    fence = WriteFence(path, A, patience_s=PATIENCE_S)
    writing = task(fence.begin(6)[0], 0)
    assert writing.says() == "taken"
    beginning = Beginning(fence, 7, path)
    writing.process.kill()
    assert beginning.end() == ["begun"]


def test_a_task_that_comes_after_its_batch_is_shut_out(path: Path) -> None:
    fence = WriteFence(path, A, patience_s=PATIENCE_S)
    late, _ = fence.begin(6)
    now, _ = fence.begin(7)
    with pytest.raises(ClusterError, match="batch 6 is no longer written: batch 7 has begun"), late.taken(0):
        raise AssertionError("it may write")
    with now.taken(0) as check:
        check()


def test_two_attempts_at_a_task_write_after_each_other(path: Path, task: Callable[[WriteTurn, int], Task]) -> None:
    turn, _ = WriteFence(path, A, patience_s=PATIENCE_S).begin(6)
    lost = task(turn, 1)
    assert lost.says() == "taken"
    other = task(turn, 2)
    assert other.says() == "taken", "tasks do not wait for each other"
    again = task(turn, 1)
    eventually(lambda: waits_for_a_lock(again.process.pid), "the second attempt waits")
    lost.write()
    assert lost.says() == "checked"
    lost.process.kill()
    assert again.says() == "taken"


def waits_for_a_lock(pid: int) -> bool:
    return any("->" in line and f" {pid} " in line for line in Path("/proc/locks").read_text().splitlines())


def test_a_run_ends_when_another_has_taken_over(path: Path) -> None:
    older, newer = (WriteFence(path, run, patience_s=PATIENCE_S) for run in (A, B))
    older.begin(6)
    newer.begin(6)
    with pytest.raises(
        ClusterError, match="another run of the query writes now: this run ends and leaves batch 7 to it"
    ):
        older.begin(7)


def test_a_task_that_does_not_end_is_an_error(path: Path, task: Callable[[WriteTurn, int], Task]) -> None:
    fence = WriteFence(path, A, patience_s=0.2)
    assert task(fence.begin(6)[0], 0).says() == "taken"
    with pytest.raises(ClusterError, match=r"still write after 0\.2 s, and batch 7 must come after them"):
        fence.begin(7)


def test_a_checkpoint_that_executors_do_not_see_is_named(path: Path) -> None:
    turn, _ = WriteFence(path, A, patience_s=PATIENCE_S).begin(6)
    path.unlink()
    with pytest.raises(ConfigError, match="driver and executors share"), turn.taken(0):
        raise AssertionError("it may write")
