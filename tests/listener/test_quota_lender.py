"""A Broker lends quotas to its hosts, and its listener's clients share them; a host answers when it has to ask."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from types import SimpleNamespace
from typing import Any

import pytest

from raylog.errors import DisconnectedError
from raylog.kafka.context import RequestContext
from raylog.listener.owners import Owner
from raylog.listener.quota_lender import QuotaLender
from raylog.listener.quota_usage import Account, QuotaUsage
from raylog.security.quota_leases import RENEWAL_MS, LeaseAsk, QuotaLease
from raylog.security.quotas import AppliedQuota, ClientQuotas
from raylog.server.quota_borrower import QuotaBorrower
from raylog.types import BROKER_SLOT, Endpoint, node_id
from raylog.wire.handshake import Peer
from raylog.wire.private_quotas import LendQuotas, QuotasAsked

KEY, CLIENT = "producer_byte_rate", "app"
LIMIT = 1_000.0
BURST = 10 * LIMIT


def on_a_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        async def work() -> None:
            await test()

        asyncio.run(work())

    return run


class Links:
    """In place of the connections: the calls that are not answered yet."""

    def __init__(self) -> None:
        self.calls: list[tuple[Owner, LendQuotas, Callable[..., None]]] = []
        self.kept: set[Owner] = set()

    def call(self, owner: Owner, request: LendQuotas, on_reply: Callable[..., None], *, timeout_ms: float) -> None:
        self.calls.append((owner, request, on_reply))

    def keep(self, living: set[Owner]) -> None:
        self.kept = set(living)
        for call in [call for call in self.calls if call[0] not in living]:
            self.calls.remove(call)
            call[2](None, DisconnectedError("gone"))

    def close(self) -> None:
        self.keep(set())


class World:
    """Broker 1 with two hosts, and one host of another."""

    def __init__(self) -> None:
        self.now_ms = 0
        actors = {
            node: SimpleNamespace(incarnation=1, endpoint=Endpoint("h", node), alive=True)
            for node in (node_id(1, BROKER_SLOT), node_id(1, 1), node_id(1, 2), node_id(2, 1))
        }
        self.image: Any = SimpleNamespace(quotas=ClientQuotas(), broker_configs={}, actors=actors)
        self.usage = QuotaUsage(lambda: self.image, lambda: self.now_ms)
        self.links = Links()
        self.lender = QuotaLender(
            1,
            Peer(node_id(1, BROKER_SLOT), 1),
            secret=b"s",
            cluster_id="c",
            image=lambda: self.image,
            now_ms=lambda: self.now_ms,
            usage=self.usage,
        )
        self.lender._owners = self.links  # type: ignore[assignment]

    def limit(self, limit: float | None = LIMIT, kind: str = "client-id") -> None:
        if limit is None:
            self.image.quotas.remove(((kind, CLIENT),), KEY)
        else:
            self.image.quotas.set(((kind, CLIENT),), KEY, limit)
        self.usage.follow(11, 1_000)
        self.lender.follow()

    def limit_user(self, *, key: str = KEY, limit: float = LIMIT, client_id: str | None = None) -> None:
        """Of the user alice, or of her client."""
        entity = (("user", "alice"),) if client_id is None else (("client-id", client_id), ("user", "alice"))
        self.image.quotas.set(entity, key, limit)
        self.usage.follow(11, 1_000)
        self.lender.follow()

    def asks(self, slot: int, ask: LeaseAsk) -> QuotaLease:
        """A host answers; what the next request brings it."""
        call = next(call for call in self.links.calls if call[0].node_id == node_id(1, slot))
        self.links.calls.remove(call)
        call[2](QuotasAsked((ask,)), None)
        (lease,) = self.links.calls[-1][1].leases
        return lease

    def of_listener(self, user: str = "ANONYMOUS") -> Account:
        account = self.usage.account(KEY, RequestContext(f"User:{user}", "EXTERNAL", "127.0.0.1", CLIENT))
        assert account is not None
        return account


def spent(amount: float) -> LeaseAsk:
    return LeaseAsk(KEY, CLIENT, level=-amount, spent=amount)


@on_a_loop
async def test_hosts_are_asked_only_while_they_count_quotas() -> None:
    world = World()
    world.lender.follow()
    assert world.links.calls == []
    world.limit()
    assert sorted(call[0].node_id for call in world.links.calls) == [node_id(1, 1), node_id(1, 2)]
    assert all(call[1].processes == 2 and not call[1].leases for call in world.links.calls)
    world.lender.follow()
    assert len(world.links.calls) == 2, "one request each"
    world.limit(None)
    assert world.links.calls == [] and world.links.kept == set()
    world.limit()
    assert len(world.links.calls) == 2
    world.lender.stop()
    assert world.links.calls == []


@on_a_loop
async def test_a_quota_of_a_user_is_lent_to_hosts_and_shared_with_the_listener() -> None:
    world = World()
    world.limit_user()
    account = world.of_listener("alice")
    assert account.use(BURST / 2, 0) == 0
    ask = LeaseAsk(KEY, "", level=-LIMIT, spent=LIMIT, user="alice")
    lease = world.asks(1, ask)
    assert (lease.user, lease.client_id, lease.change) == ("alice", "", pytest.approx(BURST / 2))
    assert account.holding is not None and account.use(LIMIT, 0) > 0, "the host has what is left"
    world.lender.stop()


@on_a_loop
async def test_a_users_client_has_a_pool_of_its_own() -> None:
    world = World()
    world.limit_user(client_id=CLIENT)
    world.limit()
    both = [world.asks(1, LeaseAsk(KEY, CLIENT, level=-1, spent=1, user=user)) for user in ("alice", None)]
    assert [each.change for each in both] == [BURST + 1 - 1, BURST + 1 - 1]
    world.lender.stop()


@on_a_loop
async def test_nothing_is_lent_of_a_quota_that_is_another_ones() -> None:
    """Of bob, who has none; of all that alice does, when her clients have one each."""
    for user, client_id in (("bob", None), ("alice", CLIENT)):
        world = World()
        world.limit_user(client_id=client_id)
        lease = world.asks(1, LeaseAsk(KEY, "", level=-1, spent=1, user=user))
        assert lease.is_over and lease.user == user
        world.lender.stop()


@on_a_loop
async def test_a_program_that_is_no_user_has_the_quota_of_its_client_id_not_that_of_all_users() -> None:
    world = World()
    world.limit()
    world.image.quotas.set((("user", None),), KEY, 1.0)
    assert world.asks(1, spent(1)).change == BURST
    world.lender.stop()


@on_a_loop
async def test_a_host_that_was_away_for_a_moment_is_asked_once() -> None:
    """Two requests at one host would have it answer each because of the other, for ever."""
    world = World()
    world.limit()
    host, _, on_reply = world.links.calls.pop()
    on_reply(None, DisconnectedError("gone"))
    assert len(world.links.calls) == 1, "it is asked again after a while"
    for is_alive in (False, True):
        world.image.actors[host.node_id].alive = is_alive
        world.lender.follow()
    assert [call[0] for call in world.links.calls].count(host) == 1
    world.lender._ask(host)
    assert [call[0] for call in world.links.calls].count(host) == 1
    world.lender.stop()


@on_a_loop
async def test_the_listeners_clients_share_the_quota_with_hosts() -> None:
    world = World()
    world.limit()
    account = world.of_listener()
    assert account.use(BURST / 2, 0) == 0 and account.holding is None, "alone until a host asks"
    lease = world.asks(1, spent(BURST / 4))
    assert lease.change == pytest.approx(BURST / 2), "what the listener's clients had spent before is not there"
    assert account.use(LIMIT, 0) > 0, "the host has what is left"
    other = world.asks(2, spent(LIMIT))
    assert other.change == 0 and not other.has_more
    world.lender.stop()


@on_a_loop
async def test_a_client_of_the_listener_that_comes_later_shares_the_quota() -> None:
    world = World()
    world.limit()
    world.asks(1, spent(BURST))
    account = world.of_listener()
    account.use(LIMIT, 0)
    assert account.use(LIMIT, 0) > 0
    world.lender.stop()


@on_a_loop
async def test_the_listener_has_the_quota_alone_when_no_host_has_asked_for_long() -> None:
    world = World()
    world.limit()
    account = world.of_listener()
    world.asks(1, spent(BURST))
    assert account.holding is not None
    world.now_ms = 11_000
    world.lender._tick()
    assert account.holding is None and account.use(BURST, world.now_ms) == 0
    world.lender.stop()


@on_a_loop
async def test_the_listeners_part_is_renewed_as_that_of_hosts() -> None:
    world = World()
    world.limit()
    account = world.of_listener()
    world.asks(1, spent(BURST))
    account.use(LIMIT, 0)
    for _ in range(3):
        world.now_ms += RENEWAL_MS
        world.lender._tick()
        account.use(LIMIT, world.now_ms)
        world.asks(1, LeaseAsk(KEY, CLIENT, spent=10, is_hungry=True, has_lease=True))
    assert account.holding is not None and account.holding.rate(world.now_ms) == LIMIT / 2
    world.lender.stop()


@on_a_loop
async def test_nothing_is_lent_of_a_quota_that_is_gone() -> None:
    world = World()
    world.limit()
    over = world.asks(1, LeaseAsk(KEY, "another", level=500, spent=1))
    assert over.is_over and over.change == -500, "what was saved is of no use for a later one"
    assert not world.asks(1, spent(1)).is_over
    world.lender.stop()


@on_a_loop
async def test_a_host_with_a_lease_of_another_broker_process_finds_an_empty_pool() -> None:
    world = World()
    world.limit()
    assert world.asks(1, LeaseAsk(KEY, CLIENT, level=-10, spent=10, has_lease=True)).change == 0
    world.lender.stop()


class Host:
    """A host's borrower, and the requests of Brokers that it has."""

    def __init__(self) -> None:
        self.now_ms = 0
        quotas = ClientQuotas()
        quotas.set((("client-id", CLIENT),), KEY, LIMIT)
        self.usage = QuotaUsage(lambda: SimpleNamespace(quotas=quotas), lambda: self.now_ms)
        self.usage.follow(11, 1_000)
        self.borrower = QuotaBorrower(self.usage, lambda: self.now_ms)

    def given(self, *leases: QuotaLease, processes: int = 4) -> list[QuotasAsked]:
        """A request arrives; its answers, as they come."""
        replies: list[QuotasAsked] = []
        body = LendQuotas(processes, 10_000, leases)
        self.borrower.handle(SimpleNamespace(body=body, reply=replies.append))  # type: ignore[arg-type]
        return replies

    def account(self) -> Account:
        account = self.usage.account(KEY, RequestContext("User:ANONYMOUS", "INTERNAL", "127.0.0.1", CLIENT))
        assert account is not None and account.holding is not None
        return account


