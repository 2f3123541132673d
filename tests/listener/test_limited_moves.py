"""A client with a quota is served by the host while it is within the quota, and by its Broker above it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from outside import Client, Pending, fetch, metadata, parts, produce
from raw_requests import at_doors, batch, eventually, nodes_of

from raylog.client.sync import AdminClient, Producer
from raylog.listener.moves import PATIENCE
from raylog.listener.quota_usage import NOTICED_MS, Account, QuotaUsage
from raylog.security.quotas import ClientQuotas
from raylog.server.broker_server import BrokerServer
from raylog.server.door_quotas import DoorQuota
from raylog.server.replica_server import ReplicaServer
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import BROKER_SLOT, node_id
from raylog.wire.frames import client_id_field
from raylog.wire.moved_connections import Moved, MovedQuota

pytestmark = pytest.mark.core

Open = Callable[..., Client]
NewTopicOf = Callable[..., str]
SetQuota = Callable[..., None]
PRODUCED, FETCHED, TIME = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
BROKER = node_id(0, BROKER_SLOT)
KIB = 1_024
QUOTA = 64 * KIB
"""A second's worth may be used at once, by two windows of one second."""
FAR = 64 * 1_024 * KIB
VALUE = b"v" * (8 * KIB)


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    with cluster(brokers=1) as found:
        with AdminClient(found.address) as admin:
            admin.alter_configs(broker="all", set={"quota.window.num": "2"})
        yield found


def broker(running: InProcessCluster) -> BrokerServer:
    server = running.launcher.servers[BROKER]
    assert isinstance(server, BrokerServer) and server.router is not None
    return server


def host_of(running: InProcessCluster, topic: str) -> ReplicaServer:
    found = running.launcher.servers[nodes_of(running, topic)[0]]
    assert isinstance(found, ReplicaServer)
    return found


@pytest.fixture
def quota(running: InProcessCluster) -> Iterator[SetQuota]:
    """Sets quotas, and waits until the Broker has them; removes them at the end."""
    entities: list[dict[str, str | None]] = []

    def alter(entity: dict[str, str | None], changes: dict[str, float | None]) -> None:
        with AdminClient(running.address) as admin:
            admin.alter_quotas(entity, changes)
        decided = running.controller.image.quotas.values

        def is_known() -> bool:
            image = broker(running).image
            return image is not None and image.quotas.values == decided

        eventually(is_known, "the Broker knows the quotas")

    def set_(entity: dict[str, str | None], **values: float) -> None:
        entities.append(entity)
        alter(entity, dict(values))

    yield set_
    for entity in entities:
        alter(entity, dict.fromkeys((PRODUCED, FETCHED, TIME)))


@pytest.fixture
def as_client(running: InProcessCluster) -> Iterator[Open]:
    opened: list[Client] = []

    def open_(client_id: str | None) -> Client:
        opened.append(Client(running, 0, client_id))
        return opened[-1]

    yield open_
    for each in opened:
        each.close()
    eventually(lambda: not at_doors(running), "nobody at a door")


def write(client: Client, topic: str, value: bytes = b"v") -> int:
    """The throttle time, in milliseconds."""
    reply = client.ask(produce(topic, {0: batch(value)}, acks=1))
    (answer,) = reply.responses[0].partition_responses
    assert answer.error_code is ErrorCode.none, answer
    return round(reply.throttle_time.total_seconds() * 1_000)


def read(client: Client, topic: str, offset: int = 0, **values: Any) -> int:
    """The bytes of records; an answer that is withheld names no partition."""
    found = parts(client.ask(fetch(topic, {0: offset}, **values)))
    assert all(part.error_code is ErrorCode.none for part in found.values())
    return sum(len(part.records or b"") for part in found.values())


def settle(running: InProcessCluster, ask: Callable[[], Any]) -> Any:
    """Asks until the connection is at the door; its end there."""
    eventually(lambda: ask() is not None and at_doors(running), "the connection to move")
    ask()  # what comes now begins like one that the door has seen
    (there,) = at_doors(running)
    return there


def account_of(
    running: InProcessCluster, topic: str, key: str, *, user: str | None = None, client_id: str | None = None
) -> Account:
    """At the host that leads the topic."""
    found = host_of(running, topic)._quotas.usage.opened((key, user, client_id))
    assert found is not None
    return found


Used = Callable[[Account], float]


@pytest.fixture
def used(running: InProcessCluster, monkeypatch: pytest.MonkeyPatch) -> Used:
    """What has been counted for an account since the test began, once nobody owes anything."""
    seen: list[tuple[Account, float]] = []
    use = Account.use

    def noted(account: Account, amount: float, now_ms: int) -> int:
        seen.append((account, amount))
        return use(account, amount, now_ms)

    def counted(account: Account) -> float:
        eventually(
            lambda: not any(quota.owed for each in at_doors(running) for quota in each._quotas.values()), "charged"
        )
        return sum(amount for each, amount in seen if each is account)

    monkeypatch.setattr(Account, "use", noted)
    return counted


