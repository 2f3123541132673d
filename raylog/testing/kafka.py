"""Kafka inside a test's own process: brokers with real listeners, for whatever client the code
under test uses.

::

    with raylog.testing.broker(topics={"orders": 3}) as kafka:
        producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap})
        kafka.fail("Produce", code="NOT_LEADER_OR_FOLLOWER", nth=2)
        ...
        assert [record.value for record in kafka.records("orders", count=2)] == [b"a", b"b"]

It is ``in_process.InProcessCluster``, the production servers on a loop in a thread, with three
things around them: faults before the listeners (``request_faults``), a disk that can be filled
under each broker (``full_disk``), and a link past the listeners for what the test itself asks
(``inside_requests``). No Ray, Java or Docker. Unless a folder is given, records and metadata are in
memory, under a path that no disk has (``raylog.log.mounts``), and no file is made anywhere.

``Kafka`` is used from the test's threads and blocks; ``AsyncKafka`` is the same for coroutines.
Both are made by ``broker`` alone.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from raylog.client.links.address import ClusterAddress
from raylog.configs.security_configs import AUTHORIZER
from raylog.configs.server_properties import server_properties
from raylog.errors import ClientTimeoutError, ClosedError, ClusterError, ConfigError, RaylogError
from raylog.groups.context import GroupConfig
from raylog.log.disk_files import DiskFiles
from raylog.log.mounts import mount, unmount
from raylog.metadata.image import MetadataImage
from raylog.metadata.records import PartitionState
from raylog.records.codec import encode
from raylog.records.record import Record
from raylog.server.replica_server import ReplicaServer
from raylog.server.spec import ServerSpec
from raylog.testing.full_disk import FillableDisk, FillableFiles
from raylog.testing.in_process import InProcessCluster
from raylog.testing.inside_requests import CLUSTERS_DEFAULT, InsideRequests
from raylog.testing.kafka_security import KafkaSecurity, allowed
from raylog.testing.memory_files import MemoryFiles
from raylog.testing.request_faults import Lost, Order, RequestFaults
from raylog.types import BROKER_SLOT, TopicPartition, broker_of, node_id

if TYPE_CHECKING:
    from raylog.client.sync import AdminClient

PATIENCE_S = 10.0
CLUSTER_PATIENCE_S = 30.0  # with what takes milliseconds unless something is wrong, on a machine that may be busy
GROUPS = GroupConfig(group_initial_rebalance_delay_ms=0)
"""A group's first member waits for nobody else: Kafka's three seconds would be most of a test."""

T = TypeVar("T")
Topics = Mapping[str, int] | Iterable[str]


class Kafka:
    """A running cluster. ``bootstrap`` is what Kafka clients call ``bootstrap.servers``;
    ``address`` is for raylog's own clients.
    """

    def __init__(
        self,
        running: InProcessCluster,
        faults: RequestFaults,
        disks: dict[int, FillableDisk],
        security: KafkaSecurity | None = None,
    ) -> None:
        self._security = security or KafkaSecurity("PLAINTEXT")
        self._running = running
        self._faults = faults
        self._disks = disks
        self._views: dict[int, FillableFiles] = {}  # of the replica processes, by node
        self._inside: InsideRequests
        self._is_over = False
        self.bootstrap: str
        self.address: ClusterAddress

    def __repr__(self) -> str:
        return f"<Kafka in this process, {len(self._disks)} broker{'s' * (len(self._disks) != 1)}: {self.bootstrap}>"

    # ------------------------------------------------------------------ who may do what

    def client_options(self, user: str | None = None, *, client: str = "confluent-kafka") -> dict[str, str]:
        """What a client has to be told to get in as that user, ``bootstrap.servers`` included. In
        confluent-kafka's names, which ``raylog.connect(options=…)`` takes, too; or in those of
        ``client="kafka-python"``.

        Raises ConfigError for a user whom ``broker(users=…)`` does not name.
        """
        return self._security.options(self.bootstrap, user, client)

    def allow(
        self, user: str, operation: str, *, topic: str | None = None, group: str | None = None, prefixed: bool = False
    ) -> None:
        """Let a user do that to a topic, or to a group, and wait until all brokers know: an ACL.
        ``operation`` has Kafka's name ("Read", "Write", "DescribeConfigs", "All"). ``prefixed``: to
        all whose names begin so. Topic or group ``*``: to all.
        """
        acl = allowed(user, operation, topic=topic, group=group, prefixed=prefixed)
        with self._admin() as admin:
            admin.create_acls([acl])
        self._await(lambda: all(acl in image.acls.ids for image in self._copies()), "a broker has not heard of the ACL")

    # ------------------------------------------------------------------ topics and records

    def create_topic(
        self,
        name: str,
        partitions: int = CLUSTERS_DEFAULT,
        *,
        replication_factor: int = CLUSTERS_DEFAULT,
        configs: Mapping[str, Any] | None = None,
    ) -> None:
        """Create a topic and wait until all brokers serve it. The defaults are ``num.partitions``
        of ``broker(configs=…)``, 1 if that is not set, and ``default.replication.factor``: three
        replicas, or as many as there are brokers.

        Raises TopicAlreadyExistsError, and whatever else Kafka refuses.
        """
        texts = {key.replace("_", "."): _text(value) for key, value in (configs or {}).items()}
        self._run(self._inside.create_topic(name, partitions, replication_factor, texts))
        self._await_served(name)

    def records(
        self, topic: str, *, count: int | None = None, read_committed: bool = False, timeout: float = PATIENCE_S
    ) -> list[Record]:
        """The records of a topic, in the order of partitions and offsets. With ``count``, waits
        until there are at least that many. ``read_committed`` leaves out those of transactions that
        are aborted or still open.

        Raises ClientTimeoutError if there are fewer after ``timeout`` seconds, and
        UnknownTopicOrPartitionError for a topic that does not exist.
        """
        found = self._inside.records(topic, count, timeout, read_committed=read_committed)
        return self._run(found, timeout + PATIENCE_S)

    def write(self, topic: str, *values: bytes | None, key: bytes | None = None, partition: int = 0) -> int:
        """Write records into a partition for the code under test to find, acknowledged by all
        in-sync replicas. Returns the offset of the first.

        Use it to test consumers when you have no producer at hand. The records go to the named
        partition, whatever their keys.
        """
        wrong = [value for value in (*values, key) if not isinstance(value, bytes | None)]
        if wrong or not values:
            raise ConfigError(
                f"write() takes values of bytes, at least one, not {wrong[0]!r}" if wrong else "write() needs a value"
            )
        now_ms = time.time_ns() // 1_000_000
        batch = encode((now_ms, key, value, ()) for value in values)
        return self._run(self._inside.write(TopicPartition(topic, partition), batch, PATIENCE_S))

    # ------------------------------------------------------------------ faults of requests

    def fail(self, api: str | int, *, code: str | int, nth: int = 1, times: int | None = 1) -> Order:
        """Answer the ``nth`` request of an API from now on, and ``times`` - 1 more, with an error,
        without carrying it out.

        ``api`` and ``code`` have Kafka's names ("Produce", "NOT_LEADER_OR_FOLLOWER").
        ``times=None`` fails requests until the order is cancelled.
        """
        return self._faults.fail(api, code, nth=nth, times=times)

    def delay(self, api: str | int, *, ms: float, nth: int = 1, times: int | None = 1) -> Order:
        """Carry such requests out that many milliseconds later. What the client sends behind them
        waits, too.
        """
        return self._faults.delay(api, ms, nth=nth, times=times)

    def drop(self, api: str | int, *, lost: Lost = "request", nth: int = 1, times: int | None = 1) -> Order:
        """Break the connection instead of answering. With ``lost="reply"`` the request is carried
        out first.
        """
        return self._faults.drop(api, lost=lost, nth=nth, times=times)

    def heal(self) -> None:
        """Cancel all orders of ``fail``, ``delay`` and ``drop``, and free all disks."""
        self._faults.clear()
        self.free_disk()

    # ------------------------------------------------------------------ faults of brokers

    def leader(self, topic: str, partition: int = 0) -> int:
        """The id of the broker that leads a partition; -1 without one."""
        return self._state(topic, partition).leader

    def move_leader(self, topic: str, partition: int = 0, *, to: int | None = None) -> int:
        """Let another broker lead a partition: ``to``, or any that has a replica in sync. Returns
        the broker that leads then.

        If there is no other, the process that leads is replaced, and the same broker leads in a new
        epoch.
        """
        state = self._state(topic, partition)
        if to is not None and to not in self._disks:
            raise ConfigError(
                f"to={to}: the brokers are {', '.join(map(str, self._disks))}; broker(brokers=…) says how many"
            )
        target = next((each for each in state.isr if each != state.leader), None) if to is None else to
        if target is None or target == state.leader:
            return self.crash_leader(topic, partition) if target is None else target
        key = TopicPartition(topic, partition)
        others = [each for each in state.brokers if each not in (target, state.leader)]
        stays = [state.leader] if target in state.brokers and state.leader >= 0 else []
        wanted = [target, *stays, *others]
        self._run(self._inside.reassign(key, wanted))
        self._await(
            lambda: self._is_settled(key, wanted), f"broker {target} has not caught up with {topic}-{partition}"
        )
        self._run(self._inside.elect_preferred(key))
        self._await(lambda: self._state_now(key).leader == target, f"broker {target} does not lead {topic}-{partition}")
        self._await_served(topic)
        return target

    def crash_leader(self, topic: str, partition: int = 0) -> int:
        """End the process that leads a partition as SIGKILL would. Returns the broker that leads
        then. The process is started again.
        """
        state = self._state(topic, partition)
        if state.leader < 0:
            raise ConfigError(f"{topic}-{partition} has no leader: is its disk full? free_disk() ends that")
        key = TopicPartition(topic, partition)
        self._running.crash(state.node_of(state.leader))
        self._await(
            lambda: self._state_now(key).leader_epoch > state.leader_epoch and self._state_now(key).leader >= 0,
            f"nobody leads {topic}-{partition} in the place of the one that crashed",
        )
        self._await_served(topic)
        return self.leader(topic, partition)

    def fill_disk(self, broker: int | None = None) -> FullDisk:
        """Let a broker's disk, or every broker's, take no more bytes. ``with`` frees it at its end."""
        for disk in self._chosen(broker):
            disk.is_full = True
        return FullDisk(self, broker)

    def free_disk(self, broker: int | None = None) -> None:
        """Free the disks. Processes whose writes failed are replaced. Waits until all partitions
        have leaders.
        """
        for disk in self._chosen(broker):
            disk.is_full = False
        struck = [node for node, view in list(self._views.items()) if view.has_refused and not view.is_full]
        for node in struck:
            del self._views[node]
            self._running.crash(node)
        if struck:
            self._await(lambda: all(node in self._views for node in struck), "processes were not started again")
            self._await_served(*sorted(self._image().topic_ids))

    def _chosen(self, broker: int | None) -> list[FillableDisk]:
        if broker is None:
            return list(self._disks.values())
        if broker not in self._disks:
            raise ConfigError(f"broker={broker}: the brokers are {', '.join(map(str, self._disks))}")
        return [self._disks[broker]]

    # ------------------------------------------------------------------ life, for ``broker``

    def start(self, topics: Mapping[str, int], configs: Mapping[str, str]) -> None:
        self._running.launcher.build_replicas(self._replica_server)
        plain: Callable[[ServerSpec], Any] = self._running.launcher.build["broker"]

        def broker_server(spec: ServerSpec) -> Any:
            server = plain(spec)
            self._faults.watch(server.router.server)
            return server

        self._running.launcher.build["broker"] = broker_server
        self._running.start()
        self.address = self._running.address
        self.bootstrap = self._running.bootstrap_servers(self._security.protocol.value)
        self._inside = InsideRequests(self.address, self._image)
        if configs:
            self._run(self._inside.set_static_configs(configs))
            self._await(
                lambda: all(
                    image.broker_configs.get(None, {}).get(name) == value
                    for image in self._copies()
                    for name, value in configs.items()
                ),
                "a broker has not heard of the configs",
            )
        if self._security.protocol.has_sasl:
            self._add_users(self._security.passwords)
        for name, partitions in topics.items():
            self._run(self._inside.have_topic(name, partitions, CLUSTERS_DEFAULT))
        self._await_served(*topics)

    def stop(self) -> None:
        if hasattr(self, "_inside"):
            self._run(self._inside.close())
        self._is_over = True
        self._running.stop()

    def _replica_server(self, spec: ServerSpec) -> ReplicaServer:
        files = self._disks[broker_of(spec.node_id)].files()
        self._views[spec.node_id] = files
        server = ReplicaServer(spec, files=files, groups=GROUPS)
        self._faults.watch(server.door.server)
        return server

    def _admin(self) -> AdminClient:
        from raylog.client.sync import AdminClient  # most test brokers need none

        return AdminClient(self.address)

    def _add_users(self, passwords: Mapping[str, str]) -> None:
        with self._admin() as admin:
            for user, password in passwords.items():
                admin.set_user(user, password)
        self._await(
            lambda: all(passwords.keys() <= {user for user, _ in image.credentials} for image in self._copies()),
            "a broker has not heard of the users",
        )

    # ------------------------------------------------------------------ what is so

    def _copies(self) -> list[MetadataImage]:
        """The brokers' own, of those that have one."""
        servers = (self._running.launcher.servers.get(node_id(broker, BROKER_SLOT)) for broker in self._disks)
        return [server.image for server in servers if server is not None and server.image is not None]

    def _image(self) -> MetadataImage:
        return self._running.controller.image

    def _state(self, topic: str, partition: int) -> PartitionState:
        async def look() -> PartitionState:
            return self._inside.partition(topic, partition)

        return self._run(look())

    def _state_now(self, key: TopicPartition) -> PartitionState:
        return self._inside.partition(*key)

    def _is_settled(self, key: TopicPartition, brokers: list[int]) -> bool:
        state = self._state_now(key)
        return not state.adding and not state.removing and list(state.brokers) == brokers and brokers[0] in state.isr

    def _await_served(self, *topics: str) -> None:
        """Wait until the leaders of all partitions answer, and every listener sends clients to
        them.
        """
        self._run(self._inside.await_leaders(topics, CLUSTER_PATIENCE_S))
        self._await(
            lambda: all(self._is_known_to(broker, topic) for broker in self._disks for topic in topics),
            f"a broker has not heard of the leaders of {', '.join(topics)}",
        )

    def _is_known_to(self, broker: int, topic: str) -> bool:
        server = self._running.launcher.servers.get(node_id(broker, BROKER_SLOT))
        image = server.image if server is not None else None
        found = image.topic_named(topic) if image is not None else None
        decided = self._inside.topic(topic)
        return found is not None and all(
            number in found.partitions and found.partitions[number].leader_epoch >= state.leader_epoch
            for number, state in decided.partitions.items()
        )

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        self._check_open()
        try:
            self._running.await_true(condition, CLUSTER_PATIENCE_S)
        except ClusterError:
            raise ClientTimeoutError(
                f"after {CLUSTER_PATIENCE_S:g} s {what}: is a disk full? free_disk() ends that"
            ) from None

    def _run(self, work: Coroutine[Any, Any, T], timeout_s: float = 2 * CLUSTER_PATIENCE_S) -> T:
        try:
            self._check_open()
        except ClosedError:
            work.close()
            raise
        return self._running.run(work, timeout_s)

    def _check_open(self) -> None:
        if self._is_over:
            raise ClosedError("this Kafka is gone: its broker() has ended; ask it before")


