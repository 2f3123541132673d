"""The control sessions of the active controller: who is connected, and what each process has
opened.

Owns the table session ↔ node and each session's replicas. It judges nobody (``liveness``) and
decides nothing (``active``).

Invariants: a node has at most one current session; a session that was replaced stays known until it
closes, and counts for nothing; a replica is never both opened and failed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raylog.control.session import CopyRates, Heartbeat, ReplicaStatus, SettingsChanged
from raylog.types import TopicIdPartition


@dataclass(slots=True)
class Session:
    session_id: int
    node_id: int
    incarnation: int
    opened: dict[TopicIdPartition, ReplicaStatus] = field(default_factory=dict)
    failed: dict[TopicIdPartition, str] = field(default_factory=dict)
    damaged: dict[TopicIdPartition, tuple[int, str]] = field(
        default_factory=dict
    )  # in which epoch it said so, and what
    mended: dict[TopicIdPartition, str] = field(default_factory=dict)  # the last damage that was dropped
    usage: Heartbeat = field(default_factory=Heartbeat)  # the last one
    rates: CopyRates = field(default_factory=CopyRates)  # as it was told last
    settings: SettingsChanged = field(default_factory=lambda: SettingsChanged(0, 0, ()))  # as it was told last
    follows_image: bool = False  # it was sent the whole image, and is sent what changes
    follows_topics: bool = False  # it coordinates something, was sent the names of all topics, and is sent what changes
    releasing: set[TopicIdPartition] = field(
        default_factory=set
    )  # others hold them now; it has not said that it let go
    exiting: bool = False  # told to exit because nothing is assigned to it any more

    def forget(self, id: TopicIdPartition) -> None:
        """What it said of a replica that is its own no longer: if that comes back to it, it has to
        open anew.
        """
        self.opened.pop(id, None)
        self.failed.pop(id, None)
        self.damaged.pop(id, None)


class Sessions:
    __slots__ = ("_by_id", "_by_node")

    def __init__(self) -> None:
        self._by_id: dict[int, Session] = {}
        self._by_node: dict[int, Session] = {}

    def of_node(self, node_id: int) -> Session | None:
        return self._by_node.get(node_id)

    def current(self, session_id: int) -> Session | None:
        """The session of that id if it is its node's current one."""
        session = self._by_id.get(session_id)
        return session if session is not None and self._by_node.get(session.node_id) is session else None

    def all(self) -> list[Session]:
        """The current ones, in order of node id."""
        return [session for _, session in sorted(self._by_node.items())]

    def open(self, session: Session) -> Session | None:
        """Make it its node's current session; the one that it replaces is returned."""
        assert session.session_id not in self._by_id, f"session {session.session_id} opened twice"
        replaced = self._by_node.get(session.node_id)
        self._by_id[session.session_id] = session
        self._by_node[session.node_id] = session
        return replaced

    def close(self, session_id: int) -> Session | None:
        """Forget it; returned if it was its node's current one."""
        session = self._by_id.pop(session_id, None)
        if session is None or self._by_node.get(session.node_id) is not session:
            return None
        del self._by_node[session.node_id]
        return session

    def ids(self) -> list[int]:
        return sorted(self._by_id)

    def check(self) -> None:
        for node_id, session in self._by_node.items():
            assert session.node_id == node_id and self._by_id.get(session.session_id) is session, f"{session}"
            assert not session.opened.keys() & session.failed.keys(), f"{session}"
