"""Copiers of a simulated cluster that are members of a consumer group: what the group gives them to read,
committed records only, they write to another partition, and commit their offsets of the group in the same
transaction (KIP-447).

Each is a production ``GroupMember`` and a transactional producer of its own id, so a copier that was taken
for dead is fenced in two ways: by the generation of the group wherever it commits offsets, and by its
producer's epoch once somebody has begun in its place. Who takes over asks for stable offsets, and
waits while those of its predecessor are of a transaction that has not ended.

``copy_checker`` knows what has to be in the target, ``committed_offsets`` what of offsets may be shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from raylog.client.groups.member import CoordinatorAnswer, PartitionsAssigned
from raylog.groups.requests import CommittedPartition, OffsetFetch, OffsetsFetched, TxnOffsetCommit
from raylog.offsets_topic import OFFSETS_TOPIC, partition_for
from raylog.simulator.copy_checker import Chain, CopiedRange
from raylog.simulator.group_members import GroupSpec, SimulatedMember
from raylog.simulator.transaction_checker import KnownTransaction
from raylog.simulator.transaction_coordinator import CoordinatorSays
from raylog.simulator.transactional_copiers import RECORD_LIST_TOO_LARGE, SourceReader
from raylog.simulator.transactional_producers import TransactionalProducer
from raylog.simulator.workload import RETRIABLE
from raylog.types import TopicIdPartition, TopicPartition

if TYPE_CHECKING:
    from raylog.simulator.hosted_transactions import HostedTransactions

LIVES = 5  # what becomes of copiers once all faults have stopped, before they have to come to an end
SLOTS = 2  # copiers at a time, but for those that were taken for dead
ASSIGNORS = (("range",), ("cooperative-sticky",))
UNSTABLE = ErrorCode.unstable_offset_commit.value


class GroupCopying:
    """The group, the chain that it works on, and its copiers. When the chain is over there is another one,
    with a group of its own.
    """

    def __init__(self, transactions: HostedTransactions) -> None:
        self.transactions = transactions
        self.simulation = transactions.simulation
        self.scheduler = self.simulation.scheduler
        self.version = self.scheduler.rng.choice((1, 2, 2))
        self.bytes_max = transactions.copied_bytes_max
        self.numbers = 0  # of transactions, whoever begins them
        self.transactional_id = "group"  # what those of all copiers begin with
        self.source: SourceReader | None = None
        self.group: GroupSpec | None = None
        self._chain: Chain | None = None
        self._slots: dict[int, GroupCopier] = {}
        self._copiers: list[GroupCopier] = []
        self._confirmed = -1  # the offset that was shown as stable last
        self._lives_left = LIVES
        self._live_later()

    def chain(self) -> Chain | None:
        if self._chain is not None and self._is_over(self._chain):
            self._chain = None
            for copier in self._copiers:
                copier.end_both()
            self._copiers, self._slots = [], {}
        if self._chain is None and self._lives_left:
            self._begin_chain()
        return self._chain

    def chains(self) -> list[Chain]:
        return [self._chain] if self._chain is not None else []

    def _is_over(self, chain: Chain) -> bool:
        checker = self.transactions.checker
        is_there = all(checker.holds(id) and not self.simulation.is_deleted(id) for id in chain.ids)
        return not is_there or checker.has_lost_offsets(chain)

    def _begin_chain(self) -> None:
        checker, partitions = self.transactions.checker, self.transactions.partitions
        there = sorted(id for id in partitions if checker.holds(id) and not self.simulation.is_deleted(id))
        offsets = self.transactions.offsets_partitions()
        if len(there) < 2 or not offsets:
            return
        source, target = self.scheduler.rng.sample(there, 2)
        if not self.transactions.may_be_copied(source, target):
            return
        self.numbers += 1
        self.transactional_id = f"group{self.numbers}"
        id = offsets[partition_for(self.transactional_id, len(offsets))]
        chain = self._chain = checker.begin_chain(self.transactional_id, source, target, None, offsets=id)
        self.simulation.trace(f"{self.transactional_id} copies {chain}")
        self.simulation.counts["chains of copies by groups"] += 1
        self.bytes_max = self.transactions.copied_bytes_max
        if self.source is not None:
            self.source.stop()
        self.source = SourceReader(self, chain)
        place = TopicPartition(partitions[source], source.partition)
        assignors = self.scheduler.rng.choice(ASSIGNORS)
        self.group = GroupSpec(self.transactional_id, OFFSETS_TOPIC, id, (place,), assignors)
        self._confirmed = -1
        for slot in range(SLOTS):
            self._arrive(slot)

    def is_current(self, copier: GroupCopier) -> bool:
        return self._slots.get(copier.slot) is copier

    # ---------------------------------------------------------------- faults

    def _arrive(self, slot: int) -> None:
        assert self.group is not None
        instance = f"i{slot}" if self.scheduler.chance(0.3) else None
        copier = self._slots[slot] = GroupCopier(self, self.group, slot, instance)
        self._copiers = [each for each in self._copiers if each.alive]
        self._copiers.append(copier)

    def _live_later(self) -> None:
        self.simulation.rhythm.later(self.scheduler.after_us, 300_000, self._live, "something becomes of a copier")

    def _live(self) -> None:
        if self.simulation.is_healing:
            self._lives_left -= 1
        if not self._lives_left:
            self._settle()
            return
        self._live_later()
        if self.chain() is None:
            return
        slot = self.scheduler.between(0, SLOTS - 1)
        copier = self._slots[slot]
        if not copier.works:
            copier.end_both()
            self._arrive(slot)
            return
        whats = ("leaves", "dies", "is paused", "goes on beside another one")
        what = self.scheduler.rng.choices(whats, (3, 1, 1, 1))[0]
        self.simulation.trace(f"{copier.name} {what}")
        self.simulation.counts["copiers of groups replaced"] += 1
        match what:
            case "dies":
                copier.end_both()
            case "is paused":
                copier.pause_both()
                pause_ms = self.scheduler.between(10, 4_000)
                self.scheduler.after_ms(pause_ms, copier.resume_both, "a copier wakes up")
            case "leaves":
                copier.member.retire()
            case _:
                pass
        if self.scheduler.chance(0.7):
            self._arrive(slot)

    def kill_the_coordinator(self) -> None:
        """While offsets of an open transaction are stored there."""
        assert self.group is not None
        for process in self.simulation.replica_processes():
            replica = process.host.replicas.get(self.group.id)
            if replica is not None and replica.leader is not None:
                self.simulation.trace(f"{process.name} dies beside pending offsets")
                self.simulation.counts["coordinators that died beside pending offsets"] += 1
                process.kill()
                return

    # ---------------------------------------------------------------- the end

    def _settle(self) -> None:
        self.bytes_max = self.transactions.hurried_bytes_max
        for copier in list(self._copiers):
            copier.resume_both()
            copier.stop()

    def unfinished(self) -> str | None:
        chain = self.chain()
        if self._lives_left:
            return "copiers of groups come and go"
        if chain is None:
            return None
        for slot, copier in list(self._slots.items()):
            if not copier.works:
                copier.end_both()
                self._arrive(slot)
                self._slots[slot].stop()
                return f"{copier.name} was left"
        for copier in self._copiers:
            if not copier.member.alive:
                copier.end_both()  # the answer that it may wait for was asked for by its member, which has left
            if copier.alive and not copier.is_idle:
                return f"{copier.name} is amid {copier.transaction}"
        if not self.transactions.checker.is_whole(chain):
            return None
        if chain.uncopied() is not None:
            return f"{self.transactional_id} has not copied {chain.uncopied()} of {chain.ids}"
        if self._confirmed != chain.copied_end:
            self._confirm(chain)
            return f"{self.transactional_id} has committed {self._confirmed}, and copied up to {chain.copied_end}"
        return None

    def _confirm(self, chain: Chain) -> None:
        assert self.group is not None
        request = OffsetFetch(self.group.group_id, self.group.partitions, require_stable=True)

        def answered(answer: CoordinatorAnswer) -> None:
            if isinstance(answer.reply, OffsetsFetched) and not answer.error and not answer.reply.partitions[0].error:
                offset = answer.reply.partitions[0].offset
                self._confirmed = offset if offset >= 0 else chain.start

        self._slots[0].member.ask_coordinator(request, answered)

    def at_end(self) -> None:
        chain = self.chain()
        if chain is not None and self.transactions.checker.is_whole(chain):
            chain.position = self._confirmed
            self.transactions.checker.at_end_of_chain(chain)
            self.simulation.counts["chains of copies by groups at rest"] += 1
            self.simulation.counts["records copied by groups"] += chain.copied


class CopyingMember(SimulatedMember):
    """Commits nothing by itself. ``ownership`` counts how often what it owns has changed."""

    session_ms, rebalance_ms, heartbeat_ms = 1_500, 2_000, 400  # or it would be over before anybody is taken for dead

    def __init__(self, copier: GroupCopier, group: GroupSpec, instance: str | None) -> None:
        self.ownership = 0
        simulation = copier.simulation
        super().__init__(f"{copier.name}-member", simulation, copier.machine, group, instance, lambda: -1)

    def _commit_some(self) -> None:
        """The copier commits."""

    def _commit(self, place: TopicPartition) -> None:
        """The copier commits."""

    def _take_over(self, order: PartitionsAssigned) -> None:
        had = self.owned
        super()._take_over(order)
        if set(self.owned) - set(had):
            self.ownership += 1

    def identity(self) -> tuple[str, int, str | None]:
        """Member id, generation and instance id, as KafkaConsumer.groupMetadata() has them."""
        if self._former is not None and self.scheduler.chance(0.1):
            return *self._former, self.instance  # a thread of the user's has taken its time
        return self._member.member_id, self._member.generation, self.instance

    def retire_later(self) -> None:
        self.later(0, self._retire, f"{self.name} leaves")


class GroupCopier(TransactionalProducer):
    """``_position``: up to where the chain is copied, as of ``_ownership``; None until that was asked."""

    def __init__(self, copying: GroupCopying, group: GroupSpec, slot: int, instance: str | None) -> None:
        transactional_id = f"{group.group_id}@{slot}"
        super().__init__(transactional_id, copying.transactions, version=copying.version)
        self.copying = copying
        self.slot = slot
        self.group = group
        self.place = group.partitions[0]
        self.member = CopyingMember(self, group, instance)
        self.hosted = copying.transactions.hosted
        self._offsets = copying.transactions.committed_offsets
        self._position: int | None = None
        self._ownership = -1
        self._part = CopiedRange(-1, -1, -1)
        self._copies: list[bytes] = []
        self._has_sent_offset = False

    # ---------------------------------------------------------------- both processes of a copier are one

    @property
    def works(self) -> bool:
        return self.alive and self.member.alive and not self.member.is_over

    def end_both(self) -> None:
        self.kill()
        self.member.kill()

    def pause_both(self) -> None:
        self.pause()
        self.member.pause()

    def resume_both(self) -> None:
        self.resume()
        self.member.resume()

    # ---------------------------------------------------------------- a transaction

    def _next(self) -> None:
        if not self.works:
            self.later(0, self.kill, f"{self.name} ends")
        elif not self._is_ready:
            if self.copying.is_current(self):
                self._ask(self._begin_anew, self._begun_anew)
            else:
                self.later(0, self.end_both, f"{self.name} gives way")
        elif (chain := self.copying.chain()) is None or self.place not in self.member.owned:
            self._position = None
            self._next_later()
        elif self._position is None or self._ownership != self.member.ownership:
            self._fetch_position(chain)
        else:
            self._copy(chain, self._position)

    def _begun_anew(self, says: CoordinatorSays) -> None:
        self._position = None
        super()._begun_anew(says)

    def _fetch_position(self, chain: Chain) -> None:
        self._position, self._ownership = None, self.member.ownership
        request = OffsetFetch(self.group.group_id, (self.place,), require_stable=True)

        def answered(answer: CoordinatorAnswer) -> None:
            if isinstance(answer.reply, OffsetsFetched) and not answer.error:
                (found,) = answer.reply.partitions
                if not found.error:
                    self._position = found.offset if found.offset >= 0 else chain.start
                self.simulation.counts["copiers that waited for stable offsets"] += found.error == UNSTABLE
            self._next_later()

        self.member.ask_coordinator(request, answered)

    def _copy(self, chain: Chain, start: int) -> None:
        source = self.copying.source
        assert source is not None
        records_max = self.scheduler.between(1, self.transactions.copied_records_max)
        if self.is_over:
            records_max = self.transactions.hurried_records_max
        end, self._copies = source.next_copies(start, records_max, self.copying.bytes_max)
        if not self._copies:
            self._next_later()
            return
        self._part = CopiedRange(chain.number, start, end)
        self._has_sent_offset = False
        self._begin([chain.target])

    def _next_number(self) -> int:
        self.copying.numbers += 1
        return self.copying.numbers

    def _batches(self) -> int:
        return 1

    def _write(self, transaction: KnownTransaction, ids: list[TopicIdPartition]) -> None:
        source, chain = self.copying.source, self.copying.chain()
        if source is not None and chain is not None and self._recorded is not None:
            read = source.transactional(self._part.start, self._part.end)
            self.history.polled_within(self._recorded, chain.source, read)
        super()._write(transaction, ids)

    def _values(self, transaction: KnownTransaction, id: TopicIdPartition, number: int) -> list[bytes]:
        named = super()._values(transaction, id, number)
        return [*named, self._part.encoded(), *self._copies] if not number else named

    def _answered(self, error: int) -> None:
        if error == RECORD_LIST_TOO_LARGE:
            self.copying.bytes_max = max(1, self.copying.bytes_max // 2)

    def _end(self, transaction: KnownTransaction) -> None:
        if self.transaction is not transaction:
            return
        if self._failed or self._has_sent_offset:
            super()._end(transaction)
            return
        self._has_sent_offset = True
        if self.version >= 2:
            self._send_offset(transaction)
            return
        self._ask(
            lambda answered: self.hosted.add_group(self, transaction, self.group.group_id, answered),
            lambda says: self._fail(transaction) if says.error else self._send_offset(transaction),
        )

    def _fail(self, transaction: KnownTransaction) -> None:
        if self.transaction is transaction:
            self._failed = True
            super()._end(transaction)

    def _send_offset(self, transaction: KnownTransaction) -> None:
        if self.transaction is not transaction:
            return
        if self._ownership != self.member.ownership or self.place not in self.member.owned:
            self._fail(transaction)
            return
        name = self._offsets.sent(self.group.group_id, transaction, self._part.end)
        part = CommittedPartition(*self.place, self._part.end, metadata=name)
        member_id, generation, instance = self.member.identity()
        request = TxnOffsetCommit(
            self.group.group_id,
            (part,),
            transaction.producer_id,
            transaction.producer_epoch,
            self.membership,
            member_id,
            generation,
            instance,
        )
        self._ask_to_store(transaction, request)

    def _ask_to_store(self, transaction: KnownTransaction, request: TxnOffsetCommit) -> None:
        """Until there is an answer that is not retriable."""
        if self.transaction is not transaction:
            return

        def answered(answer: CoordinatorAnswer) -> None:
            if answer.error in RETRIABLE:
                delay_us = self.scheduler.between(5_000, 60_000)
                self.later(delay_us, lambda: self._ask_to_store(transaction, request), f"{self.name} commits again")
            elif answer.error:
                self.later(0, lambda: self._fail(transaction), f"{self.name} may not commit")
            else:
                self.later(0, lambda: self._stored(transaction, request), f"{self.name} has committed")

        self.member.ask_coordinator(request, answered)

    def _stored(self, transaction: KnownTransaction, request: TxnOffsetCommit) -> None:
        self._offsets.acknowledged(self.group.group_id, transaction)
        if self.transaction is not transaction:
            return
        if self.version >= 2 and not self.is_over and self.scheduler.chance(0.3):
            # In the first version it could be taken for one of the next transaction, of the same epoch.
            again = lambda: self.member.ask_coordinator(request, lambda answer: None)  # noqa: E731
            self.member.later(self.scheduler.skewed_us(80_000), again, f"an offset of {self.name} comes late")
        delay_us = self.scheduler.skewed_us(30_000) if not self.is_over else 0
        self.later(delay_us, lambda: self._end(transaction), f"{self.name} ends a transaction")
        if self.is_over:
            return
        if self.scheduler.chance(0.1):
            self.later(0, self._leave, f"{self.name} leaves what it has begun")
        elif self.scheduler.chance(0.05):
            self.scheduler.after_us(1, self.copying.kill_the_coordinator, "a coordinator dies beside pending offsets")

    def _leave(self) -> None:
        """The group gives its part to somebody else while the transaction is open."""
        self.member.retire_later()
        self.kill()

    def _ended(self, transaction: KnownTransaction, commits: bool, says: CoordinatorSays) -> None:
        if self.transaction is transaction:
            self._position = self._part.end if commits and not says.error else None
        super()._ended(transaction, commits, says)
