"""Commits each batch of a streaming write once, in the driver.

A run of a query owns a transactional id that is its checkpoint's: the id that Spark gives a query in
the checkpoint's ``metadata``. All tasks of a batch write in one transaction, which is committed with
the batch's number in its label, by one record. So whenever a driver dies, the next one finds out
what became of the batch::

    the driver dies                        the next run takes the id over, and
    before the batch begins                writes the batch
    before the transaction is committed    aborts what was written, and writes the batch
    before Spark notes the batch as done   reads the batch's number in the label, and writes nothing

Taking the id over also fences the driver before, should it live. Brokers refuse its late tasks, and
those of an earlier batch. A batch's first record waits for the markers of the batch before, so
batches are in the log in their order.

A batch that is committed already still runs, without a write: the state of its operators and the
watermark come from its tasks. The label also has a digest of the file in which Spark plans a batch.
So a batch that was planned anew, because files of the checkpoint were lost, is not taken for the one
of that number that was committed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from raylog.client.transactions.shared import SharedTransactions
from raylog.errors import ConfigError
from raylog.spark.checkpoint import query_of
from raylog.spark.write_tasks import WriteTasks
from raylog.spark.writing import WriteSummary, written_once


class BatchCommits:
    """The transactions of one run of a query. It takes the id over with its first batch, and again
    with the next batch after one that failed.
    """

    def __init__(self, checkpoint: Path, tasks: WriteTasks) -> None:
        self._checkpoint = checkpoint
        self._tasks = tasks
        self._transactions: SharedTransactions | None = None

    @property
    def is_open(self) -> bool:
        """Whether it holds the id."""
        return self._transactions is not None

    def has(self, number: int) -> bool:
        """Return whether the batch is committed. ConfigError if another batch of that number or a
        later one is, because the checkpoint has lost files.
        """
        last = self._owner().label
        if _number(last) < number:
            return False
        if last == self._label(number):
            return True
        self.close()
        raise ConfigError(
            f"{self._checkpoint} has planned batch {number} anew after batch {_number(last)} was committed: it has lost files, "
            "or is an old copy; give the query a new checkpoint"
        )

    def write(self, df: Any, number: int) -> WriteSummary:
        """Write the rows of a batch and commit them."""
        try:
            return written_once(df, self._tasks, self._owner(), self._label(number))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Abort what is under way, and let go of the connections."""
        transactions, self._transactions = self._transactions, None
        if transactions is not None:
            transactions.close()

    def _owner(self) -> SharedTransactions:
        if self._transactions is None:
            query = query_of(self._checkpoint)
            if query is None:
                raise ConfigError(f"{self._checkpoint} has no file named metadata with the id of its query")
            self._transactions = SharedTransactions(self._tasks.address, f"raylog-stream-{query}", self._tasks.config)
        return self._transactions

    def _label(self, number: int) -> str:
        plan = (self._checkpoint / "offsets" / str(number)).read_bytes()
        return f"batch {number} {hashlib.sha256(plan).hexdigest()[:32]}"


def run_without_writing(df: Any) -> None:
    """Run a batch for the state of its operators and for the watermark."""
    df.write.format("noop").mode("overwrite").save()


def _number(label: str) -> int:
    """Return the batch that a label names; −1: none."""
    return int(label.split()[1]) if label else -1
