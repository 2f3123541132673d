"""What a client knows of the cluster: topics, partitions, leaders and their epochs; and how it
finds a new leader.

The controller is asked once per topic and again after ``metadata.max.age.ms``; topics unused for
long are forgotten. Of two statements about a partition the one with the higher leader epoch holds,
whatever the order in which they came.

**A leader fails.** ``search_leader`` asks the controller at once for a leader epoch newer than the
failed one (AWAIT_LEADER, which waits up to 1 s and never names a dead leader). If the connection
broke, the same endpoint is tried at the same time: a leader that was only cut off is the same
process still, and serves on under its old epoch. Whichever succeeds first ends the search; if
neither does, fresh metadata is the answer. A server that answers that it does not lead any more
often names the leader (``learn_hint``); then nobody is asked. There is one search per partition,
whoever asks. The user reads one line about all partitions that one process led
(``raylog.client.links.leader_changes``).

**A leader of many partitions fails.** The controller elects their leaders in one decision. So it is
asked about one partition of each topic, of a few topics, and with the first answer about the topics
as a whole. Hundreds of questions would keep it from noticing that the process is dead. A partition
whose leader is not known then is searched for by itself.

**From outside** the answers name brokers: a broker's id stands for the node id of the Broker itself,
and a newer leader is looked for in the metadata, again and again.

Lives in one event loop; ``cached`` may be read from any thread. Node ids are those of server actors
(``raylog.types.node_id``).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.client.links import leader_changes, requests
from raylog.client.links.connections import Connections, ControllerConnection
from raylog.client.links.link_config import LinkConfig
from raylog.errors import RaylogError, SslAuthenticationError, error_for, kafka_error
from raylog.types import BROKER_SLOT, NO_LEADER, Endpoint, TopicPartition, node_id
from raylog.wire.client_security import SaslAuthenticationFailedError
from raylog.wire.handshake import Peer
from raylog.wire.private import AwaitLeaderRequest

LEADER_ERRORS = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.replica_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.network_exception,
    }
)
"""Errors of a partition that another leader may end."""

AWAIT_LEADER_MS = 1_000
_ANSWER_SLACK_MS = 2_000
_LOOK_AGAIN_S = 0.02  # from outside, for a newer leader
_TOPICS_ASKED_MAX = 8  # of all that one process led
_TOLD_TOGETHER_S = 1.0  # a line about some partitions of a lost leader waits so long for the others


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    """What a partitioner sees of the cluster: the topic's partition count and which of them have a
    live leader.
    """

    topic: str
    count: int
    available: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PartitionLeader:
    """Who leads a partition. ``endpoint`` None: nobody, or nobody whose address is known."""

    node: int
    epoch: int
    endpoint: Endpoint | None


@dataclass(slots=True)
class PartitionView:
    """One partition as the controller described it; ``leader`` follows later news. Replicas are
    node ids.

    ``isr_epoch``: the leader epoch under which the rest was described.
    """

    leader: PartitionLeader
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]
    isr_epoch: int


@dataclass(slots=True)
class TopicView:
    name: str
    topic_id: uuid.UUID
    is_internal: bool
    partitions: list[PartitionView]
    choice: TopicPartitions
    fetched_at: float
    used_at: float
    used: bool = True  # since used_at was last set

    def choose_again(self) -> None:
        """Recompute what partitioners see after a leader changed."""
        available = tuple(index for index, view in enumerate(self.partitions) if view.leader.endpoint is not None)
        self.choice = TopicPartitions(self.name, len(self.partitions), available)


SearchEnded = Callable[[PartitionLeader | None, RaylogError | None], None]


@dataclass(slots=True)
class _LostProcess:
    """A process that failed as the leader of these partitions. ``peer`` is who answered there, if
    anybody did.
    """

    led: dict[TopicPartition, PartitionLeader]
    peer: Peer | None = None


class Metadata:
    def __init__(self, config: LinkConfig, connections: Connections, controller: ControllerConnection) -> None:
        self._config = config
        self._connections = connections
        self._controller = controller
        self._topics: dict[str, TopicView] = {}
        self._fetches: dict[str, asyncio.Task[TopicView]] = {}
        self._searches: dict[TopicPartition, list[SearchEnded]] = {}
        self._lost: dict[
            TopicPartition, tuple[PartitionLeader, float]
        ] = {}  # leaders that failed, and since when one is searched
        self._changes: dict[tuple[int, Endpoint | None], list[leader_changes.Change]] = {}  # to be told, by who led
        self._lost_processes: dict[tuple[int, Endpoint], _LostProcess] = {}  # nobody has been asked about them yet
        self._tasks: set[asyncio.Task[Any]] = set()
        self.on_leader_change: Callable[[TopicPartition], None] | None = None  # whoever sends to leaders is told
        self.nodes: dict[int, Endpoint] = {}
        self.racks: dict[int, str | None] = {}

    # -------------------------------------------------------------- topics

    def cached(self, topic: str) -> TopicView | None:
        """What is known of a topic, however old. Any thread."""
        return self._topics.get(topic)

    def topic_names(self) -> list[str]:
        """The topics that are remembered."""
        return list(self._topics)

    async def topic(self, name: str) -> TopicView:
        """A topic, fetched if unknown or too old. Raises UnknownTopicOrPartitionError if there is
        none.
        """
        loop = asyncio.get_running_loop()
        view = self._topics.get(name)
        if view is not None:
            view.used_at = loop.time()
            if loop.time() - view.fetched_at <= self._config.metadata_max_age_ms / 1000:
                return view
        return await self._fetch_shared(name)

    async def _fetch_shared(self, name: str) -> TopicView:
        """The topic as it is now; those who ask at the same time share one request."""
        task = self._fetches.get(name)
        if task is None:
            task = self._fetches[name] = asyncio.get_running_loop().create_task(self._fetch_topic(name))
            task.add_done_callback(lambda done: (self._fetches.pop(name, None), done.cancelled() or done.exception()))
        return await asyncio.shield(task)

    async def partition(self, key: TopicPartition) -> PartitionView:
        """A partition; one that is not there yet is looked for afresh. Raises
        UnknownTopicOrPartitionError.
        """
        view = await self.topic(key.topic)
        if not 0 <= key.partition < len(view.partitions):
            view = await self._fetch_topic(key.topic)
        if not 0 <= key.partition < len(view.partitions):
            raise unknown_partition(key, len(view.partitions))
        return view.partitions[key.partition]

    async def _fetch_topic(self, name: str) -> TopicView:
        views = await self.refresh([name])
        return views[0]

    async def refresh(self, topics: Iterable[str] | None, *, timeout_ms: float | None = None) -> list[TopicView]:
        """Ask the controller about these topics, or all. Raises what it says of the first that it
        refuses.
        """
        names = None if topics is None else list(topics)
        reply = await self._controller.request(requests.metadata(names), timeout_ms=timeout_ms)
        self._learn_nodes(reply)
        views = []
        refused: RaylogError | None = None
        for topic in reply.topics:
            if topic.error_code is ErrorCode.none:
                views.append(self._learn_topic(topic))
            else:
                self._topics.pop(topic.name, None)
                refused = refused or topic_error(topic.error_code, topic.name)
        if refused is not None and names is not None:
            raise refused
        return views

    def forget_idle(self, idle_ms: float) -> None:
        """Drop topics that nobody has used for so long."""
        now = asyncio.get_running_loop().time()
        for view in self._topics.values():
            if view.used:
                view.used_at, view.used = now, False
        oldest = now - idle_ms / 1000
        for name in [name for name, view in self._topics.items() if view.used_at < oldest]:
            del self._topics[name]

    def _node(self, id: Any) -> int:
        """The node id that an answer means."""
        return node_id(int(id), BROKER_SLOT) if self._connections.are_outside and id >= 0 else int(id)

    def _learn_nodes(self, reply: Any) -> None:
        told = {self._node(node.node_id): Endpoint(node.host, int(node.port)) for node in reply.brokers}
        self.nodes.update(told)
        self.racks.update({self._node(node.node_id): node.rack for node in reply.brokers})
        if self._connections.are_outside:
            for endpoint in told.values():
                self._controller.learn(endpoint)
            return
        self._controller.learn_servers(told)
        controller = self.nodes.get(int(reply.controller_id))
        if controller is not None:
            self._controller.learn(controller)

    def _learn_topic(self, topic: Any) -> TopicView:
        now = asyncio.get_running_loop().time()
        known = self._topics.get(topic.name)
        same = known is not None and known.topic_id == topic.topic_id
        partitions: list[PartitionView] = []
        for partition in sorted(topic.partitions, key=lambda partition: int(partition.partition_index)):
            node = self._node(partition.leader_id)
            leader = PartitionLeader(node, int(partition.leader_epoch), self.nodes.get(node))
            index = len(partitions)
            if (
                known is not None
                and same
                and index < len(known.partitions)
                and known.partitions[index].leader.epoch > leader.epoch
            ):
                leader = known.partitions[index].leader
            partitions.append(
                PartitionView(
                    leader,
                    tuple(map(self._node, partition.replica_nodes)),
                    tuple(map(self._node, partition.isr_nodes)),
                    tuple(map(self._node, partition.offline_replicas)),
                    int(partition.leader_epoch),
                )
            )
        view = TopicView(
            topic.name,
            topic.topic_id or requests.NO_UUID,
            bool(topic.is_internal),
            partitions,
            TopicPartitions(topic.name, 0, ()),
            now,
            known.used_at if known is not None else now,
        )
        view.choose_again()
        self._topics[topic.name] = view
        known_leaders = [] if known is None else [part.leader for part in known.partitions]
        for index, part in enumerate(partitions):
            if index >= len(known_leaders) or part.leader != known_leaders[index]:
                self._leader_changed(TopicPartition(topic.name, index))
        return view

    # -------------------------------------------------------------- leaders

    def leader(self, key: TopicPartition) -> PartitionLeader | None:
        """The leader as far as is known; None if the partition is unknown."""
        view = self._topics.get(key.topic)
        if view is None or key.partition >= len(view.partitions):
            return None
        return view.partitions[key.partition].leader

    def successors(self, key: TopicPartition) -> list[Endpoint]:
        """Where those listen who may lead the partition next, as far as is known."""
        view = self._topics.get(key.topic)
        if view is None or key.partition >= len(view.partitions):
            return []
        part = view.partitions[key.partition]
        return [self.nodes[node] for node in part.isr if node != part.leader.node and node in self.nodes]

    def learn_leader(self, key: TopicPartition, leader: PartitionLeader, *, is_decided: bool = False) -> None:
        """Take over news of a leader, unless something newer is known.

        ``is_decided``: the controller says so, address included. Others know of a leader's node and
        epoch, and its address may be that of an earlier process.
        """
        view = self._topics.get(key.topic)
        if view is None or key.partition >= len(view.partitions):
            return
        known = view.partitions[key.partition]
        has_address = known.leader.endpoint is not None and not (
            is_decided and leader.endpoint != known.leader.endpoint
        )
        if leader.epoch > known.leader.epoch or (leader.epoch == known.leader.epoch and not has_address):
            known.leader = leader
            view.choose_again()
            self._leader_changed(key)

    def _leader_changed(self, key: TopicPartition) -> None:
        if self.on_leader_change is not None:
            self.on_leader_change(key)

    def learn_hint(self, key: TopicPartition, answer: Any, nodes: Iterable[Any] = ()) -> None:
        """Take over what the answer of a server that does not lead says of the leader (KIP-951).

        ``nodes`` are the addresses in the same reply. A leader whose address is unknown is left to
        a search.
        """
        for node in nodes:
            self.nodes[self._node(node.node_id)] = Endpoint(node.host, int(node.port))
        hint = answer.current_leader
        leader = self._node(hint.leader_id)
        endpoint = self.nodes.get(leader)
        if endpoint is not None:
            self.learn_leader(key, PartitionLeader(leader, int(hint.leader_epoch), endpoint))

    def search_leader(
        self, key: TopicPartition, failed: PartitionLeader | None, *, peer: Peer | None, on_end: SearchEnded
    ) -> None:
        """Look for a leader after ``failed``; ``peer`` is who answered on the connection that
        broke, None if none did.

        ``on_end`` is called once, with the leader to try next (None: nobody yet) or with the reason
        why there never will be one.
        """
        waiting = self._searches.get(key)
        if waiting is not None:
            waiting.append(on_end)
            return
        self._searches[key] = [on_end]
        if failed is None or failed.endpoint is None:
            self._spawn(self._search(key, failed, peer))
            return
        self._lost.setdefault(key, (failed, asyncio.get_running_loop().time()))
        who = (failed.node, failed.endpoint)
        if who not in self._lost_processes:
            self._lost_processes[who] = _LostProcess({})
            self._spawn(self._search_together(who))
        process = self._lost_processes[who]
        process.led[key] = failed
        process.peer = peer or process.peer

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _search_together(self, who: tuple[int, Endpoint]) -> None:
        await asyncio.sleep(0)  # what one connection carried fails in one turn of the loop
        process = self._lost_processes.pop(who)
        ended: Mapping[TopicPartition, PartitionLeader | None] = {}
        if len(process.led) > 1:
            try:
                ended = await self._find_together(process)
            except RaylogError:
                pass  # each search finds out by itself what is wrong
        for key, failed in process.led.items():
            if key in ended:
                self._end(key, ended[key], None)
            else:
                self._spawn(self._search(key, failed, process.peer))

    async def _find_together(self, process: _LostProcess) -> dict[TopicPartition, PartitionLeader | None]:
        """The leaders to try next, of those partitions for which that is known."""
        by_topic = {key.topic: key for key in process.led}
        asked = list(by_topic.values())[:_TOPICS_ASKED_MAX]
        questions = {asyncio.ensure_future(self._is_replaced(key, process.led[key])) for key in asked}
        failed = process.led[asked[0]]
        same = asyncio.ensure_future(self._reconnect(failed, process.peer))
        waiting: set[asyncio.Future[bool]] = {*questions, same}
        is_replaced = False
        try:
            while not is_replaced and not waiting.isdisjoint(questions):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                is_replaced = any(each in questions and each.result() for each in done)
                if not is_replaced and same in done and same.result():
                    return dict(process.led)
        finally:
            for each in (*questions, same):
                each.cancel()
        await self.refresh(by_topic)
        found = {key: self.leader(key) for key in process.led}
        if not is_replaced:
            return found
        return {key: leader for key, leader in found.items() if _is_newer(leader, process.led[key])}

    async def _is_replaced(self, key: TopicPartition, failed: PartitionLeader) -> bool:
        return _is_newer(await self.await_newer(key, failed.epoch), failed)

    async def _search(self, key: TopicPartition, failed: PartitionLeader | None, peer: Peer | None) -> None:
        leader: PartitionLeader | None = None
        refusal: RaylogError | None = None
        try:
            leader = await self._find(key, failed, peer)
        except kafka_error(ErrorCode.unknown_topic_or_partition) as error:
            refusal = error
            self._topics.pop(key.topic, None)
        except (SaslAuthenticationFailedError, SslAuthenticationError) as error:
            refusal = error  # trying again cannot mend it
        except RaylogError:
            pass  # the controller is away: the caller tries again
        finally:
            self._end(key, leader, refusal)

    def _end(self, key: TopicPartition, leader: PartitionLeader | None, refusal: RaylogError | None) -> None:
        self._report(key, leader, refusal)
        for on_end in self._searches.pop(key, []):
            on_end(leader, refusal)

    def _report(self, key: TopicPartition, found: PartitionLeader | None, refusal: RaylogError | None) -> None:
        """Tell the user about a new leader; the search goes on where there is none yet."""
        if key not in self._lost or (refusal is None and (found is None or found.endpoint is None)):
            return
        lost, since = self._lost.pop(key)
        who, loop = (lost.node, lost.endpoint), asyncio.get_running_loop()
        if found is not None and found.epoch > lost.epoch:
            if who not in self._changes:
                self._changes[who] = []
                loop.call_later(_TOLD_TOGETHER_S, self._tell, who)
            after_ms = (loop.time() - since) * 1000
            self._changes[who].append(leader_changes.Change(key, lost, found, after_ms))
        if not any((other.node, other.endpoint) == who for other, _ in self._lost.values()):
            self._tell(who)

    def _tell(self, who: tuple[int, Endpoint | None]) -> None:
        """Every partition that this process led has a new leader, or some have waited long enough
        for the others.
        """
        changes = self._changes.pop(who, None)
        if changes:
            gone = who[1] is None or self._connections.peek(who[1]) is None
            leader_changes.report(self._connections.cluster_id, changes, gone=gone)

    async def _find(
        self, key: TopicPartition, failed: PartitionLeader | None, peer: Peer | None
    ) -> PartitionLeader | None:
        known = self.leader(key)
        if failed is None or known is None:
            return (await self.partition(key)).leader
        if _is_newer(known, failed):
            return known
        newer = asyncio.ensure_future(self.await_newer(key, failed.epoch))
        same = asyncio.ensure_future(self._reconnect(failed, peer))
        try:
            await asyncio.wait({newer, same}, return_when=asyncio.FIRST_COMPLETED)
            if same.done() and not newer.done() and not same.exception() and same.result():
                return failed
            found = await newer
        finally:
            newer.cancel()
            same.cancel()
        if found is None:
            await self._fetch_topic(key.topic)
            found = self.leader(key)
        return found

    async def await_newer(self, key: TopicPartition, epoch: int) -> PartitionLeader | None:
        """Ask the controller, for ``AWAIT_LEADER_MS``, for a leader after that epoch.

        If there is none yet, whoever leads and is not known to be dead; None if nobody does.
        """
        if self._connections.are_outside:
            return await self._look_for_newer(key, epoch)
        request = AwaitLeaderRequest(
            topic=key.topic, partition=key.partition, newer_than_epoch=epoch, timeout_ms=AWAIT_LEADER_MS
        )
        reply = await self._controller.request(request, answer_within_ms=AWAIT_LEADER_MS + _ANSWER_SLACK_MS)
        if reply.leader_node == NO_LEADER:
            return None
        found = PartitionLeader(reply.leader_node, reply.leader_epoch, Endpoint(reply.host, reply.port))
        self.nodes[found.node] = Endpoint(reply.host, reply.port)
        self.learn_leader(key, found, is_decided=True)
        return found

    async def _look_for_newer(self, key: TopicPartition, epoch: int) -> PartitionLeader | None:
        """The same, from any broker's metadata."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + AWAIT_LEADER_MS / 1000
        while True:
            await self._fetch_shared(key.topic)
            leader = self.leader(key)
            if leader is not None and leader.epoch > epoch and leader.endpoint is not None:
                return leader
            if loop.time() >= deadline:
                return leader if leader is not None and leader.endpoint is not None else None
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _reconnect(self, failed: PartitionLeader, peer: Peer | None) -> bool:
        """Whether the process that led answers at its old address. Nobody can tell from outside."""
        if failed.endpoint is None or peer is None or self._connections.are_outside:
            return False
        try:
            return (await self._connections.get(failed.endpoint)).peer == peer
        except RaylogError:
            return False

    def close(self) -> None:
        for who in list(self._changes):
            self._tell(who)
        for task in (*self._tasks, *self._fetches.values()):
            task.cancel()


