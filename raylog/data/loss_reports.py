"""What tasks of Ray Data found to be lost, told to the program that planned them: a warning there for each, as soon as it is met.

With ``fail_on_data_loss=False`` a task goes on after a loss, and nobody reads its own log (a Ray that raylog has started or
connected to does not pass it on). So there is one small actor per program, a ``LossBoard``, on which tasks write before they go on, and a
thread here that waits for what is written. It is made with the first read that may lose something and ends with the program.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import ray

logger = logging.getLogger("raylog.data")

_lock = threading.Lock()
_board: tuple[str, Any] | None = None  # of the job that this process is


class LossBoard:
    """An async actor."""

    def __init__(self) -> None:
        self._losses: list[str] = []
        self._news = asyncio.Condition()

    async def add(self, loss: str) -> None:
        async with self._news:
            self._losses.append(loss)
            self._news.notify_all()

    async def after(self, count: int) -> list[str]:
        """The losses after the first ``count``, when there are any."""
        async with self._news:
            await self._news.wait_for(lambda: len(self._losses) > count)
            return self._losses[count:]


def board() -> Any:
    """This program's board, for tasks to write on."""
    global _board
    context = ray.get_runtime_context()
    job = f"{context.gcs_address} {context.get_job_id()}"
    with _lock:
        if _board is None or _board[0] != job:
            actor = ray.remote(LossBoard).options(num_cpus=0, max_concurrency=1000).remote()
            threading.Thread(target=_follow, args=(actor,), name="raylog-losses", daemon=True).start()
            _board = job, actor
        return _board[1]


def _follow(actor: Any) -> None:
    count = 0
    while True:
        try:
            news = ray.get(actor.after.remote(count))
        except (Exception, SystemExit) as error:  # Ray has ended: who waits in get then is told by either
            logger.debug("losses are not followed any more: %r", error)
            return
        for loss in news:
            logger.warning("%s", loss)
        count += len(news)
