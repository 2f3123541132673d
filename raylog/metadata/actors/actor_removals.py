"""How processes leave the cluster: declared dead, dismissed because nothing is assigned to them, or
gone with their disk or broker.

Owns no state: it brings together what has to happen in one decision, to the session, the liveness,
the start and the record of the process, and to the partitions that it held. A process whose actor
is removed is not created again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable

from raylog.control.session import Exit
from raylog.metadata.actors.actor_starts import Starts
from raylog.metadata.actors.liveness import Liveness
from raylog.metadata.actors.registrations import decide_register_disk, decide_unregister_broker
from raylog.metadata.events import ActiveEffect, CloseSession, Notice, NoticeLevel, SendControllerReply, SendFrame
from raylog.metadata.image import MetadataImage
from raylog.metadata.ledger import Ledger
from raylog.metadata.partitions.partition_decisions import PartitionDecisions
from raylog.metadata.records import ActorDied, ActorRemoved, DiskRegistered, HostRetired, Record, RemovalConfirmed
from raylog.metadata.requests import RegisterDisk, UnregisterBroker
from raylog.metadata.sessions import Session, Sessions
from raylog.types import FIRST_REPLICA_SLOT, TopicIdPartition, broker_of, slot_of


class Departures:
    """The ledger, sessions, liveness, starts and partitions are the active controller's own;
    ``emit`` takes effects that need not wait.
    """

    __slots__ = ("_emit", "_epoch", "_ledger", "_liveness", "_partitions", "_sessions", "_starts")

    def __init__(
        self,
        ledger: Ledger,
        sessions: Sessions,
        liveness: Liveness,
        starts: Starts,
        partitions: PartitionDecisions,
        *,
        controller_epoch: int,
        emit: Callable[[ActiveEffect], None],
    ) -> None:
        self._ledger = ledger
        self._sessions = sessions
        self._liveness = liveness
        self._starts = starts
        self._partitions = partitions
        self._epoch = controller_epoch
        self._emit = emit

    @property
    def _latest(self) -> MetadataImage:
        return self._ledger.latest

    def declare_dead(self, node_ids: Iterable[int], now_ms: int, *, why: str) -> None:
        """All of them, and everything that follows, in one decision.

        Where every partition that they held goes on without them, their successors start a little
        later (``Starts.settle``).
        """
        ids: set[TopicIdPartition] = set()
        led = {node_id: self._led_by(node_id) for node_id in sorted(node_ids)}
        for node_id in led:
            actor = self._latest.actors[node_id]
            assert actor.alive, f"{actor} is already dead"
            self._close_session(self._sessions.of_node(node_id))
            self._liveness.forget(node_id)
            self._starts.died(node_id, now_ms)
            self._ledger.add(ActorDied(node_id, actor.incarnation, why))
            self._emit(Notice(f"server actor {node_id} (pid {actor.pid}) is dead: {why}", NoticeLevel.WARNING))
            if self.is_idle(node_id):
                self._ledger.add(ActorRemoved(node_id))
            ids.update(self._latest.partitions_on(node_id))
        self._partitions.settle(ids, now_ms)
        if all(self._partitions.serves(id) for id in ids):
            for node_id, moved in led.items():
                if moved:
                    self._starts.settle(node_id, moved, now_ms)

    def _led_by(self, node_id: int) -> int:
        """How many partitions that node's actor leads."""
        states = (self._latest.partition(id) for id in self._latest.partitions_on(node_id))
        return sum(state is not None and state.node_of(state.leader) == node_id for state in states)

    def is_idle(self, node_id: int) -> bool:
        """A replica actor that has nothing to hold and nothing to delete."""
        return slot_of(node_id) >= FIRST_REPLICA_SLOT and not self._latest.needs(node_id)

    def exited(self, node_id: int, incarnation: int) -> None:
        """That process ends, as it was told. If nothing needs it, its actor is removed."""
        actor = self._latest.actors.get(node_id)
        if actor is not None and actor.incarnation == incarnation and self.is_idle(node_id):
            self._close_session(self._sessions.of_node(node_id))
            self._liveness.forget(node_id)
            self._starts.forget(node_id)
            self._ledger.add(ActorRemoved(node_id))

    def dismiss_idle(self, records: Iterable[Record]) -> None:
        """Actors that these records have left with nothing are told to exit, once the commit
        stands.
        """
        nodes = {record.node_id for record in records if isinstance(record, RemovalConfirmed | HostRetired)}
        for node_id in sorted(nodes):
            session = self._sessions.of_node(node_id)
            if session is not None:
                self._dismiss_if_idle(session)

    def released(self, session: Session, id: TopicIdPartition) -> None:
        """A process has let go of a replica that another one holds now."""
        session.releasing.discard(id)
        self._dismiss_if_idle(session)

    def moved_away(self, node_ids: Iterable[int]) -> None:
        """Replicas of these actors are others' now. A dead one that is left with nothing is
        removed; one that lives lets go first.
        """
        for node_id in sorted(set(node_ids)):
            actor = self._latest.actors.get(node_id)
            if actor is not None and not actor.alive and self.is_idle(node_id):
                self._starts.forget(node_id)
                self._ledger.add(ActorRemoved(node_id))

    def _dismiss_if_idle(self, session: Session) -> None:
        if self.is_idle(session.node_id) and not session.releasing and not session.exiting:
            session.exiting = True
            self._emit(SendFrame(session.session_id, Exit(self._epoch, "nothing is assigned to it")))
            self._emit(CloseSession(session.session_id))

    def register_disk(self, token: int, request: RegisterDisk, now_ms: int, *, plans_hosts: bool) -> None:
        """Of a disk that another one has replaced the processes, whatever they do, are over."""
        records, reply = decide_register_disk(self._latest, request, plans_hosts=plans_hosts)
        lost = {each.directory_id for each in records if isinstance(each, DiskRegistered) and each.replaced_by}
        nodes = [node for node, actor in sorted(self._latest.actors.items()) if actor.directory_id in lost]
        alive = [node for node in nodes if self._latest.actors[node].alive]
        self.declare_dead(alive, now_ms, why=f"another disk is at {request.path} in the place of its own")
        self._ledger.add(*records)
        self._ledger.hold(SendControllerReply(token, reply))
        for node in nodes:
            if node in self._latest.actors and self.is_idle(node):
                self._ledger.add(ActorRemoved(node))
        if lost:
            where = f"the disk at {request.path} of broker {request.broker_id}"
            self._emit(Notice(f"{where} was replaced: its replicas are copied anew"))

    def unregister(self, token: int, request: UnregisterBroker, *, voters: Iterable[uuid.UUID]) -> None:
        """``voters`` are the directory ids of the quorum's voters: their brokers stay."""
        records, reply = decide_unregister_broker(self._latest, request, controller_disks=voters)
        nodes = sorted(node for node in self._latest.actors if broker_of(node) == request.broker_id) if records else []
        self._ledger.add(*records)
        self._ledger.hold(SendControllerReply(token, reply))
        for node in nodes:
            self._liveness.forget(node)
            self._starts.forget(node)
            session = self._sessions.of_node(node)
            if session is not None:
                self._sessions.close(session.session_id)
                self._ledger.hold(
                    SendFrame(session.session_id, Exit(self._epoch, "its broker was removed from the cluster")),
                    CloseSession(session.session_id),
                )

    def _close_session(self, session: Session | None) -> None:
        if session is not None:
            self._sessions.close(session.session_id)
            self._emit(CloseSession(session.session_id))