class FullDisk:
    """What ``fill_disk`` returns. ``free`` frees the disk, as ``with`` does at its end."""

    def __init__(self, kafka: Kafka, broker: int | None) -> None:
        self._kafka = kafka
        self._broker = broker

    def free(self) -> None:
        self._kafka.free_disk(self._broker)

    def __enter__(self) -> FullDisk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.free()

    async def __aenter__(self) -> FullDisk:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.free)


class AsyncKafka:
    """``Kafka`` for coroutines. Calls that wait are awaited in a thread, so that clients on the
    same loop go on. The rest is ``Kafka``'s.
    """

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.bootstrap = kafka.bootstrap
        self.address = kafka.address
        self.fail = kafka.fail
        self.delay = kafka.delay
        self.drop = kafka.drop
        self.fill_disk = kafka.fill_disk
        self.leader = kafka.leader
        self.client_options = kafka.client_options

    def __repr__(self) -> str:
        return repr(self.kafka)

    async def create_topic(
        self,
        name: str,
        partitions: int = CLUSTERS_DEFAULT,
        *,
        replication_factor: int = CLUSTERS_DEFAULT,
        configs: Mapping[str, Any] | None = None,
    ) -> None:
        await asyncio.to_thread(
            self.kafka.create_topic, name, partitions, replication_factor=replication_factor, configs=configs
        )

    async def allow(
        self, user: str, operation: str, *, topic: str | None = None, group: str | None = None, prefixed: bool = False
    ) -> None:
        await asyncio.to_thread(self.kafka.allow, user, operation, topic=topic, group=group, prefixed=prefixed)

    async def records(
        self, topic: str, *, count: int | None = None, read_committed: bool = False, timeout: float = PATIENCE_S
    ) -> list[Record]:
        return await asyncio.to_thread(
            self.kafka.records, topic, count=count, read_committed=read_committed, timeout=timeout
        )

    async def write(self, topic: str, *values: bytes | None, key: bytes | None = None, partition: int = 0) -> int:
        return await asyncio.to_thread(self.kafka.write, topic, *values, key=key, partition=partition)

    async def move_leader(self, topic: str, partition: int = 0, *, to: int | None = None) -> int:
        return await asyncio.to_thread(self.kafka.move_leader, topic, partition, to=to)

    async def crash_leader(self, topic: str, partition: int = 0) -> int:
        return await asyncio.to_thread(self.kafka.crash_leader, topic, partition)

    async def free_disk(self, broker: int | None = None) -> None:
        await asyncio.to_thread(self.kafka.free_disk, broker)

    async def heal(self) -> None:
        await asyncio.to_thread(self.kafka.heal)


