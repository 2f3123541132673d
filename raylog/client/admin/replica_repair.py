"""Which copy of a partition is wrong where its replicas differ, and having that one copied anew.

``judge`` decides, from the batch that each replica has at the first difference:

- A copy whose CRC does not fit, or that is no whole batch, is wrong, if another one is whole.
- Of several that are whole in themselves those are right that more than half of all replicas have.
- Else nobody can say which is right, and nothing is touched.

The replicas of a compacted topic have bytes of their own. ``judge_tables`` decides there:

- A copy with a batch that is wrong in itself is wrong, if another one is whole.
- Of several that are whole in themselves, the leader's table is right if more than half of the ISR,
  and two replicas at least, have it. Every other copy is wrong then. Else nothing is touched.

A wrong replica is told so (``RepairReplica``). From there everything goes as with damage that it
finds itself: it leaves the ISR, another one leads if it did, it cuts its log at that offset and
copies the rest from the leader. ``repaired`` waits for each before the next one is told, so that a
partition never has more than one replica less because of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from raylog.client.links.link import ClusterLink
from raylog.errors import RaylogError, error_for
from raylog.records.batch import BatchView
from raylog.types import TopicPartition, broker_of
from raylog.wire.private import RepairReplica

RETRY_S = 0.1
DIFFERENCES_MAX = 100  # of one partition


@dataclass(frozen=True, slots=True)
class Repair:
    """A replica whose log was cut at ``offset`` and copied anew from there."""

    topic: str
    partition: int
    broker: int
    offset: int
    why: str

    def words(self) -> str:
        return (
            f"{self.topic}-{self.partition}: broker {self.broker} was repaired from offset {self.offset} on: {self.why}"
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """``wrong``: brokers, and why. ``undecided``: why nobody can say, or empty. ``right``: the
    batch as it has to be.
    """

    wrong: dict[int, str]
    undecided: str = ""
    right: bytes = b""


def judge(copies: Mapping[int, bytes], replicas: int) -> Judgement:
    """What each of the partition's ``replicas`` returns from one offset on, by broker. Nothing from
    a broker: it has no copy there.
    """
    whole: dict[bytes, list[int]] = {}
    wrong: dict[int, str] = {}
    for broker, copy in sorted(copies.items()):
        try:
            batch = BatchView(copy)
        except RaylogError as error:
            wrong[broker] = f"it has no whole batch there ({error})"
            continue
        if batch.has_valid_crc():
            whole.setdefault(bytes(batch.data), []).append(broker)
        else:
            wrong[broker] = "the batch there has a wrong CRC"
    if not whole:
        return Judgement({}, "no replica has a whole batch there")
    right, most = max(whole.items(), key=lambda found: len(found[1]))
    if len(whole) > 1 and 2 * len(most) <= replicas:
        named = "; ".join("broker " + ", ".join(map(str, brokers)) for brokers in whole.values())
        return Judgement({}, f"the copies differ, each is whole in itself, and none is that of a majority ({named})")
    for content, brokers in whole.items():
        if content != right:
            agreeing = ", ".join(map(str, most))
            wrong |= dict.fromkeys(brokers, f"the batch there is another one than on brokers {agreeing}")
    if not wrong:
        return Judgement({}, "the copies are the same there: what is wrong is wrong in all of them")
    return Judgement(wrong, right=right)


def judge_tables(
    damaged: Mapping[int, str], tables: Mapping[int, object], leader: int, isr: Collection[int]
) -> Judgement:
    """Whose copy of a compacted partition is wrong.

    ``damaged``: by broker, what is wrong with a batch of its. ``tables``: by broker, of every other
    replica that was compared, the last record of each key.
    """
    if damaged and not tables:
        return Judgement({}, "no replica is whole")
    wrong = dict(damaged)
    first, *others = tables.values()
    if all(table == first for table in others):
        return Judgement(wrong, "" if wrong else "the copies are the same: what is wrong is wrong in all of them")
    agreeing = {broker for broker in tables if leader in tables and tables[broker] == tables[leader]}
    if len(agreeing) < 2 or 2 * len(agreeing & set(isr)) <= len(isr):
        return Judgement(
            {}, "the copies differ, each is whole in itself, and the leader's is not that of a majority of the ISR"
        )
    named = ", ".join(map(str, sorted(agreeing)))
    why = f"its last records of some keys are others than on brokers {named}"
    return Judgement(wrong | {broker: why for broker in tables if broker not in agreeing})


Read = Callable[[int, int], Awaitable[bytes]]
"""What the replica of a broker returns from an offset on. Raises RaylogError."""


async def repaired(
    link: ClusterLink, key: TopicPartition, offset: int, brokers: tuple[int, ...], read: Read, *, patience_s: float
) -> tuple[list[Repair], str]:
    """Have the wrong ones among these replicas copied anew; what was done, and why it could not be
    (all) done, or nothing.
    """
    view = await link.metadata.partition(key)
    copies: dict[int, bytes] = {}
    for broker in brokers:
        try:
            copies[broker] = await read(broker, offset)
        except RaylogError as error:
            return [], f"broker {broker} does not say what it has there: {error}"
    judgement = judge(copies, len(view.replicas))
    done: list[Repair] = []
    for broker, why in sorted(judgement.wrong.items()):
        await _tell(link, key, broker, offset, why)
        if not await _becomes(judgement.right, broker, offset, read, link, patience_s):
            return done, _not_copied(broker, why, patience_s)
        done.append(Repair(*key, broker, offset, why))
    return done, judgement.undecided


async def recopied(
    link: ClusterLink, key: TopicPartition, judgement: Judgement, offsets: Mapping[int, int], *, patience_s: float
) -> tuple[list[Repair], str]:
    """Have the wrong replicas of a compacted partition copied anew, one after the other; as
    ``repaired``.

    ``offsets``: by broker, where each of them is wrong. A compacted log is not cut there but
    emptied.
    """
    done: list[Repair] = []
    for broker, why in sorted(judgement.wrong.items()):
        view = await link.metadata.partition(key)
        epoch = view.leader.epoch
        await _tell(link, key, broker, offsets[broker], why)
        if not await _rejoins(link, key, broker, epoch, patience_s):
            return done, _not_copied(broker, why, patience_s)
        done.append(Repair(*key, broker, offsets[broker], why))
    return done, judgement.undecided


async def _rejoins(link: ClusterLink, key: TopicPartition, broker: int, epoch: int, patience_s: float) -> bool:
    """Whether the broker's replica is in sync in a later epoch than that: the controller took it
    out of the ISR between.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while loop.time() < deadline:
        try:
            await link.metadata.refresh([key.topic])
            view = await link.metadata.partition(key)
            if view.isr_epoch > epoch and any(broker_of(node) == broker for node in view.isr):
                return True
        except RaylogError:
            pass  # the controller is away
        await asyncio.sleep(RETRY_S)
    return False


