"""All replicas of a live cluster's partitions, compared below the high watermark, over the wire.

Every replica, follower or leader, answers a consumer's fetch up to the high watermark that it knows
(KIP-392), and on an inside link one names the replica by the process that one asks. So nothing has
to stop, nobody needs the brokers' files, and the comparison works from wherever a client works.
``verify_partition`` fetches the same offsets from all replicas of a partition and has
``ReplicaComparison`` judge them, portion by portion, up to the leader's high watermark of when it
began. Through the brokers' listeners it asks each broker with a rack that none has: a broker then
answers out of its own replica, unless that one's process is dead and the broker stands in for the
leader's. So each is also asked, before and afterwards, whether it holds a replica
(DescribeLogDirs). At the end the epochs found in the batches are held against the leader's epoch
history (OffsetForLeaderEpoch).

What happens meanwhile is waited for: a follower that does not know the high watermark yet, a
process that was killed and is started anew, another leader. A replica that makes no progress for
``patience_s`` is left out and named in the report, which then does not hold: not compared is not
verified. What retention deletes while it is compared is skipped.

The replicas of a compacted topic don't have the same bytes; there ``TableComparison`` reads each of
them to the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace

from kio.schema.errors import ErrorCode

from raylog.client.admin.replica_comparison import Difference, ReplicaComparison
from raylog.client.admin.replica_repair import DIFFERENCES_MAX, Judgement, Repair, judge_tables, recopied, repaired
from raylog.client.admin.table_comparison import TableComparison
from raylog.client.links import requests
from raylog.client.links.address import not_from_outside
from raylog.client.links.leader_requests import LeaderRequests
from raylog.client.links.link import ClusterLink
from raylog.client.links.metadata import PartitionView
from raylog.errors import RaylogError, error_for, kafka_error
from raylog.types import BROKER_SLOT, TopicPartition, broker_of, node_id

PORTION_BYTES = 2 << 20
PARTITIONS_AT_ONCE = 4
RETRY_S = 0.1
EPOCHS_ASKED_MAX = 64  # the newest ones
NO_BROKERS_RACK = "raylog: this broker's own replica"

OnPartition = Callable[["PartitionReport"], None]


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """What was compared of one partition: offsets ``start`` up to ``end``, on each broker of
    ``compared``.
    """

    topic: str
    partition: int
    leader: int
    compared: tuple[int, ...]
    left_out: dict[int, str]  # by broker, why
    start: int
    end: int
    batches: int
    records: int
    size_bytes: int  # on each replica
    difference: Difference | None
    is_compacted: bool = False  # then the last record of each key was compared
    judgement: Judgement | None = None  # of a compacted partition with a difference: whose copy is wrong
    offsets: dict[int, int] = field(default_factory=dict)  # by broker of these, where

    @property
    def holds(self) -> bool:
        return self.difference is None and not self.left_out

    def words(self) -> str:
        """What is wrong with it; empty if nothing is."""
        name = f"{self.topic}-{self.partition}"
        lines = []
        if self.difference is not None:
            lines.append(f"{name} at offset {self.difference.offset}: {self.difference.what}")
        lines += [
            f"{name}: the replica on broker {broker} was not compared: {why}"
            for broker, why in sorted(self.left_out.items())
        ]
        return "\n".join(lines)


@dataclass(slots=True)
class Verification:
    """All partitions that were asked for."""

    partitions: list[PartitionReport] = field(default_factory=list)
    repairs: list[Repair] = field(default_factory=list)  # what was copied anew; compared again since
    undecided: list[str] = field(default_factory=list)  # what could not be repaired, and why

    @property
    def holds(self) -> bool:
        return all(report.holds for report in self.partitions)

    @property
    def first_difference(self) -> PartitionReport | None:
        """The first partition whose replicas differ, in the order of names."""
        return next((report for report in self.partitions if report.difference is not None), None)

    def words(self) -> str:
        """What was compared and what was found, in sentences; a line for each partition that does
        not hold.
        """
        topics = sorted({report.topic for report in self.partitions})
        replicas = sum(len(report.compared) for report in self.partitions)
        lines = [
            f"Compared {replicas:,} replicas of {len(self.partitions):,} partitions of {len(topics):,} topics below their "
            f"high watermarks, byte for byte, over the network: "
            f"{sum(report.end - report.start for report in self.partitions):,} offsets, "
            f"{sum(report.records for report in self.partitions):,} records in "
            f"{sum(report.batches for report in self.partitions):,} batches, "
            f"{sum(report.size_bytes for report in self.partitions):,} bytes on each replica."
        ]
        compacted = sum(report.is_compacted for report in self.partitions)
        if compacted:
            lines.append(f"Of {compacted:,} compacted partitions the last record of each key was compared.")
        if self.holds:
            lines.append(
                "Every batch's CRC holds, offsets ascend, leader epochs never go back and agree with the leaders' histories. "
                "All replicas are the same."
            )
        lines += [repair.words() for repair in self.repairs]
        lines += [f"NOT repaired: {words}" for words in self.undecided]
        wrong = [report for report in self.partitions if report.difference is not None]
        if wrong:
            lines.append(f"{len(wrong):,} partitions DIFFER; compared up to the first difference of each:")
        lines += [report.words() for report in self.partitions if not report.holds]
        return "\n".join(lines)


async def verify_topics(
    link: ClusterLink,
    topics: Iterable[str] | None,
    *,
    patience_s: float,
    is_compacted: Callable[[str], Awaitable[bool]],
    on_partition: OnPartition = lambda report: None,
    repair: bool = False,
) -> Verification:
    """Compare the replicas of every partition of these topics, or of all topics there are.

    ``repair``: have wrong copies copied anew where it can be decided which are wrong, and compare
    again.
    """
    if repair and link.connections.are_outside:
        raise not_from_outside("repairing replicas")
    views = await link.metadata.refresh(None if topics is None else list(topics))
    keys = [TopicPartition(view.name, index) for view in views for index in range(len(view.partitions))]
    permits = asyncio.Semaphore(PARTITIONS_AT_ONCE)
    compacted = {view.name for view in views if await is_compacted(view.name)}
    verification = Verification()

    async def one(key: TopicPartition) -> PartitionReport:
        async with permits:
            report = await verify_partition(link, key, patience_s=patience_s, compacted=key.topic in compacted)
            if repair:
                report = await _repaired(link, key, report, patience_s, verification)
            on_partition(report)
            return report

    verification.partitions += await asyncio.gather(*(one(key) for key in sorted(keys)))
    verification.repairs.sort(key=lambda each: (each.topic, each.partition, each.offset))
    verification.undecided.sort()
    return verification


async def _repaired(
    link: ClusterLink, key: TopicPartition, report: PartitionReport, patience_s: float, verification: Verification
) -> PartitionReport:
    """Repair one difference after the other; what a comparison finds at last. A compacted copy is
    copied anew as a whole.
    """
    copied: set[int] = set()
    for _ in range(DIFFERENCES_MAX):
        if report.difference is None:
            return report
        offset = report.difference.offset
        name = f"{key.topic}-{key.partition} at offset {offset}"
        if report.judgement is not None:
            if again := copied & set(report.judgement.wrong):
                verification.undecided.append(
                    f"{name}: the copies on brokers {sorted(again)} were made anew and differ again"
                )
                return report
            done, undecided = await recopied(link, key, report.judgement, report.offsets, patience_s=patience_s)
            verification.repairs += done
            copied |= {each.broker for each in done}
            if done:
                report = await verify_partition(link, key, patience_s=patience_s, compacted=True)
            if undecided:
                verification.undecided.append(f"{name}: {undecided}")
                return report
            continue
        comparing = _Comparing(link, key, patience_s)

        async def read(broker: int, offset: int, comparing: _Comparing = comparing) -> bytes:
            return await comparing.fetched(broker, offset)

        done, undecided = await repaired(link, key, offset, report.compared, read, patience_s=patience_s)
        verification.repairs += done
        if undecided:
            verification.undecided.append(f"{name}: {undecided}")
            return report
        report = await verify_partition(link, key, patience_s=patience_s, compacted=False)
    return report


async def verify_partition(
    link: ClusterLink, key: TopicPartition, *, patience_s: float, compacted: bool
) -> PartitionReport:
    """Compare the replicas of one partition."""
    comparing = _Comparing(link, key, patience_s)
    report = await (comparing.run_tables() if compacted else comparing.run())
    await comparing.check_held(report.compared)
    gone = tuple(broker for broker in report.compared if broker in report.left_out)
    return replace(report, compared=tuple(broker for broker in report.compared if broker not in gone))


class _Behind(RaylogError):
    """A replica answers, and has nothing there yet."""


class _Comparing:
    """One partition being compared. Replicas are named by their brokers."""

    def __init__(self, link: ClusterLink, key: TopicPartition, patience_s: float) -> None:
        self._link = link
        self._key = key
        self._patience_s = patience_s
        self._is_outside = link.connections.are_outside
        self._left_out: dict[int, str] = {}
        self._log_starts: dict[int, int] = {}
        self._high_watermarks: dict[int, int] = {}

    async def run_tables(self) -> PartitionReport:
        """Of a compacted partition."""
        brokers, view, start, end = await self._begun()
        comparison = TableComparison(brokers, start, end, leader_epoch=view.leader.epoch)
        for broker in brokers:
            while not comparison.is_done(broker):
                offset = max(comparison.offset_of(broker), self._log_starts[broker])
                portions = await self._portions([broker], offset, needs_data=True)
                if broker not in portions:
                    break
                comparison.take(broker, portions[broker])
        brokers = self._remaining(brokers)
        reference = brokers[0] if brokers else None
        log_start = max((self._log_starts[broker] for broker in brokers), default=start)
        difference = comparison.finish(brokers, log_start)
        judgement: Judgement | None = None
        offsets: dict[int, int] = {}
        if difference is not None:
            await self._read_behind(comparison)
            difference = comparison.finish(brokers, log_start)
        if difference is not None:
            view = await self._link.metadata.partition(self._key)
            damaged = {broker: found.what for broker, found in comparison.damaged.items() if broker in brokers}
            isr = {broker_of(node) for node in view.isr}
            tables = comparison.tables(brokers, log_start)
            judgement = judge_tables(damaged, tables, broker_of(view.leader.node), isr)
            offsets = {
                broker: comparison.offset_of(broker) if broker in damaged else difference.offset
                for broker in judgement.wrong
            }
        return PartitionReport(
            self._key.topic,
            self._key.partition,
            broker_of(view.leader.node),
            tuple(brokers),
            self._left_out,
            start,
            end,
            comparison.batches.get(reference, 0) if reference is not None else 0,
            comparison.records.get(reference, 0) if reference is not None else 0,
            comparison.size_bytes.get(reference, 0) if reference is not None else 0,
            difference,
            is_compacted=True,
            judgement=judgement,
            offsets=offsets,
        )

    async def _read_behind(self, comparison: TableComparison) -> None:
        """Which keys were written again since the comparison began."""
        leader = broker_of((await self._link.metadata.partition(self._key)).leader.node)
        offset: int | None = comparison.end
        end: int | None = None
        try:
            while offset is not None and (end is None or offset < end):
                portion = await self._fetch(leader, offset, PORTION_BYTES)
                offset = comparison.written_again(portion)
                end = self._high_watermarks[leader] if end is None else end
        except RaylogError:
            pass  # the comparison stays as strict as it was

    async def run(self) -> PartitionReport:
        brokers, view, start, end = await self._begun()
        comparison = ReplicaComparison(start, end, leader_epoch=view.leader.epoch)
        while comparison.offset < end and comparison.difference is None and brokers:
            portions = await self._portions(brokers, comparison.offset, needs_data=True)
            brokers = self._remaining(brokers)
            newest_start = max((self._log_starts[broker] for broker in brokers), default=0)
            if newest_start > comparison.offset:
                comparison.jump(newest_start)
            elif brokers:
                comparison.compare({broker: portions[broker] for broker in brokers})
        difference = comparison.difference
        if difference is None and brokers:
            difference = await self._history(comparison)
        return PartitionReport(
            self._key.topic,
            self._key.partition,
            broker_of(view.leader.node),
            tuple(brokers),
            self._left_out,
            start,
            max(start, comparison.offset),
            comparison.batches,
            comparison.records,
            comparison.size_bytes,
            difference,
        )

    async def _begun(self) -> tuple[list[int], PartitionView, int, int]:
        """The brokers that answer, the partition, and what of it all of them hold: the start and
        the end of the offsets.
        """
        brokers = _reference_first(await self._link.metadata.partition(self._key))
        await self.check_held(brokers)
        brokers = self._remaining(brokers)
        await self._portions(brokers, 0, needs_data=False)
        brokers = self._remaining(brokers)
        await self._refresh()  # no batch below the end is of a later epoch than what this says
        view = await self._link.metadata.partition(self._key)
        start = max((self._log_starts[broker] for broker in brokers), default=0)
        return brokers, view, start, self._high_watermarks[brokers[0]] if brokers else start

    def _remaining(self, brokers: list[int]) -> list[int]:
        return [broker for broker in brokers if broker not in self._left_out]

    async def _portions(self, brokers: list[int], offset: int, *, needs_data: bool) -> dict[int, bytes]:
        """What each replica returns from the offset on; one without progress for too long is left
        out.
        """
        answers = await asyncio.gather(*(self._patiently(broker, offset, needs_data) for broker in brokers))
        return {broker: answer for broker, answer in zip(brokers, answers, strict=True) if answer is not None}

    async def _patiently(self, broker: int, offset: int, needs_data: bool) -> bytes | None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_s
        while True:
            try:
                records = await self._fetch(broker, offset, PORTION_BYTES if needs_data else 1)
                if records or not needs_data or self._log_starts[broker] > offset:
                    return records
                known = self._high_watermarks[broker]
                raise _Behind(f"it knows the log up to offset {known} only, offset {offset} was asked for")
            except RaylogError as error:
                if loop.time() >= deadline:
                    self._left_out[broker] = f"{error} (for {self._patience_s:g} s)"
                    return None
            await asyncio.sleep(RETRY_S)
            await self._refresh()

    async def check_held(self, brokers: Iterable[int]) -> None:
        """From outside: leave out each broker whose own replica is not there to answer."""
        if self._is_outside:
            await asyncio.gather(*map(self._check_held, brokers))

    async def _check_held(self, broker: int) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_s
        while broker not in self._left_out:
            try:
                await self._ask_held(broker)
                return
            except RaylogError as error:
                if loop.time() >= deadline:
                    self._left_out[broker] = f"{error} (for {self._patience_s:g} s)"
            await asyncio.sleep(RETRY_S)
            await self._refresh()

    async def _ask_held(self, broker: int) -> None:
        """Raises unless a process of the broker says that it holds the replica."""
        endpoint = self._link.metadata.nodes.get(node_id(broker, BROKER_SLOT))
        if endpoint is None:
            raise error_for(ErrorCode.replica_not_available, "its broker is not running")
        connection = await self._link.connections.get(endpoint)
        reply = await connection.request(
            requests.describe_log_dirs(self._key), timeout_ms=self._link.config.request_timeout_ms
        )
        if not any(topic.partitions for found in reply.results for topic in found.topics):
            raise error_for(ErrorCode.replica_not_available, "its process is not running")

    async def _refresh(self) -> None:
        try:
            await self._link.metadata.refresh([self._key.topic])
        except kafka_error(ErrorCode.unknown_topic_or_partition):
            raise
        except RaylogError:
            pass  # the controller is away: what is known may do

    async def fetched(self, broker: int, offset: int) -> bytes:
        """What the replica of a broker has at and behind an offset, one batch at least. Raises what
        stands in its way.
        """
        return await self._fetch(broker, offset, 1)

    async def _fetch(self, broker: int, offset: int, bytes_max: int) -> bytes:
        """One fetch from one replica; raises what stands in its way. Notes its log start and its
        high watermark.
        """
        view = await self._link.metadata.partition(self._key)
        node = next((node for node in view.replicas if broker_of(node) == broker), None)
        if node is None:
            raise error_for(ErrorCode.replica_not_available, "it no longer has a replica")
        endpoint = self._link.metadata.nodes.get(node)
        if endpoint is None:
            raise error_for(ErrorCode.replica_not_available, "its process is not running")
        connection = await self._link.connections.get(endpoint)
        if not self._is_outside and connection.peer.node_id != node:
            raise error_for(ErrorCode.replica_not_available, f"another process answers at {endpoint}")
        reply = await connection.request(
            requests.fetch(
                {self._key: (offset, -1)},
                max_wait_ms=0,
                min_bytes=1,
                max_bytes=bytes_max,
                partition_max_bytes=bytes_max,
                rack=NO_BROKERS_RACK if self._is_outside else "",
            ),
            timeout_ms=self._link.config.request_timeout_ms,
        )
        answer = reply.responses[0].partitions[0]
        code = answer.error_code
        if code in (ErrorCode.none, ErrorCode.offset_out_of_range, ErrorCode.offset_not_available):
            self._log_starts[broker] = int(answer.log_start_offset)
            self._high_watermarks[broker] = int(answer.high_watermark)
            return bytes(answer.records or b"")
        raise error_for(code, f"it answers {ErrorCode(code).name.upper()}")

    async def _history(self, comparison: ReplicaComparison) -> Difference | None:
        """Whether the leader's epoch history says of the epochs in the batches what the batches
        say.
        """
        leaders = LeaderRequests(self._link)
        starts = comparison.epoch_starts
        for index in range(max(0, len(starts) - EPOCHS_ASKED_MAX), len(starts)):
            epoch, start = starts[index]
            if epoch < 0:
                continue  # messages of old formats had none
            answer = await leaders.epoch_ends({self._key: epoch}, self._patience_s * 1000)
            known, end = answer[self._key]
            is_last = index + 1 == len(starts)
            expected = comparison.offset if is_last else starts[index + 1][1]
            if known != epoch or (end < expected if is_last else end != expected):
                view = await self._link.metadata.partition(self._key)
                leader = broker_of(view.leader.node)
                what = (
                    f"the batches of leader epoch {epoch} end at offset {expected}, "
                    f"the leader's history (broker {leader}) says epoch {known} ends at {end}"
                )
                return Difference(start, (leader,), what)
        return None


def _reference_first(view: PartitionView) -> list[int]:
    """The brokers of a partition, its leader first."""
    brokers = [broker_of(node) for node in view.replicas]
    leader = broker_of(view.leader.node)
    return sorted(brokers, key=lambda broker: broker != leader)