class broker:  # a context manager, named as what it is used for
    """Run Kafka in this process, ready for clients: ``with broker(...) as kafka`` or ``async
    with``. All of it is gone at the end.

    ``topics`` are created first, where the folder has none of that name: names, or names with
    numbers of partitions (else ``num.partitions``). ``brokers`` is how many there are, each with a listener on a free port of
    127.0.0.1. ``folder`` keeps records and metadata, and a later ``broker`` finds them there.
    Without a folder everything is in memory, and no file is made. ``configs`` are Kafka's configs
    for all brokers, such as ``{"num.partitions": 4}``, or the path of a file of them, a
    ``server.properties``; its listeners, their settings and TLS inside are left out.

    ``security`` is the protocol of the listeners: "PLAINTEXT", "SSL", "SASL_PLAINTEXT" or "SASL_SSL".
    ``users`` are names with passwords, or names alone, which get passwords, or certificates where it
    is SSL; ``kafka.client_options("alice")`` is what a client has to be told. TLS needs
    ``raylog[secure]``. With ``authorizer`` nobody may do anything but what ``kafka.allow`` says.

    """

    def __init__(
        self,
        *,
        topics: Topics = (),
        brokers: int = 1,
        folder: str | Path | None = None,
        configs: Mapping[str, Any] | str | Path | None = None,
        security: str = "PLAINTEXT",
        users: Mapping[str, str] | Iterable[str] = (),
        authorizer: bool = False,
    ) -> None:
        if isinstance(topics, str):
            raise ConfigError(f'topics={topics!r}: give a list of names, or names and partitions: {{"{topics}": 3}}')
        if not 1 <= brokers <= 100:
            raise ConfigError(f"brokers={brokers}: from 1 to 100")
        self._topics = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, CLUSTERS_DEFAULT)
        self._brokers = brokers
        self._folder = None if folder is None else Path(folder)
        self._configs = {**({AUTHORIZER: "raylog"} if authorizer else {}), **server_properties(configs).configs}
        self._security = KafkaSecurity(security, users)
        self._kafka: Kafka | None = None
        self._mounted: Path | None = None

    def __enter__(self) -> Kafka:
        if self._kafka is not None:
            raise RaylogError("this broker() runs already: call broker() once for each with")
        if self._folder is None:
            home = self._mounted = Path(f"/raylog-in-memory-{uuid.uuid4().hex}")
            mount(home, MemoryFiles())
        else:
            home = self._folder
            home.mkdir(parents=True, exist_ok=True)
        try:
            running = InProcessCluster(home, self._brokers, listeners=self._security.listeners())
            disks = {number: FillableDisk(self._files()) for number in range(self._brokers)}
            self._kafka = Kafka(running, RequestFaults(), disks, self._security)
            self._kafka.start(self._topics, self._configs)
        except BaseException:
            self._end()
            raise
        return self._kafka

    def _files(self) -> MemoryFiles | DiskFiles:
        return MemoryFiles() if self._folder is None else DiskFiles()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        kafka, self._kafka = self._kafka, None
        try:
            if kafka is not None:
                kafka.stop()
        finally:
            if self._mounted is not None:
                unmount(self._mounted)
                self._mounted = None
            self._security.close()

    async def __aenter__(self) -> AsyncKafka:
        return AsyncKafka(await asyncio.to_thread(self.__enter__))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._end)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