def exceed(client: Client, topic: str, running: InProcessCluster) -> int:
    """Writes as fast as may be until the connection is at its Broker again; the throttle time that it is told then."""
    for _ in range(3 * QUOTA // len(VALUE)):
        told_ms = write(client, topic, VALUE)
        if not at_doors(running):
            return told_ms
    raise AssertionError("three times the quota at once, and the host has served it all")


@pytest.mark.parametrize(
    ("entity", "place"),
    [
        ({"client-id": "far"}, {"client_id": "far"}),
        ({"client-id": None}, {"client_id": "far"}),
        ({"user": "ANONYMOUS"}, {"user": "ANONYMOUS"}),
        ({"user": None}, {"user": "ANONYMOUS"}),
        ({"user": "ANONYMOUS", "client-id": "far"}, {"user": "ANONYMOUS", "client_id": "far"}),
    ],
    ids=["client id", "default client id", "user", "default user", "client of a user"],
)
def test_a_producer_within_its_quota_moves_and_is_counted_at_the_host(
    running: InProcessCluster,
    as_client: Open,
    new_topic: NewTopicOf,
    quota: SetQuota,
    used: Used,
    entity: dict[str, str | None],
    place: dict[str, str],
) -> None:
    topic, one = new_topic((0,)), as_client("far")
    quota(entity, producer_byte_rate=FAR)
    there = settle(running, lambda: write(one, topic))
    account = account_of(running, topic, PRODUCED, **place)
    assert account.limit == FAR
    served, before = there.requests, used(account)
    for _ in range(4):
        assert write(one, topic, VALUE) == 0
    assert there.requests == served + 4
    assert 4 * len(VALUE) < used(account) - before < 5 * len(VALUE)
    assert account.holding is not None
    eventually(
        lambda: account.holding is not None and account.holding.processes == hosts(running), "a Broker that asks"
    )


def hosts(running: InProcessCluster) -> int:
    return sum(isinstance(each, ReplicaServer) for each in running.launcher.servers.values())


def test_a_program_inside_has_the_same_account(
    running: InProcessCluster, as_client: Open, new_topic: NewTopicOf, quota: SetQuota, used: Used
) -> None:
    topic, one = new_topic((0,)), as_client("both")
    quota({"client-id": "both"}, producer_byte_rate=FAR)
    host = host_of(running, topic)
    eventually(lambda: "both" in (host._quotas._text or ""), "the host knows the quota")
    settle(running, lambda: write(one, topic))
    account = account_of(running, topic, PRODUCED, client_id="both")
    before = used(account)
    with Producer(running.address, client_id="both") as producer:
        producer.send(topic, VALUE).result(60)
    assert used(account) - before > len(VALUE)
    write(one, topic)
    assert account_of(running, topic, PRODUCED, client_id="both") is account


def test_who_exceeds_its_quota_is_throttled_by_its_broker_and_moves_again_when_it_has_kept_to_it(
    running: InProcessCluster, as_client: Open, new_topic: NewTopicOf, quota: SetQuota
) -> None:
    topic, one = new_topic((0,)), as_client("noisy")
    quota({"client-id": "noisy"}, producer_byte_rate=QUOTA)
    settle(running, lambda: write(one, topic))
    assert exceed(one, topic, running) > 0
    (connection,) = broker(running).router.server.connections  # type: ignore[union-attr]
    assert connection.came_back == 0
    for _ in range(3 * PATIENCE):
        write(one, topic, VALUE)
        assert not at_doors(running), "it is above its quota"
    settle(running, lambda: write(one, topic))
    assert exceed(one, topic, running) > 0, "and counted as before"


def test_requests_that_come_together_are_charged_each_before_the_next(
    running: InProcessCluster, as_client: Open, new_topic: NewTopicOf, quota: SetQuota
) -> None:
    """Thirty-two in one read, of which the quota allows some eight at once."""
    topic, one = new_topic((0,)), as_client("together")
    quota({"client-id": "together"}, producer_byte_rate=16 * KIB)
    there = settle(running, lambda: write(one, topic))
    served = there.requests

    async def begin() -> list[Any]:
        return [one.connection.send(produce(topic, {0: batch(b"v" * 2 * KIB)}, acks=1)) for _ in range(32)]

    for each in running.run(begin()):
        reply = Pending(running, each).result()
        assert reply.responses[0].partition_responses[0].error_code is ErrorCode.none
    assert 0 < there.requests - served < 16, "the others are for the Broker"
    assert not at_doors(running)


def test_who_has_exceeded_its_quota_at_a_host_stays_though_its_broker_has_it_wait_no_more(
    running: InProcessCluster,
    as_client: Open,
    new_topic: NewTopicOf,
    quota: SetQuota,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, one = new_topic((0,)), as_client("told")
    quota({"client-id": "told"}, producer_byte_rate=FAR)
    there = settle(running, lambda: write(one, topic))
    monkeypatch.setattr(DoorQuota, "charge", lambda *_: NOTICED_MS)
    served = there.requests
    assert write(one, topic) == 0 and there.requests == served + 1, "the request that exceeds it is served"
    eventually(lambda: there._exceeded, "it to be charged")
    began = time.monotonic()
    while time.monotonic() < began + 1.0:
        assert write(one, topic) < NOTICED_MS
        assert not at_doors(running)
    monkeypatch.undo()
    settle(running, lambda: write(one, topic))


def test_others_of_the_same_client_stay_meanwhile(
    running: InProcessCluster, as_client: Open, new_topic: NewTopicOf, quota: SetQuota
) -> None:
    topic, one, other = new_topic((0,)), as_client("pair"), as_client("pair")
    quota({"client-id": "pair"}, producer_byte_rate=QUOTA, consumer_byte_rate=FAR)
    settle(running, lambda: write(one, topic))
    exceed(one, topic, running)
    for _ in range(2 * PATIENCE):
        write(other, topic, VALUE)
    assert not at_doors(running)
    settle(running, lambda: read(other, topic))


def test_a_request_with_another_client_id_goes_back(
    running: InProcessCluster, as_client: Open, new_topic: NewTopicOf, quota: SetQuota, used: Used
) -> None:
    topic, one = new_topic((0,)), as_client("disguised")
    quota({"client-id": "limited"}, producer_byte_rate=QUOTA)
    settle(running, lambda: write(one, topic))
    one.connection._client_id = client_id_field("limited")
    write(one, topic, VALUE)
    assert not at_doors(running)
    account = broker(running).router.quotas.usage.opened((PRODUCED, None, "limited"))  # type: ignore[union-attr]
    assert account is not None and used(account) > len(VALUE)


def test_who_uses_two_client_ids_in_turn_stays(
    running: InProcessCluster, as_client: Open, new_topic: NewTopicOf
) -> None:
    topic, one = new_topic((0,)), as_client("one")
    for number in range(4 * PATIENCE):
        one.connection._client_id = client_id_field(("one", "two")[number % 2])
        write(one, topic)
        assert not at_doors(running)


def test_a_client_id_that_is_too_long_for_a_message_stays(
    running: InProcessCluster, as_client: Open, new_topic: NewTopicOf
) -> None:
    topic, one = new_topic((0,)), as_client("x" * 1_025)
    for _ in range(3 * PATIENCE):
        write(one, topic)
    assert not at_doors(running)


def test_a_consumer_within_its_quota_moves_and_its_records_are_counted(
    running: InProcessCluster, as_client: Open, new_topic: NewTopicOf, quota: SetQuota, used: Used
) -> None:
    topic, reader, writer = new_topic((0,)), as_client("reader"), as_client("writer")
    size = len(batch(VALUE))
    write(writer, topic, VALUE)
    quota({"client-id": "reader"}, consumer_byte_rate=FAR)
    there = settle(running, lambda: read(reader, topic))
    account = account_of(running, topic, FETCHED, client_id="reader")
    before, served = used(account), there.requests
    assert read(reader, topic) == size
    assert used(account) - before == size
    waiting = reader.send(fetch(topic, {0: 1}, max_wait_ms=60_000))
    eventually(lambda: there.requests == served + 2, "a parked read")
    write(writer, topic, VALUE)
    assert parts(waiting.result())[0].records
    assert used(account) - before == 2 * size, "also what had to wait"


def test_a_fetch_that_may_return_more_than_its_quota_has_at_once_is_for_the_broker(
    running: InProcessCluster, as_client: Open, new_topic: NewTopicOf, quota: SetQuota
) -> None:
    topic, one = new_topic((0,)), as_client("narrow")
    for _ in range(10):
        write(one, topic, VALUE)
    quota({"client-id": "narrow"}, consumer_byte_rate=QUOTA)
    for _ in range(2 * PATIENCE):
        read(one, topic, 10)
    assert not at_doors(running), "each asks for up to a MiB"
    settle(running, lambda: read(one, topic, 10, max_bytes=QUOTA))
    assert 0 < read(one, topic) <= QUOTA
    assert not at_doors(running)


def test_a_consumer_above_its_quota_is_at_its_broker(
    running: InProcessCluster, as_client: Open, new_topic: NewTopicOf, quota: SetQuota
) -> None:
    topic, one, writer = new_topic((0,)), as_client("greedy"), as_client("writer")
    write(writer, topic, VALUE)
    write(writer, topic)
    quota({"client-id": "greedy"}, consumer_byte_rate=QUOTA)
    settle(running, lambda: read(one, topic, 1, max_bytes=16 * KIB))

    def is_back() -> bool:
        read(one, topic, max_bytes=16 * KIB)
        return not at_doors(running)

    eventually(is_back, "it has read more than its quota")
    for _ in range(2 * PATIENCE):
        read(one, topic, max_bytes=16 * KIB)
    assert not at_doors(running)


def test_a_connection_without_its_broker_is_not_read_while_its_client_has_to_wait(
    running: InProcessCluster, as_client: Open, new_topic: NewTopicOf, quota: SetQuota
) -> None:
    topic, one = new_topic((0,)), as_client("orphan")
    quota({"client-id": "orphan"}, producer_byte_rate=QUOTA)
    there = settle(running, lambda: write(one, topic))
    running.crash(BROKER)
    eventually(lambda: there.has_lost_its_broker, "the host to see it")
    muted: list[float] = []
    mute = there.mute

    def note(seconds: float) -> None:
        muted.append(seconds)
        mute(0.01)

    there.mute = note
    eventually(lambda: write(one, topic, VALUE) == 0 and len(muted) >= 2, "a safe share to be used up")
    assert at_doors(running) == [there]
    one.close()
    running.await_true(lambda: BROKER in running.controller.live_nodes())
    eventually(lambda: BROKER in running.launcher.servers and broker(running).advertised is not None, "another Broker")


def test_quotas_that_change_bring_everybody_back(
    running: InProcessCluster, as_client: Open, new_topic: NewTopicOf, quota: SetQuota
) -> None:
    topic, one = new_topic((0,)), as_client("changing")
    quota({"client-id": "changing"}, producer_byte_rate=FAR)
    settle(running, lambda: write(one, topic))
    quota({"client-id": "changing"}, producer_byte_rate=2 * FAR)
    eventually(lambda: write(one, topic) == 0 and not at_doors(running), "the connection is back")
    settle(running, lambda: write(one, topic))
    assert account_of(running, topic, PRODUCED, client_id="changing").limit == 2 * FAR
    one.ask(metadata(topic))
    assert not at_doors(running)


def test_the_time_that_requests_take_is_counted_at_the_host(
    running: InProcessCluster, as_client: Open, new_topic: NewTopicOf, quota: SetQuota, used: Used
) -> None:
    """Ten thousand percent are a hundred event loops."""
    topic, one = new_topic((0,)), as_client("timed")
    quota({"client-id": "timed"}, request_percentage=10_000)
    there = settle(running, lambda: write(one, topic))
    account = account_of(running, topic, TIME, client_id="timed")
    served, before, began = there.requests, used(account), time.monotonic()
    for offset in range(4):
        assert write(one, topic, VALUE) == 0 and read(one, topic, offset)
    percent_seconds = 100 * (time.monotonic() - began)
    assert there.requests == served + 8
    assert 0.001 * percent_seconds < used(account) - before < percent_seconds
    assert account.limit == 10_000


def test_who_takes_too_much_time_at_a_host_waits_at_its_broker(
    running: InProcessCluster, as_client: Open, new_topic: NewTopicOf, quota: SetQuota
) -> None:
    """A percent of a second may be used at once, by two windows of one second."""
    topic, one = new_topic((0,)), as_client("slow")
    quota({"client-id": "slow"}, request_percentage=1)
    settle(running, lambda: write(one, topic))
    told_ms = further = 0
    for _ in range(2_000):
        told_ms = write(one, topic)
        if not at_doors(running):
            break
        assert not told_ms, "only the Broker has it wait"
    assert not at_doors(running), "it has taken more than its quota"
    while not told_ms:
        told_ms, further = write(one, topic), further + 1
    assert told_ms <= 1_000, "for one window at most"
    assert further < 8, "the Broker knows that the pool is empty"
    for _ in range(2 * PATIENCE):
        write(one, topic)
        assert not at_doors(running), "it has exceeded its quota lately"
    settle(running, lambda: write(one, topic))


def test_without_its_broker_nobody_waits_longer_than_a_window_for_its_time() -> None:
    usage = QuotaUsage(lambda: SimpleNamespace(quotas=ClientQuotas()), lambda: 0)
    moved = Moved(1, b"", "User:ANONYMOUS", "EXTERNAL", client_id="late")
    limited = {key: DoorQuota(usage, MovedQuota(key, 1.0, 10.0, False, True), moved) for key in (PRODUCED, TIME)}
    assert {key: each.charge(1_000.0) for key, each in limited.items()} == {PRODUCED: 990_000, TIME: 1_000}
