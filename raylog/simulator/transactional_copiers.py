"""Copiers of a simulated cluster: what they read from one partition, committed records only, they write
to another, and commit their position as a record of a third, in the same transaction.

They are transactional producers of one id. One dies, pauses, or goes on while it is taken for dead;
another one begins in its place, which fences it, and goes on from the last position that was committed.
``copy_checker`` knows what has to be in the target.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Protocol

from kio.schema.errors import ErrorCode

from raylog.records.aborted import AbortedTransactions
from raylog.records.batch import BatchView
from raylog.records.codec import light_records
from raylog.simulator.copy_checker import Chain, CopiedRange, copy_of, read_range
from raylog.simulator.transaction_checker import KnownTransaction
from raylog.simulator.transaction_coordinator import CoordinatorSays
from raylog.simulator.transactional_producers import CommittedConsumer, TransactionalProducer
from raylog.types import TopicIdPartition

if TYPE_CHECKING:
    from raylog.simulator.simulated_transactions import SimulatedTransactions
    from raylog.simulator.simulation import Simulation

RECORD_LIST_TOO_LARGE = ErrorCode.record_list_too_large.value


class Copying:
    """The copiers, the chain that they work on, and who reads for them. A chain is over when one of its
    partitions is deleted or has lost something; then there is another one.
    """

    def __init__(self, transactions: SimulatedTransactions) -> None:
        self.transactions = transactions
        self.simulation = transactions.simulation
        self.scheduler = self.simulation.scheduler
        self.version = self.scheduler.rng.choice((1, 2, 2))
        self.transactional_id = f"copier{self.version}"
        self.numbers = 0  # of transactions, whoever begins them
        self.bytes_max = transactions.copied_bytes_max  # at once; less where the target's segments are small
        self.source: SourceReader | None = None
        self.positions: PositionReader | None = None
        self._chain: Chain | None = None
        self._copiers = [Copier(self)]
        self._replace_later()

    @property
    def current(self) -> Copier:
        return self._copiers[-1]

    def chain(self) -> Chain | None:
        if self._chain is not None and self._is_over(self._chain):
            self._chain = None
        if self._chain is None and not self.simulation.is_healing:
            self._begin_chain()
        return self._chain

    def chains(self) -> list[Chain]:
        return [self._chain] if self._chain is not None else []

    def _is_over(self, chain: Chain) -> bool:
        assert self.positions is not None
        checker = self.transactions.checker
        is_there = all(checker.holds(id) and not self.simulation.is_deleted(id) for id in chain.ids)
        return not is_there or self.positions.has_missed_some

    def _begin_chain(self) -> None:
        checker, partitions = self.transactions.checker, self.transactions.partitions
        there = sorted(id for id in partitions if checker.holds(id) and not self.simulation.is_deleted(id))
        if len(there) < 2:
            return
        source, target, *others = self.scheduler.rng.sample(there, min(3, len(there)))
        if not self.transactions.may_be_copied(source, target, *others):
            return
        positions = others[0] if others else target
        chain = self._chain = checker.begin_chain(self.transactional_id, source, target, positions)
        self.simulation.trace(f"{self.transactional_id} copies {chain}")
        self.simulation.counts["chains of copies"] += 1
        self.bytes_max = self.transactions.copied_bytes_max
        for reader in (self.source, self.positions):
            if reader is not None:
                reader.stop()
        self.source = SourceReader(self, chain)
        self.positions = PositionReader(self, chain, self.simulation.checkers.history(positions).end)

    # ---------------------------------------------------------------- faults

    def _replace_later(self) -> None:
        self.simulation.rhythm.later(self.scheduler.after_us, 700_000, self._replace, "a copier is replaced")

    def _replace(self) -> None:
        if self.simulation.is_healing:
            return
        former = self.current
        what = self.scheduler.rng.choice(("dies", "is paused", "goes on"))
        self.simulation.trace(f"{former.name} {what}, and is replaced")
        self.simulation.counts["copiers replaced"] += 1
        if what == "dies":
            former.kill()
        elif what == "is paused":
            former.pause()
            self.scheduler.after_ms(self.scheduler.between(10, 3_000), former.resume, "a copier wakes up")
        self._copiers = [each for each in self._copiers if each.alive]
        self._copiers.append(Copier(self))
        self._replace_later()

    # ---------------------------------------------------------------- the end

    def stop(self) -> None:
        self.bytes_max = self.transactions.hurried_bytes_max
        for copier in list(self._copiers):
            copier.resume()
            copier.stop()

    def unfinished(self) -> str | None:
        for copier in self._copiers:
            if copier.alive and not copier.is_idle:
                return f"{copier.name} is amid {copier.transaction}"
        chain = self.chain()
        if chain is not None and self.transactions.checker.is_whole(chain) and chain.uncopied() is not None:
            return f"{self.transactional_id} has not copied {chain.uncopied()} of {chain.ids}"
        return None

    def at_end(self) -> None:
        chain = self.chain()
        if chain is not None and self.transactions.checker.is_whole(chain):
            self.transactions.checker.at_end_of_chain(chain)
            self.simulation.counts["chains of copies at rest"] += 1
            self.simulation.counts["records copied in chains"] += chain.copied


class Copier(TransactionalProducer):
    """``_position``: up to where the chain is copied; None until that was read."""

    def __init__(self, copying: Copying) -> None:
        super().__init__(copying.transactional_id, copying.transactions, version=copying.version)
        self.copying = copying
        self._chain: Chain | None = None
        self._positions_end = -1  # of what has to be read of the positions
        self._position: int | None = None
        self._part = CopiedRange(-1, -1, -1)
        self._copies: list[bytes] = []

    def _next(self) -> None:
        if not self._is_ready:
            if self.copying.current is self:
                self._ask(self._begin_anew, self._begun_anew)
            else:
                self.later(0, self.kill, f"{self.name} gives way")
            return
        chain = self.copying.chain()
        if chain is None or not self._knows_position(chain):
            self._next_later()
            return
        self._copy(chain)

    def _begun_anew(self, says: CoordinatorSays) -> None:
        self._chain = None
        super()._begun_anew(says)

    def _knows_position(self, chain: Chain) -> bool:
        """Reads the last one, as a coordinator reads its log: to the end of all that is committed."""
        if chain is not self._chain:
            self._chain, self._position = chain, None
            self._positions_end = self.simulation.checkers.history(_positions_of(chain)).end
        reader = self.copying.positions
        assert reader is not None
        if self._position is None and reader.read_end >= self._positions_end:
            self._position = reader.position
        return self._position is not None

    def _copy(self, chain: Chain) -> None:
        source, start = self.copying.source, self._position
        assert source is not None and start is not None
        records_max = self.scheduler.between(1, self.transactions.copied_records_max)
        if self.is_over:
            records_max = self.transactions.hurried_records_max
        end, self._copies = source.next_copies(start, records_max, self.copying.bytes_max)
        if not self._copies:
            self._next_later()
            return
        self._part = CopiedRange(chain.number, start, end)
        self._begin(sorted({chain.target, _positions_of(chain)}))

    def _write(self, transaction: KnownTransaction, ids: list[TopicIdPartition]) -> None:
        source, chain = self.copying.source, self._chain
        if source is not None and chain is not None and self._recorded is not None:
            read = source.transactional(self._part.start, self._part.end)
            self.history.polled_within(self._recorded, chain.source, read)
        super()._write(transaction, ids)

    def _next_number(self) -> int:
        self.copying.numbers += 1
        return self.copying.numbers

    def _batches(self) -> int:
        return 1

    def _values(self, transaction: KnownTransaction, id: TopicIdPartition, number: int) -> list[bytes]:
        named = super()._values(transaction, id, number)
        if number or self._chain is None:
            return named
        return [*named, self._part.encoded(), *(self._copies if id == self._chain.target else ())]

    def _answered(self, error: int) -> None:
        if error == RECORD_LIST_TOO_LARGE:
            self.copying.bytes_max = max(1, self.copying.bytes_max // 2)

    def _ended(self, transaction: KnownTransaction, commits: bool, says: CoordinatorSays) -> None:
        if self.transaction is transaction and commits and not says.error:
            self._position = self._part.end
        super()._ended(transaction, commits, says)


def _positions_of(chain: Chain) -> TopicIdPartition:
    assert chain.positions is not None, chain
    return chain.positions


class Copies(Protocol):
    """Whoever copies, as who reads for them sees it."""

    transactional_id: str
    simulation: Simulation

    @property
    def transactions(self) -> SimulatedTransactions: ...


class ChainReader(CommittedConsumer):
    """Reads on from ``start``; what it re-reads now and then it passes over."""

    goes_back_max = 20

    def __init__(self, copying: Copies, id: TopicIdPartition, start: int) -> None:
        topic = copying.transactions.partitions[id]
        name = f"{copying.transactional_id}-reads-{topic}{id.partition}"
        super().__init__(name, copying.simulation, copying.simulation.client_machine, topic=topic, id=id)
        self.offset = self.read_end = start

    def _read(self, views: list[BatchView], generation: int, leader_epoch: int) -> None:
        super()._read(views, generation, leader_epoch)
        aborted = AbortedTransactions(self._aborted)
        for view in views:
            is_hidden = aborted.hides(view)
            if view.next_offset > self.read_end and not is_hidden and not view.is_control:
                self._shown(view)
        self.read_end = max(self.read_end, views[-1].next_offset)

    def _shown(self, view: BatchView) -> None:
        raise NotImplementedError


class SourceReader(ChainReader):
    def __init__(self, copying: Copies, chain: Chain) -> None:
        super().__init__(copying, chain.source, chain.start)
        self._chain = chain
        self._values: dict[int, bytes] = {}
        self._transactional: set[int] = set()  # the offsets of those that are of transactions
        self._jumps: list[int] = []  # where it went on, as what came before was deleted

    def _read(self, views: list[BatchView], generation: int, leader_epoch: int) -> None:
        if self.offset > self.read_end:
            self._jumps.append(self.offset)
        super()._read(views, generation, leader_epoch)

    def _shown(self, view: BatchView) -> None:
        values = {record.offset: record.value or b"" for record in light_records(view)}
        self._values |= values
        if view.is_transactional:
            self._transactional.update(values)

    def transactional(self, start: int, end: int) -> list[list[tuple[int, bytes]]]:
        """The records of transactions among those, in runs without a jump."""
        runs: list[list[tuple[int, bytes]]] = [[] for _ in range(len(self._jumps) + 1)]
        for at, value in self._values.items():
            if start <= at < end and at in self._transactional:
                runs[bisect_right(self._jumps, at)].append((at, value))
        return runs

    def next_copies(self, start: int, records_max: int, bytes_max: int) -> tuple[int, list[bytes]]:
        """From ``start`` on, and where they end in the source; one at least, however long it is."""
        copies: list[bytes] = []
        left = bytes_max
        for offset, value in self._values.items():
            if offset < start:
                continue
            copy = copy_of(self._chain.number, offset, value)
            if copies and (len(copies) == records_max or len(copy) > left):
                return offset, copies
            copies.append(copy)
            left -= len(copy)
        return self.read_end, copies


class PositionReader(ChainReader):
    """``position``: the last one that was committed, as far as this has read."""

    def __init__(self, copying: Copying, chain: Chain, start: int) -> None:
        super().__init__(copying, _positions_of(chain), start)
        self.position = chain.start
        self._chain = chain
        self._has_jumped = False

    @property
    def has_missed_some(self) -> bool:
        """They were deleted before it came to them."""
        return self._has_jumped or self.offset > self.read_end

    def _read(self, views: list[BatchView], generation: int, leader_epoch: int) -> None:
        self._has_jumped = self.has_missed_some
        super()._read(views, generation, leader_epoch)

    def _shown(self, view: BatchView) -> None:
        records = light_records(view)
        own = f"{self._chain.transactional_id}/".encode()
        if len(records) > 1 and view.is_transactional and (records[0].value or b"").startswith(own):
            part = read_range(records[1].value or b"")
            if part.chain == self._chain.number:
                self.position = part.end