def _is_newer(leader: PartitionLeader | None, failed: PartitionLeader) -> bool:
    return leader is not None and leader.epoch > failed.epoch and leader.endpoint is not None


def topic_error(code: int, topic: str) -> RaylogError:
    """What to tell a user about a topic that the controller refused."""
    if code == ErrorCode.unknown_topic_or_partition:
        return kafka_error(ErrorCode.unknown_topic_or_partition)(
            f"topic {topic!r} does not exist: create it with AdminClient.create_topics or `raylog topics create {topic}`"
        )
    if code == ErrorCode.invalid_topic_exception:
        return kafka_error(ErrorCode.invalid_topic_exception)(
            f"{topic!r} is no topic name: use letters, digits, '.', '_' and '-', at most 249 of them"
        )
    return error_for(code, f"topic {topic!r}: {ErrorCode(code).name.upper()}")


def unknown_partition(key: TopicPartition, count: int) -> RaylogError:
    return kafka_error(ErrorCode.unknown_topic_or_partition)(
        f"topic {key.topic!r} has no partition {key.partition}: it has {count}, from 0 to {count - 1}"
    )


def partition_keys(topic: str, partitions: Sequence[Any]) -> list[TopicPartition]:
    """The partitions of a topic, by name."""
    return [TopicPartition(topic, index) for index in range(len(partitions))]
