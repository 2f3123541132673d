"""What one kind of coordinator adds: how it decides, what its records mean, and how they are
written.

A *machine* serves one partition. ``decide`` turns a request into records and a reply; ``apply`` is
the only place where what records say changes, on leaders and followers alike. What a leader keeps
besides (who waits, timers) ends with its leadership.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol

from raylog.coordination.context import CoordinatorContext, KeyedT, Outcome, ignore
from raylog.coordination.events import EndOfTransaction, ReplyT, RequestT, Transactional


@dataclass(frozen=True, slots=True)
class Decided(Generic[ReplyT, KeyedT]):
    """``reply(error)`` is sent when the records are replicated (0), or with the log's error when
    they are not; without records, at once.

    ``settled(error)`` is called when the records' fate is known, even after the write has timed
    out.
    """

    reply: Callable[[int], ReplyT]
    records: tuple[KeyedT, ...] = ()
    settled: Outcome = ignore
    transactional: Transactional | None = None


class CoordinatorMachine(Generic[RequestT, ReplyT, KeyedT]):
    """One partition's state and decisions. Only a leader whose log is wholly applied decides."""

    __slots__ = ()
    context: CoordinatorContext[ReplyT, KeyedT]

    def apply(self, record: KeyedT) -> None:
        """Take in a replicated record."""
        raise NotImplementedError

    def apply_in_transaction(self, producer_id: int, record: KeyedT) -> None:
        """Take in a replicated record of a transaction, which is not decided yet. Without a request
        that writes some there are none.
        """
        raise NotImplementedError

    def transaction_ended(self, end: EndOfTransaction) -> None:
        """That producer's transaction is decided."""

    def decide(self, token: int, request: RequestT) -> Decided[ReplyT, KeyedT] | None:
        """What follows from a request. None: ``context.reply(token, …)`` answers it, now or later."""
        raise NotImplementedError

    def decide_on(self, token: int, request: RequestT) -> None:
        """Decide, write what was decided, and answer when it is replicated. A machine that has let
        a request wait decides again this way.
        """
        decided = self.decide(token, request)
        if decided is None:
            return
        context, reply = self.context, decided.reply
        if not decided.records:
            decided.settled(0)
            context.reply(token, reply(0))
            return
        context.write(
            decided.records,
            lambda error: context.reply(token, reply(error)),
            settled=decided.settled,
            transactional=decided.transactional,
        )

    def refuse(self, request: RequestT, error: int) -> ReplyT:
        """The reply that carries an error of the whole request."""
        raise NotImplementedError

    def judge(self, request: RequestT) -> int:
        """The error of a request that no coordinator accepts; 0 for all others."""
        return 0

    def began(self) -> None:
        """This process leads and everything is applied: requests come from now on."""

    def ended(self) -> None:
        """It leads no longer. Requests that still wait are to be answered now; state besides the
        records' is to be dropped.
        """

    def topics_changed(self, gone: tuple[str, ...], *, is_whole: bool) -> None:
        """``context.topics`` has changed while this process leads (``events.TopicsKnown``)."""

    def connection_closed(self, connection: int) -> None:
        """The connection of a native client ended."""

    def timer_fired(self, name: tuple[object, ...]) -> None:
        """A deadline that the machine set in ``context.timers`` has come."""

    def check(self, *, leads: bool) -> None:
        """Raise AssertionError where an invariant is broken. For tests and the simulator: it visits
        everything.
        """


class CoordinatorKind(Protocol[RequestT, ReplyT, KeyedT]):
    """What a runtime is given: the topic, the codec, the hash, and machines."""

    topic: str

    def machine(self, position: int) -> CoordinatorMachine[RequestT, ReplyT, KeyedT]:
        """A new machine, for a log of which nothing below ``position`` is there."""

    def encode(self, record: KeyedT) -> tuple[bytes, bytes | None]:
        """The key and the value of a record; without a value it deletes what it names."""

    def decode(self, key: bytes | None, value: bytes | None) -> KeyedT | None:
        """The record; None for one of a kind that is not known. Raises ProtocolError for what can't
        be read.
        """

    def partition_of(self, request: RequestT) -> int | None:
        """The partition that answers a request; None: every one does, with what it has."""

    def wait_ms(self, request: RequestT) -> int | None:
        """How long a request itself may wait for a leader; None: it does not say."""

    def configure(self, configs: Mapping[str, str]) -> None:
        """Go by the topic's and brokers' configs from now on, where they name settings of this
        kind.
        """