@on_a_loop
async def test_a_host_answers_when_somebody_spends_what_is_not_there() -> None:
    host = Host()
    replies = host.given()
    account = host.account()
    assert replies == []
    assert account.use(100, 0) == 0
    assert replies == [QuotasAsked((LeaseAsk(KEY, CLIENT, level=-100.0, spent=100.0),))]
    again = host.given(QuotaLease(KEY, CLIENT, rate=LIMIT, change=150.0, has_more=False))
    assert account.use(50, 0) == 0 and account.use(100, 0) == 100 and again == []
    host.now_ms = RENEWAL_MS
    host.borrower._answer()
    assert again[0].asks[0].is_hungry


@on_a_loop
async def test_a_host_asks_for_users_and_is_lent_what_is_theirs() -> None:
    host = Host()
    accounts = {
        user: host.usage.open(KEY, AppliedQuota(LIMIT, user, client_id))
        for user, client_id in (("alice", None), ("bob", CLIENT))
    }
    replies = host.given()
    for amount, account in enumerate(accounts.values(), 1):
        account.use(amount, 0)
        (reply,) = replies
        replies = host.given()
    assert [(each.user, each.client_id, each.level) for each in reply.asks] == [("alice", "", -1), ("bob", CLIENT, -2)]
    host.given(QuotaLease(KEY, CLIENT, change=10.0, user="bob"), QuotaLease(KEY, "", change=20.0, user="alice"))
    levels = {user: account.holding.level for user, account in accounts.items() if account.holding is not None}
    assert levels == {"alice": 19.0, "bob": 8.0}


@on_a_loop
async def test_a_host_that_has_spent_before_it_was_asked_answers_at_once() -> None:
    host = Host()
    host.account().use(100, 0)
    replies = host.given()
    await asyncio.sleep(0)
    while not replies:
        await asyncio.sleep(0)
    assert replies[0].asks[0].spent == 100


@on_a_loop
async def test_a_host_whose_broker_is_silent_has_a_safe_share() -> None:
    host = Host()
    host.given(processes=4)
    account = host.account()
    assert account.use(100, 0) == 0, "it asks first"
    host.now_ms = 5_000
    account.use(100, host.now_ms)
    assert account.use(0, host.now_ms) == pytest.approx(400), "100 bytes at a quarter of the quota"


@on_a_loop
async def test_a_lease_that_is_over_is_asked_for_no_more() -> None:
    host = Host()
    host.given()
    host.account().use(100, 0)
    replies = host.given(QuotaLease(KEY, CLIENT, change=100.0, is_over=True))
    host.borrower._answer()
    assert replies == [QuotasAsked(())]
