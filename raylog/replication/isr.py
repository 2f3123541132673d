"""The in-sync replicas of a partition as its leader knows them: the committed set, and the change
it has asked for.

Only the controller changes the ISR; the leader asks with AlterPartition and the partition epoch it
knows, one request at a time. Whether a request was carried out is known only when an assignment
with a higher partition epoch arrives, so from the moment of asking the leader counts the *maximal*
ISR (committed or asked for) when it advances the high watermark: a member that the controller may
already have taken in can be elected, and must not miss what was acknowledged (KIP-497).

What ends a request::

    newer partition epoch     it was carried out or overtaken: the assignment says what holds now
    answer, done              nothing changed: the assignment would have come before it
    answer, refused           nothing changed; asking again after a pause
    answer, another epoch     it was carried out, or somebody else changed the partition: the maximal ISR stays until the
                              assignment comes, which it does unless another process has replaced this one
    session lost              unknown: the maximal ISR stays, and the leader asks again in the next session

Invariants (``check``): committed ⊆ maximal; nothing is in flight without a proposal.
"""

from __future__ import annotations

from raylog.control.session import AlterPartitionAnswer


class InSyncReplicas:
    """``committed`` is what the controller said last; ``maximal`` adds what was asked for and may
    hold already.
    """

    __slots__ = ("committed", "in_flight", "maximal", "partition_epoch", "retry_at_ms", "stale", "uncertain")

    def __init__(self, committed: tuple[int, ...], partition_epoch: int) -> None:
        self.committed = committed
        self.maximal = committed
        self.partition_epoch = partition_epoch
        self.in_flight: int | None = None  # the id of the request that waits for its answer
        self.uncertain = False  # a request was sent in this partition epoch and its end is not known
        self.stale = False  # the controller has another partition epoch than ours: asking is useless
        self.retry_at_ms = 0

    def adopt(self, committed: tuple[int, ...], partition_epoch: int) -> None:
        """Take over what an assignment says. A newer partition epoch ends whatever was asked."""
        if partition_epoch > self.partition_epoch:
            self.partition_epoch = partition_epoch
            self.committed = self.maximal = committed
            self.in_flight = None
            self.uncertain = self.stale = False
            self.retry_at_ms = 0

    def may_ask(self, now_ms: int) -> bool:
        return self.in_flight is None and not self.stale and now_ms >= self.retry_at_ms

    def asked(self, request_id: int, members: tuple[int, ...]) -> None:
        """A request for ``members`` is on its way."""
        assert self.in_flight is None, (self.in_flight, request_id)
        self.in_flight = request_id
        self.uncertain = True
        self.maximal += tuple(member for member in members if member not in self.maximal)

    def answered(self, answer: AlterPartitionAnswer, now_ms: int, *, backoff_ms: int) -> bool:
        """Judge an answer; False when it belongs to no request in flight (it came late) and nothing
        was done.
        """
        if answer.request_id != self.in_flight:
            return False
        self.in_flight = None
        if answer.partition_epoch != self.partition_epoch:
            self.stale = True
            return True
        self.uncertain = False
        self.maximal = self.committed
        if answer.error:
            self.retry_at_ms = now_ms + backoff_ms
        return True

    def session_changed(self) -> None:
        """The request in flight is void, but it may have been carried out."""
        self.in_flight = None
        self.stale = False
        self.retry_at_ms = 0

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        assert set(self.committed) <= set(self.maximal), (self.committed, self.maximal)
        assert self.in_flight is None or self.uncertain, self.in_flight
