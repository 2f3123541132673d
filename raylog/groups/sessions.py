"""Whether a member is still there: sessions, and the connections of native members.

A member's session ends when nothing was heard of it for its session timeout. Waiting in Join or
Sync counts as being heard (``rebalances`` ignores an end that comes meanwhile), except for
newcomers, who have ``group.new.member.join.timeout.ms``. The end of a native member's connection
gives a dynamic member ``group.native.return.ms`` to be heard of over another one; a static one
keeps its session timeout.

Owns the deadlines SESSION and PENDING, and sets back PARKED; what follows from them is decided in
``rebalances``.
"""

from __future__ import annotations

from raylog.groups.context import GroupContext
from raylog.groups.group import Group, Member

SESSION, PENDING, PARKED = "session", "pending", "heartbeat"


class MemberSessions:
    __slots__ = ("_connections", "_context")

    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._connections: dict[int, dict[tuple[str, str], None]] = {}

    def heard(self, group: Group, member: Member, connection: int | None, *, timeout_ms: int | None = None) -> None:
        """Its session begins again. ``connection`` None: not by a word of its own, or it is no
        native member.
        """
        context = self._context
        self.back(group, member, connection)
        if member.is_gone:
            return
        wait_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        context.timers.set((SESSION, group.group_id, member.member_id), context.now_ms + wait_ms)

    def back(self, group: Group, member: Member, connection: int | None) -> None:
        """A word of its own that came over ``connection``, if it is a native member."""
        if connection is None:
            return
        if connection != member.connection:
            self.forget_connection(group, member)
            member.connection = connection
            self.note_connection(group, member.member_id, connection)
        if member.is_gone:
            member.is_gone = False
            timeout_ms = (
                self._context.config.group_new_member_join_timeout_ms if member.is_new else member.session_timeout_ms
            )
            self._context.timers.set((SESSION, group.group_id, member.member_id), self._context.now_ms + timeout_ms)

    def note_connection(self, group: Group, member_id: str, connection: int | None) -> None:
        if connection is not None:
            self._connections.setdefault(connection, {})[group.group_id, member_id] = None

    def forget_connection(self, group: Group, member: Member) -> None:
        connection, member.connection = member.connection, None
        known = self._connections.get(connection) if connection is not None else None
        if connection is not None and known is not None:
            known.pop((group.group_id, member.member_id), None)
            if not known:
                del self._connections[connection]

    def connection_closed(self, connection: int) -> None:
        """Its dynamic members have a moment to come back; static ones keep their session timeout."""
        context = self._context
        due_ms = context.now_ms + context.config.group_native_return_ms
        for group_id, member_id in self._connections.pop(connection, {}):
            group = context.groups.get(group_id)
            if group is None:
                continue
            if group.pending.get(member_id) == connection:
                context.timers.set((PENDING, group_id, member_id), due_ms)
            member = group.members.get(member_id)
            if member is None or member.connection != connection:
                continue
            member.connection = None
            if member.group_instance_id is None:
                member.is_gone = True
                context.timers.set((SESSION, group_id, member_id), due_ms)

    def forget_timers(self, group: Group, member_id: str) -> None:
        for kind in (SESSION, PARKED):
            self._context.timers.cancel((kind, group.group_id, member_id))

    def clear(self) -> None:
        """No member is anybody's business here any more."""
        self._connections.clear()
