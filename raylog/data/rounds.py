"""The rounds of a stream, one after the other, the same for all its workers.

Of a stream that ends they follow from its state. Of an endless one worker 0 looks at the logs and
tells the others (``Tell``); while there is not a whole batch for everybody it waits, then, after
``short_after_s``, takes what there is. In Ray Train workers it is Ray Train's own broadcast that
tells them; elsewhere whoever has several workers gives another.
"""

from __future__ import annotations

import base64
import json
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.client.background import background
from raylog.client.links.address import ClusterAddress
from raylog.errors import error_for
from raylog.ranges.sharding import StreamState, next_round, round_of
from raylog.ranges.topics import Topics
from raylog.ranges.watch import TopicWatch

POLL_S = 0.1
TELL_S = 5.0
"""Worker 0 says at least so often that there is nothing, so that the others are not kept in one
call.
"""

_TELL_CHARACTERS = 800  # Ray Train wants less than 1,000 bytes at once

Tell = Callable[[str | None], str | None]
"""What worker 0 gave, for all: each calls it equally often, the others with None."""


class Rounds:
    """``following(state)``: the state at the beginning of the next round, and what was lost before
    it.
    """

    def __init__(
        self,
        address: ClusterAddress,
        topics: Topics,
        *,
        rank: int,
        world_size: int,
        tell: Tell | None,
        read_committed: bool = False,
        fail_on_data_loss: bool = True,
        short_after_s: float = 1.0,
        idle_timeout_s: float | None = None,
    ) -> None:
        self._address = address
        self._topics = topics
        self._rank = rank
        self._world_size = world_size
        self._tell = tell
        self._read_committed = read_committed
        self._fail_on_data_loss = fail_on_data_loss
        self._short_after_s = short_after_s
        self._idle_timeout_s = idle_timeout_s
        self._watch: TopicWatch | None = None

    def following(self, state: StreamState) -> tuple[StreamState, tuple[str, ...]] | None:
        """None at the end; of an endless stream after ``idle_timeout_s`` in which nothing came."""
        if state.ends is not None:
            begun = next_round(state, self._world_size)
            return None if begun is None else (begun, ())
        began_s = time.monotonic()
        while True:
            told = self._told(state)
            if told is not None:
                begun, losses = told
                if losses and self._fail_on_data_loss:
                    raise error_for(
                        ErrorCode.offset_out_of_range,
                        f"{'; '.join(losses)}: read the rest with fail_on_data_loss=False",
                    )
                return told
            if self._idle_timeout_s is not None and self._is_idle(began_s):
                return None

    def _is_idle(self, began_s: float) -> bool:
        """Worker 0's clock decides for all."""
        assert self._idle_timeout_s is not None
        is_idle = self._rank == 0 and time.monotonic() - began_s >= self._idle_timeout_s
        return told(self._tell, "idle" if is_idle else "" if self._rank == 0 else None) == "idle"

    def _told(self, state: StreamState) -> tuple[StreamState, tuple[str, ...]] | None:
        text = None
        if self._rank == 0:
            found = self._look(state)
            text = "" if found is None else json.dumps([found[0].to_json(), found[1]])
        text = told(self._tell, text)
        if not text:
            return None
        begun, losses = json.loads(text)
        return StreamState.from_json(begun), tuple(losses)

    def _look(self, state: StreamState) -> tuple[StreamState, tuple[str, ...]] | None:
        """A round as soon as there is one, for at most ``TELL_S``."""
        if self._watch is None:
            self._watch = background().run(self._watching())
        until_s = time.monotonic() + (TELL_S if self._idle_timeout_s is None else min(TELL_S, self._idle_timeout_s))
        came_s: float | None = None
        while True:
            ids, logs = background().run(self._watch.look())
            now_s = time.monotonic()
            whole = round_of(state, ids, logs, self._world_size)
            some = whole or round_of(state, ids, logs, self._world_size, is_short=True)
            if some is not None and came_s is None:
                came_s = now_s
            if whole is not None or (came_s is not None and now_s - came_s >= self._short_after_s):
                return some
            if came_s is None and now_s >= until_s:
                return None
            time.sleep(POLL_S)

    async def _watching(self) -> TopicWatch:
        return TopicWatch(self._address, self._topics, read_committed=self._read_committed)

    def close(self) -> None:
        if self._watch is not None:
            background().run(self._watch.close())
            self._watch = None


# ------------------------------------------------------------------ telling


def told(tell: Tell | None, text: str | None) -> str | None:
    """What worker 0 has for all, in pieces that are small enough for Ray Train."""
    if tell is None:
        return text
    pieces: list[str] = []
    if text is not None:
        packed = base64.b85encode(zlib.compress(text.encode())).decode()
        pieces = [packed[at : at + _TELL_CHARACTERS] for at in range(0, len(packed), _TELL_CHARACTERS)]
    first = tell(f"{len(pieces)} {pieces[0]}" if pieces else None)
    assert first is not None, "worker 0 tells something"
    count, _, packed = first.partition(" ")
    for number in range(1, int(count)):
        packed += tell(pieces[number] if pieces else None) or ""
    return zlib.decompress(base64.b85decode(packed)).decode()


def train_context() -> Any:
    """Ray Train's context where this process is one of its workers, else None."""
    train = sys.modules.get("ray.train")
    if train is None:
        return None
    try:
        return train.get_context()
    except RuntimeError:
        return None


def train_tell(text: str | None) -> str | None:
    """Ray Train's broadcast."""
    from ray.train.collective import broadcast_from_rank_zero

    answer: str | None = broadcast_from_rank_zero(text)
    return answer