def _not_copied(broker: int, why: str, patience_s: float) -> str:
    return (
        f"broker {broker} is wrong ({why}) and was told so, but has not copied it anew within {patience_s:g} s: "
        "another replica has to be in sync"
    )


async def _tell(link: ClusterLink, key: TopicPartition, broker: int, offset: int, why: str) -> None:
    view = await link.metadata.partition(key)
    node = next(node for node in view.replicas if broker_of(node) == broker)
    endpoint = link.metadata.nodes.get(node)
    if endpoint is None:
        raise error_for(
            ErrorCode.replica_not_available,
            f"the process of {key.topic}-{key.partition} on broker {broker} is not running",
        )
    connection = await link.connections.get(endpoint)
    request = RepairReplica(key.topic, key.partition, offset, f"raylog verify --repair: {why}")
    await connection.request(request, timeout_ms=link.config.request_timeout_ms)


async def _becomes(right: bytes, broker: int, offset: int, read: Read, link: ClusterLink, patience_s: float) -> bool:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while loop.time() < deadline:
        try:
            if (await read(broker, offset))[: len(right)] == right:
                return True
        except RaylogError:
            pass  # it has cut its log, or another one leads now
        await asyncio.sleep(RETRY_S)
        try:
            await link.metadata.refresh(None)
        except RaylogError:
            pass  # what is known may do
    return False
