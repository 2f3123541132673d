"""Who is dead: the judge of processes, by their sessions and by dialling them.

Owns the liveness deadlines of every registered process. It knows nothing of partitions, records or
frames; it is told what happened and says whom to dial and who is dead. Declaring somebody dead, in
a record, is the caller's.

============  ===============================================  =======================================================
a process is  while                                            it leaves this state when
============  ===============================================  =======================================================
connected     it has a session                                 the session ends → dialled; nothing was heard for
                                                               ``session_timeout_ms`` → dead
dialled       its session ended, or a new controller has       refused or closed → dead at once; alive → awaited;
              not heard of it                                  unreachable or mute → silent; a session → connected
awaited       it answered the dial                             a session → connected; ``return_within_ms`` → dead
silent        nothing answers                                  dialled again every ``redial_interval_ms``; a session →
                                                               connected; ``session_timeout_ms`` since it was last heard
                                                               → dead
============  ===============================================  =======================================================

When the session timeout is changed, everybody who is connected or silent gets the new one, counted
from the change. So it also holds for a process that is silent already, and a shorter one doesn't
kill a process that still sends heartbeats at the old, longer interval.

A controller that notices its own pause (one of these deadlines came up more than ``pause_ms`` ago)
restarts all of them: it was deaf, and its silence is not the others'.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raylog.metadata.configuration.controller_config import ControllerSettings
from raylog.metadata.events import Dial, Dialed, DialOutcome
from raylog.timers import Name, Timers
from raylog.types import Endpoint

SESSION, SILENCE, RETURN, REDIAL = "session", "silence", "return", "redial"
KINDS = (SESSION, SILENCE, RETURN, REDIAL)


@dataclass(slots=True)
class _Watched:
    endpoint: Endpoint
    incarnation: int
    last_heard_ms: int
    connected: bool
    dial_id: int = 0  # of the dial in flight; 0: none


@dataclass(slots=True)
class Verdicts:
    """What follows from a tick: nodes to declare dead, and dials."""

    dead: list[int] = field(default_factory=list)
    dials: list[Dial] = field(default_factory=list)
    paused: bool = False


class Liveness:
    __slots__ = ("_last_dial_id", "_settings", "_timers", "_watched")

    def __init__(self, settings: ControllerSettings, timers: Timers, *, first_dial_id: int = 1) -> None:
        """``first_dial_id`` keeps the answers to another term's dials apart."""
        self._settings = settings
        self._timers = timers
        self._watched: dict[int, _Watched] = {}
        self._last_dial_id = first_dial_id - 1

    def watches(self, node_id: int) -> bool:
        return node_id in self._watched

    def is_silent(self, node_id: int) -> bool:
        watched = self._watched.get(node_id)
        return watched is not None and not watched.connected

    def connected(self, node_id: int, endpoint: Endpoint, incarnation: int, now_ms: int) -> None:
        """A session of that process has opened."""
        self._cancel(node_id)
        self._watched[node_id] = _Watched(endpoint, incarnation, now_ms, connected=True)
        self._timers.set((SESSION, node_id), now_ms + self._settings.now.session_timeout_ms)

    def heard(self, node_id: int, now_ms: int) -> None:
        self._watched[node_id].last_heard_ms = now_ms
        self._timers.set((SESSION, node_id), now_ms + self._settings.now.session_timeout_ms)

    def lost(self, node_id: int, now_ms: int) -> Dial:
        """Its session has ended: is it dead?"""
        watched = self._watched[node_id]
        watched.connected = False
        self._timers.cancel((SESSION, node_id))
        silent_until = max(now_ms, watched.last_heard_ms + self._settings.now.session_timeout_ms)
        self._timers.set((SILENCE, node_id), silent_until)
        return self._dial(node_id, watched)

    def unheard(self, node_id: int, endpoint: Endpoint, incarnation: int, now_ms: int) -> Dial:
        """A registered process that a new active controller has not heard of yet."""
        watched = self._watched[node_id] = _Watched(endpoint, incarnation, now_ms, connected=False)
        self._timers.set((SILENCE, node_id), now_ms + self._settings.now.session_timeout_ms)
        return self._dial(node_id, watched)

    def timeout_changed(self, now_ms: int) -> None:
        """Another ``session_timeout_ms`` was set."""
        for node_id, watched in self._watched.items():
            kind = SESSION if watched.connected else SILENCE
            self._timers.set((kind, node_id), now_ms + self._settings.now.session_timeout_ms)

    def forget(self, node_id: int) -> None:
        self._cancel(node_id)
        self._watched.pop(node_id, None)

    def dialed(self, event: Dialed, now_ms: int) -> bool:
        """Whether the answer means that the process is dead. An answer to an older question means
        nothing.
        """
        watched = self._watched.get(event.node_id)
        if watched is None or watched.connected or watched.dial_id != event.dial_id:
            return False
        watched.dial_id = 0
        match event.outcome:
            case DialOutcome.REFUSED | DialOutcome.CLOSED:
                return True
            case DialOutcome.ALIVE:
                self._timers.set((RETURN, event.node_id), now_ms + self._settings.now.return_within_ms)
            case DialOutcome.UNREACHABLE | DialOutcome.MUTE:
                self._timers.set((REDIAL, event.node_id), now_ms + self._settings.now.redial_interval_ms)
        return False

    def judge(self, fired: list[tuple[int, Name]], now_ms: int) -> Verdicts:
        """What follows from these deadlines of ours, which have come."""
        verdicts = Verdicts()
        if any(now_ms - deadline > self._settings.now.pause_ms for deadline, _ in fired):
            verdicts.paused = True
            self._restart(fired, now_ms)
            return verdicts
        for _, (kind, node_id) in fired:
            watched = self._watched.get(node_id)
            if watched is None:
                continue
            if kind == REDIAL:
                verdicts.dials.append(self._dial(node_id, watched))
            elif node_id not in verdicts.dead:
                verdicts.dead.append(node_id)
        verdicts.dials = [dial for dial in verdicts.dials if dial.node_id not in verdicts.dead]
        return verdicts

    def _restart(self, fired: list[tuple[int, Name]], now_ms: int) -> None:
        spans = {
            SESSION: self._settings.now.session_timeout_ms,
            SILENCE: self._settings.now.session_timeout_ms,
            RETURN: self._settings.now.return_within_ms,
            REDIAL: self._settings.now.redial_interval_ms,
        }
        names = {name for _, name in fired} | {name for name in self._timers.names() if name[0] in spans}
        for kind, node_id in sorted(names):
            if node_id in self._watched:
                self._watched[node_id].last_heard_ms = now_ms
                self._timers.set((kind, node_id), now_ms + spans[kind])

    def _dial(self, node_id: int, watched: _Watched) -> Dial:
        self._last_dial_id += 1
        watched.dial_id = self._last_dial_id
        return Dial(node_id, watched.endpoint, watched.incarnation, watched.dial_id)

    def _cancel(self, node_id: int) -> None:
        for kind in KINDS:
            self._timers.cancel((kind, node_id))

    def check(self) -> None:
        for node_id, watched in self._watched.items():
            if watched.connected:
                assert (SESSION, node_id) in self._timers, f"node {node_id} could be silent for ever"
            else:
                assert (SILENCE, node_id) in self._timers, f"node {node_id} could be dialled for ever"
