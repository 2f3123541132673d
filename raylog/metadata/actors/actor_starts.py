"""Which server actors have to be created: committed metadata compared with live sessions, with
backoff.

Owns the creations under way and the memory of failed ones. It knows nothing of Ray and decides no
records: it is asked for the StartActor effects that are due. At most one creation of an actor is
pending, however long it takes (with Ray's head away a creation blocks).

==========  ==================================================  ==========================================================
a node is   while                                               it leaves this state when
==========  ==================================================  ==========================================================
creating    a StartActor is out                                 ActorStarted → expected, or as one that died young if it has
                                                                said hello and died since; ActorStartFailed → resting
expected    its process was created and has not said hello      a hello → up; ``hello_timeout_ms`` → resting;
                                                                sent away, since nothing needs it any more → forgotten
resting     its creation failed, it died young, or others       the backoff has passed, and it is still wanted
            take over what it led (``settle``)
up          it has said hello                                   it dies: before ``stable_after_ms`` → resting, else → forgotten
==========  ==================================================  ==========================================================
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from raylog.metadata.configuration.controller_config import ControllerSettings
from raylog.metadata.events import ActorKind, StartActor
from raylog.metadata.image import MetadataImage
from raylog.metadata.records import (
    AclCreated,
    AclDeleted,
    ActorDied,
    ActorRegistered,
    ActorRemoved,
    BrokerConfigChanged,
    BrokerDrainChanged,
    BrokerLeaving,
    BrokerRegistered,
    BrokerUnregistered,
    ClientQuotaRemoved,
    ClientQuotaSet,
    ClusterFormatted,
    ControllersPlanned,
    DelegationTokenRemoved,
    DelegationTokenSet,
    DiskRegistered,
    HighWatermarksNoted,
    HostPlanned,
    HostRetired,
    PartitionChanged,
    ProducerIdsAllocated,
    Record,
    RemovalConfirmed,
    RemovalPending,
    ResourceConfigChanged,
    StaticConfigsChanged,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    UserScramCredentialRemoved,
    UserScramCredentialSet,
)
from raylog.metadata.sessions import Sessions
from raylog.timers import Timers
from raylog.types import BROKER_SLOT, broker_of, node_id, slot_of

START = "start"


class _Stage(Enum):
    CREATING = "creating"
    EXPECTED = "expected"
    RESTING = "resting"
    UP = "up"


_UNDER_WAY = (_Stage.CREATING, _Stage.EXPECTED)


@dataclass(slots=True)
class _Start:
    stage: _Stage
    since_ms: int
    failures: int = 0  # in a row
    greeted: bool = False  # it said hello before its creation was reported
    has_died: bool = False  # and it died before that, too
    sent_away: bool = False  # it was told to exit before its creation was reported
    reason: str = ""
    directory_id: uuid.UUID | None = None  # where it was last created


class Starts:
    __slots__ = ("_settings", "_starts", "_timers", "is_due")

    def __init__(self, settings: ControllerSettings, timers: Timers) -> None:
        self._settings = settings
        self._timers = timers
        self._starts: dict[int, _Start] = {}
        self.is_due = True  # something may be missing: look again

    def is_starting(self, node_id: int) -> bool:
        start = self._starts.get(node_id)
        return start is not None and start.stage in _UNDER_WAY

    def has_failed(self, node_id: int) -> bool:
        start = self._starts.get(node_id)
        return start is not None and start.stage is not _Stage.UP and start.failures > 0

    # -------------------------------------------------------------- what happened

    def started(self, node_id: int, now_ms: int) -> None:
        start = self._starts.get(node_id)
        if start is None or start.stage is not _Stage.CREATING:
            return
        if start.sent_away:
            del self._starts[node_id]
            self.is_due = True
            return
        if start.has_died:
            start.stage = _Stage.UP
            self.died(node_id, now_ms)
            return
        start.stage, start.since_ms = (_Stage.UP if start.greeted else _Stage.EXPECTED), now_ms
        if not start.greeted:
            self._timers.set((START, node_id), now_ms + self._settings.now.hello_timeout_ms)

    def start_failed(self, node_id: int, reason: str, now_ms: int) -> None:
        start = self._starts.get(node_id)
        if start is None or start.stage is not _Stage.CREATING:
            return
        start.reason = reason
        if start.greeted:
            start.stage, start.since_ms = _Stage.UP, now_ms
        else:
            self._rest(node_id, start, now_ms)

    def said_hello(self, node_id: int, now_ms: int) -> None:
        """It lives, whoever created it; a creation that is still pending stays the only one."""
        start = self._starts.setdefault(node_id, _Start(_Stage.UP, now_ms))
        start.greeted, start.has_died = True, False
        if start.stage is not _Stage.CREATING:
            start.stage = _Stage.UP
            self._timers.cancel((START, node_id))
        start.since_ms = now_ms

    def sent_away(self, node_id: int) -> None:
        """Its hello was refused since nothing needs it any more: whoever needs the node next gets a
        process of its own.
        """
        start = self._starts.get(node_id)
        if start is None:
            return
        if start.stage is _Stage.CREATING:
            start.sent_away = True
        elif start.stage is _Stage.EXPECTED:
            del self._starts[node_id]
            self._timers.cancel((START, node_id))
            self.is_due = True

    def died(self, node_id: int, now_ms: int) -> None:
        """A process that died young counts as a failed start; the first death is made good at once."""
        self.is_due = True
        start = self._starts.get(node_id)
        if start is None:
            return
        start.has_died, start.greeted = start.greeted, False
        if start.stage is not _Stage.UP:
            return
        if now_ms - start.since_ms >= self._settings.now.stable_after_ms:
            del self._starts[node_id]
        elif start.failures == 0:
            start.failures, start.stage = 1, _Stage.RESTING
        else:
            self._rest(node_id, start, now_ms)

    def settle(self, node_id: int, leaders_moved: int, now_ms: int) -> None:
        """It died, and others have begun to lead so many partitions in its place.

        The new process uses a core for more than a second before it can serve. Where it runs beside
        the new leaders, and they beside the clients, it would make all of them wait. So it starts
        when they have taken over.
        """
        pause_ms = min(leaders_moved * self._settings.now.settling_ms_per_leader, self._settings.now.settling_max_ms)
        if pause_ms < self._settings.now.settling_min_ms:
            return
        start = self._starts.setdefault(node_id, _Start(_Stage.RESTING, now_ms))
        if start.stage in _UNDER_WAY or (START, node_id) in self._timers:
            return
        start.stage = _Stage.RESTING
        self._timers.set((START, node_id), now_ms + pause_ms)

    def timed_out(self, node_id: int, now_ms: int) -> None:
        """A deadline of ours for this node has come."""
        start = self._starts.get(node_id)
        if start is None:
            return
        if start.stage is _Stage.EXPECTED:
            start.reason = "created, but no hello"
            self._rest(node_id, start, now_ms)
        self.is_due = True

    def forget(self, node_id: int) -> None:
        start = self._starts.get(node_id)
        if start is not None and start.stage is not _Stage.CREATING:
            del self._starts[node_id]
            self._timers.cancel((START, node_id))

    def disk_lost(self, directory_id: uuid.UUID) -> None:
        """What was created there is of no use, should its creation ever end: it does not keep a
        node from being created elsewhere.
        """
        for node in [node for node, start in self._starts.items() if start.directory_id == directory_id]:
            del self._starts[node]
            self._timers.cancel((START, node))
        self.is_due = True

    def _rest(self, node_id: int, start: _Start, now_ms: int) -> None:
        start.failures += 1
        start.stage, start.since_ms = _Stage.RESTING, now_ms
        backoff_ms = min(
            self._settings.now.start_backoff_ms << min(start.failures - 1, 16), self._settings.now.start_backoff_max_ms
        )
        self._timers.set((START, node_id), now_ms + backoff_ms)

    # -------------------------------------------------------------- what is missing

    def missing(self, image: MetadataImage, sessions: Sessions, now_ms: int) -> list[StartActor]:
        """The creations that are due now, against the committed image. Each is pending from here
        on.
        """
        self.is_due = False
        wanted = set(image.assigned) | set(image.removals_of) | set(image.hosts)
        if self._settings.now.starts_brokers:
            wanted |= {node_id(broker, BROKER_SLOT) for broker in image.brokers}
        effects = []
        for node in sorted(wanted):
            actor = image.actors.get(node)
            if sessions.of_node(node) is not None or (actor is not None and actor.alive):
                continue  # connected, or not judged dead yet
            start = self._starts.get(node)
            if start is not None and (start.stage in _UNDER_WAY or (START, node) in self._timers):
                continue
            effect = self._creation(image, node, failures=start.failures if start is not None else 0)
            if effect is None:
                continue
            start = self._starts.setdefault(node, _Start(_Stage.CREATING, now_ms))
            start.stage, start.since_ms, start.directory_id = _Stage.CREATING, now_ms, effect.directory_id
            start.greeted = start.has_died = start.sent_away = False
            effects.append(effect)
        return effects

    @staticmethod
    def _creation(image: MetadataImage, node: int, *, failures: int) -> StartActor | None:
        """A Broker that could not start on one of its disks starts on the next."""
        broker = broker_of(node)
        if slot_of(node) == BROKER_SLOT:
            disks = image.disks_of(broker)
            if not disks:
                return None
            disk = disks[failures % len(disks)]
            return StartActor(node, ActorKind.BROKER, broker, disk.directory_id, disk.path, ())
        host = image.hosts.get(node)
        kind = ActorKind(host.kind.value) if host is not None else ActorKind.REPLICAS
        directory_id = image.directory_of(node)
        return StartActor(
            node, kind, broker, directory_id, image.disks[directory_id].path, tuple(image.partitions_on(node))
        )

    def check(self) -> None:
        for node, start in self._starts.items():
            if start.stage is _Stage.EXPECTED:
                assert (START, node) in self._timers, f"node {node} could be expected for ever"


def may_create_need(record: Record) -> bool:
    """Whether a server actor may have to be created because of this record: most records change
    partitions that exist.
    """
    match record:
        case PartitionChanged():
            return record.state.partition_epoch == 0 or bool(record.state.adding or record.state.futures)
        case (
            ProducerIdsAllocated() | TopicConfigChanged() | StaticConfigsChanged() | BrokerConfigChanged() | HighWatermarksNoted()
            | ControllersPlanned() | AclCreated() | AclDeleted() | UserScramCredentialSet() | UserScramCredentialRemoved()
            | ClientQuotaSet() | ClientQuotaRemoved() | ResourceConfigChanged()
            | DelegationTokenSet() | DelegationTokenRemoved()
        ):  # fmt: skip
            return False
        case (
            ClusterFormatted() | BrokerRegistered() | BrokerDrainChanged() | BrokerLeaving() | BrokerUnregistered()
            | DiskRegistered() | ActorRegistered() | ActorDied() | ActorRemoved() | HostPlanned() | HostRetired()
            | TopicCreated() | TopicDeleted() | RemovalPending() | RemovalConfirmed()
        ):  # fmt: skip
            return True
        case _:
            assert_never(record)
