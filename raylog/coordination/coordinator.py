"""The coordinator of one partition: its role, its log and its pending answers, whatever its machine
decides about.

Roles (``role``), how each answers, and where it goes::

    Following   NOT_COORDINATOR                  → Loading (Elected)
    Loading     COORDINATOR_LOAD_IN_PROGRESS     → Leading, Following (Resigned)
    Leading     as the machine decides           → Following (Resigned), Loading (Elected)

In every role the machine has applied what the log says below ``position``, so a follower that is
elected has only the tail left to read. It leads when it has applied everything up to the end that
its log had at its election. That end is replicated then, so nothing is restored from a record that
could still go away.

What a leader decides goes to its own log, and what depends on it is answered when it is replicated
(``context``). A leader epoch fences: the runtime refuses an Append of an older one, and an Elected
or Resigned of an older one is dropped here. Where an unclean election cuts the log below
``position``, the runtime begins anew with another coordinator.
"""

from __future__ import annotations

from enum import Enum
from typing import Generic, assert_never

from kio.schema.errors import ErrorCode

from raylog.coordination.context import WRITE, KeyedT
from raylog.coordination.events import (
    Appended,
    Applicable,
    ConnectionClosed,
    CoordinatorRequestReceived,
    CoordinatorTicked,
    Effect,
    Elected,
    EndOfTransaction,
    Event,
    HighWatermarkRose,
    MarkerAppended,
    OfTransaction,
    OthersAnswered,
    Replayed,
    ReplyT,
    RequestT,
    Resigned,
    TopicsKnown,
)
from raylog.coordination.machine import CoordinatorMachine

NOT_COORDINATOR = ErrorCode.not_coordinator.value
COORDINATOR_LOAD_IN_PROGRESS = ErrorCode.coordinator_load_in_progress.value


class CoordinatorRole(Enum):
    FOLLOWING = "following"
    LOADING = "loading"
    LEADING = "leading"


class PartitionCoordinator(Generic[RequestT, ReplyT, KeyedT]):
    """``handle`` takes one event and returns its effects, in order."""

    __slots__ = ("_context", "_gone", "_load_end", "_resigned_epoch", "machine", "role")

    def __init__(self, machine: CoordinatorMachine[RequestT, ReplyT, KeyedT]) -> None:
        self.machine = machine
        self._context = machine.context
        self._load_end = 0
        self._gone: tuple[str, ...] = ()  # topics deleted while the log is being read
        self._resigned_epoch = -1
        self.role = CoordinatorRole.FOLLOWING

    @property
    def position(self) -> int:
        """The next offset that the machine has not applied."""
        return self._context.position

    def next_deadline_ms(self) -> int | None:
        return self._context.timers.next_ms()

    def handle(self, event: Event[RequestT, KeyedT], now_ms: int, wall_ms: int) -> list[Effect[ReplyT, KeyedT]]:
        context = self._context
        context.now_ms, context.wall_ms = now_ms, wall_ms
        match event:
            case CoordinatorRequestReceived(token, request):
                self._request(token, request)
            case ConnectionClosed(connection):
                self.machine.connection_closed(connection)
            case Appended():
                context.appended(event.sequence, event.end_offset, event.error)
                self._complete()
            case MarkerAppended(end_offset, end):
                if self.role is not CoordinatorRole.FOLLOWING:
                    context.marker_appended(end_offset, end)
            case HighWatermarkRose(offset):
                if self.role is not CoordinatorRole.FOLLOWING:
                    context.high_watermark_rose(offset)
                    self._complete()
            case Replayed():
                self._replayed(event)
            case Elected():
                self._elected(event)
            case Resigned(leader_epoch):
                if leader_epoch >= context.leader_epoch:
                    self._resigned_epoch = max(self._resigned_epoch, leader_epoch)
                    self._give_up()
            case TopicsKnown():
                self._topics_known(event)
            case OthersAnswered(number, answer):
                context.others_answered(number, answer)
            case CoordinatorTicked():
                self._tick()
            case _:
                assert_never(event)
        effects, context.effects = context.effects, []
        return effects

    def _complete(self) -> None:
        """Before everything is applied, what is pending is to be read from the log in its turn."""
        if self.role is CoordinatorRole.LEADING:
            self._context.complete(self._apply)

    def _apply(self, each: Applicable[KeyedT]) -> None:
        machine = self.machine
        if isinstance(each, OfTransaction):
            machine.apply_in_transaction(each.producer_id, each.record)
        elif isinstance(each, EndOfTransaction):
            machine.transaction_ended(each)
        else:
            machine.apply(each)

    # -------------------------------------------------------------- roles

    def _elected(self, event: Elected) -> None:
        if event.leader_epoch <= max(self._context.leader_epoch, self._resigned_epoch):
            return
        assert event.log_end_offset >= self.position, (
            f"the log ends at {event.log_end_offset}, {self.position} is applied"
        )
        self._give_up()
        self._context.leader_epoch = event.leader_epoch
        self._load_end = event.log_end_offset
        self.role = CoordinatorRole.LOADING
        self._maybe_lead()

    def _give_up(self) -> None:
        self.machine.ended()
        self._context.give_up()
        self._context.timers.clear()
        self._gone = ()
        self.role = CoordinatorRole.FOLLOWING

    def _replayed(self, event: Replayed[KeyedT]) -> None:
        context = self._context
        assert self.role is not CoordinatorRole.LEADING, "a leader applies its own records"
        assert event.next_offset >= context.position, f"replayed to {event.next_offset}, was at {context.position}"
        for each in event.records:
            self._apply(each)
        context.position = event.next_offset
        self._maybe_lead()

    def _maybe_lead(self) -> None:
        if self.role is not CoordinatorRole.LOADING or self.position < self._load_end:
            return
        self._context.drop_replayed()
        self.role = CoordinatorRole.LEADING
        self.machine.began()
        gone, self._gone = self._gone, ()
        self.machine.topics_changed(gone, is_whole=True)

    def _topics_known(self, event: TopicsKnown) -> None:
        self._context.topics = event.topics
        if self.role is CoordinatorRole.LEADING:
            self.machine.topics_changed(event.gone, is_whole=event.is_whole)
        elif self.role is CoordinatorRole.LOADING:
            self._gone += event.gone

    # -------------------------------------------------------------- requests

    def _request(self, token: int, request: RequestT) -> None:
        context, machine = self._context, self.machine
        error = machine.judge(request) or self._refusal()
        if error:
            context.reply(token, machine.refuse(request, error))
            return
        machine.decide_on(token, request)

    def _refusal(self) -> int:
        """The error of all requests in the present role."""
        if self.role is CoordinatorRole.LOADING:
            return COORDINATOR_LOAD_IN_PROGRESS
        return NOT_COORDINATOR if self.role is CoordinatorRole.FOLLOWING else 0

    # -------------------------------------------------------------- time

    def _tick(self) -> None:
        context = self._context
        for _, name in context.timers.due(context.now_ms):
            if name[0] == WRITE:
                context.write_timed_out(name[1])
            else:
                self.machine.timer_fired(name)

    # -------------------------------------------------------------- invariants

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken. For tests and the simulator: it visits
        everything.
        """
        self._context.check()
        self.machine.check(leads=self.role is CoordinatorRole.LEADING)
