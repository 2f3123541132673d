"""What the console knows of its cluster: answers of the admin client, each kept for a moment so that
many open pages cost the brokers no more than one.

Every call blocks; pages run in threads. A question that is being asked is asked once: other threads
wait for its answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from raylog.cli.from_outside import outside_status
from raylog.client.admin.inspection import quorum_status

if TYPE_CHECKING:
    from raylog.client.admin.admin import TopicDescription
    from raylog.client.admin.groups import GroupListing
    from raylog.client.admin.inspection import LogDir
    from raylog.client.sync import AdminClient, Consumer
    from raylog.cluster import Cluster
    from raylog.types import ClusterEvent

T = TypeVar("T")
ANSWER_TIMEOUT_MS = 8_000
"""How long a page waits for a cluster that does not answer, at most, for each question."""
KEPT_S = 1.0
KEPT_TIMES, KEPT_S_MAX = 200, 10.0
"""An answer about all topics is kept for so many times as long as it took, but no longer than that: the
more topics there are, the seldomer they are asked for, at half a percent of a core.
"""
SIZES_KEPT_S = 30.0
"""Sizes of replicas: with thousands of topics they are the largest answer, and change slowly."""


@dataclass(slots=True)
class _Answer:
    value: Any = None
    asked_at_s: float = float("-inf")
    took_s: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


class ClusterView:
    """One cluster, seen with the rights of one user. Usable from any thread. ``close`` ends it."""

    def __init__(self, cluster: Cluster, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.cluster = cluster
        self._clock = clock
        self._kept: dict[str, _Answer] = {}
        self._lock = threading.Lock()
        own = {} if cluster.options.get("client_id") else {"client_id": "raylog-console"}
        self._options = own
        self.admin: AdminClient = cluster.admin(**own, default_api_timeout_ms=ANSWER_TIMEOUT_MS)

    @property
    def is_outside(self) -> bool:
        """Whether everything passes the brokers' listeners, and their authorizer."""
        return self.cluster.address.is_outside

    def close(self) -> None:
        self.admin.close()

    def consumer(self, **options: Any) -> Consumer:
        """A consumer of no group, that commits nothing."""
        return self.cluster.consumer(
            **self._options, enable_auto_commit=False, default_api_timeout_ms=ANSWER_TIMEOUT_MS, **options
        )

    def kept(
        self,
        question: str,
        ask: Callable[[], T],
        kept_s: float = KEPT_S,
        *,
        instead_of: T | None = None,
        grows: bool = False,
    ) -> T:
        """What ``ask`` returns, or has returned within the last ``kept_s`` seconds. Errors are not
        kept. ``instead_of``: an answer of before that turned out to be too old; it is not returned
        again. ``grows``: with the number of topics, and is kept for longer where it takes long.
        """
        with self._lock:
            answer = self._kept.setdefault(question, _Answer())
        with answer.lock:
            is_too_old = instead_of is not None and answer.value is instead_of
            if grows:
                kept_s = min(max(kept_s, KEPT_TIMES * answer.took_s), max(kept_s, KEPT_S_MAX))
            now_s = self._clock()
            if is_too_old or now_s - answer.asked_at_s >= kept_s:
                answer.value = ask()
                answer.asked_at_s = self._clock()
                answer.took_s = answer.asked_at_s - now_s
            value: T = answer.value
            return value

    def status(self) -> dict[str, Any]:
        """As ``raylog status --json``: with processes from inside, without them from outside."""
        if self.is_outside:
            return self.kept("status", self._status_from_outside, grows=True)
        return self.kept("status", lambda: self.cluster.status(timeout_s=ANSWER_TIMEOUT_MS / 1000), grows=True)

    def _status_from_outside(self) -> dict[str, Any]:
        described = self.admin.describe_cluster(include_fenced=True)
        return outside_status(described, self.topics(), self.log_dirs())

    def topics(self, *, instead_of: dict[str, TopicDescription] | None = None) -> dict[str, TopicDescription]:
        """All topics that may be seen, by name. ``instead_of``: as in ``kept``."""
        return self.kept("topics", self.admin.describe_topics, instead_of=instead_of, grows=True)

    def groups(self) -> list[GroupListing]:
        """All groups that may be seen, by name."""
        return self.kept("groups", self.admin.list_groups)

    def log_dirs(self) -> dict[int, dict[str, LogDir]]:
        """Disks by broker and path."""
        return self.kept("log_dirs", self.admin.describe_log_dirs, SIZES_KEPT_S)

    def quorum(self) -> dict[str, Any]:
        """As ``raylog quorum status --json``."""
        if self.is_outside:
            return self.kept(
                "quorum", lambda: quorum_status(self.admin.describe_quorum(), self.cluster.address.cluster_id)
            )
        return self.kept("quorum", self.cluster.quorum)

    def last_events(self) -> list[ClusterEvent]:
        """The newest dozen. Only beside the cluster."""
        return self.kept("last events", lambda: self.cluster.events(count=12)[0])
