"""What a Broker remembers of its clients' quotas: accounts are shared, survive changes, and are bounded."""

from __future__ import annotations

from raylog.kafka.context import RequestContext
from raylog.listener import quota_usage
from raylog.listener.quota_usage import NOTICED_MS, QuotaUsage
from raylog.listener.quotas import Quotas
from raylog.metadata.image import MetadataImage
from raylog.security.quotas import CONNECTION_CREATION_RATE, CONTROLLER_MUTATION_RATE, PRODUCER_BYTE_RATE

ALICE, DEFAULT = (("user", "alice"),), (("client-id", None),)


def context(user: str, client_id: str | None) -> RequestContext:
    return RequestContext(f"User:{user}", "PLAINTEXT", "127.0.0.1", client_id)


class World:
    def __init__(self) -> None:
        self.image = MetadataImage.empty()
        self.now_ms = 0
        self.usage = QuotaUsage(lambda: self.image, lambda: self.now_ms)

    def follow(self) -> bool:
        return self.usage.follow(11, 1_000)

    def account(self, user: str, client_id: str | None = None):
        return self.usage.account(PRODUCER_BYTE_RATE, context(user, client_id))


def test_clients_of_one_user_share_an_account_that_outlives_changes() -> None:
    world = World()
    assert not world.follow() and world.account("alice") is None
    world.image.quotas.set(ALICE, PRODUCER_BYTE_RATE, 10.0)
    assert world.follow() and not world.follow()
    account = world.account("alice", "x")
    assert account is world.account("alice", "y") and world.account("bob", "x") is None
    assert account.use(200, 0) == 10_000
    world.image.quotas.set(ALICE, PRODUCER_BYTE_RATE, 20.0)
    assert world.follow()
    assert world.account("alice") is account
    assert account.wait_ms(0) == 0, "the same use is within the new quota"
    world.image.quotas.remove(ALICE, PRODUCER_BYTE_RATE)
    assert world.follow() and world.account("alice") is None
    assert world.usage.follow(5, 2_000) is True, "by other windows, other amounts may be used at once"
    assert world.usage.follow(5, 2_000) is False


def test_who_exceeds_a_quota_has_exceeded_it_for_as_long_as_rates_remember() -> None:
    world = World()
    world.image.quotas.set(ALICE, PRODUCER_BYTE_RATE, 1_000.0)
    world.follow()
    account = world.account("alice")
    assert account.use(10_000, 0) == 0 and not account.is_exceeded(0)
    assert 0 < account.use(5, 0) < NOTICED_MS and not account.is_exceeded(0), "too short to tell"
    assert account.use(5, 0) == NOTICED_MS and account.is_exceeded(0)
    assert account.is_exceeded(10_999) and not account.is_exceeded(11_000)
    account.exceed(20_000)
    assert account.use(10_001, 20_000) == 1
    assert account.is_exceeded(30_999), "a short wait prolongs it"
    assert account.use(1, 40_000) == 0 and not account.is_exceeded(40_000)


def test_connections_that_are_turned_away_do_not_count() -> None:
    world = World()
    limited = Quotas(lambda: world.image, lambda: world.now_ms)
    world.image.quotas.set((("ip", None),), CONNECTION_CREATION_RATE, 1.0)
    limited.usage.follow(11, 1_000)
    assert [limited._turned_away_s("10.0.0.1") for _ in range(12)] == [0.0] * 10 + [1.0] * 2
    for _ in range(100):
        world.now_ms += 100
        assert limited._turned_away_s("10.0.0.1") <= 1.0
    assert limited._turned_away_s("10.0.0.2") == 0
    world.now_ms = 11_000
    assert limited._turned_away_s("10.0.0.1") == 0, "the ten that stayed are forgotten"


def test_accounts_of_many_client_ids_are_forgotten_when_nothing_counts(monkeypatch) -> None:
    monkeypatch.setattr(quota_usage, "ACCOUNTS_KEPT", 10)
    monkeypatch.setattr(quota_usage, "CLIENTS_KNOWN_MAX", 10)
    world = World()
    for key in (PRODUCER_BYTE_RATE, CONTROLLER_MUTATION_RATE):
        world.image.quotas.set(DEFAULT, key, 1.0)
    world.image.quotas.set((("ip", None),), CONNECTION_CREATION_RATE, 1.0)
    world.follow()
    busy = world.account("u", "busy")
    for number in range(100):
        world.now_ms += 1_000
        busy.use(1, world.now_ms)
        world.account("u", f"client-{number}").use(1, world.now_ms)
        world.usage.bucket(context("u", f"client-{number}")).take(1, world.now_ms)
        world.usage.account_of_address(f"10.0.0.{number}").use(1, world.now_ms)
    assert world.account("u", "busy") is busy
    assert len(world.usage._known) <= 10
    assert len(world.usage._accounts) <= 30 and len(world.usage._buckets) <= 12


def test_an_account_that_is_forgotten_is_nobodys_any_more(monkeypatch) -> None:
    monkeypatch.setattr(quota_usage, "ACCOUNTS_KEPT", 10)
    world = World()
    for key in (PRODUCER_BYTE_RATE, CONTROLLER_MUTATION_RATE):
        world.image.quotas.set(DEFAULT, key, 1.0)
    world.follow()
    world.account("u", "quiet"), world.usage.bucket(context("u", "quiet"))
    for number in range(10):
        world.account("u", f"client-{number}"), world.usage.bucket(context("u", f"client-{number}"))
    place = (PRODUCER_BYTE_RATE, None, "quiet")
    assert world.usage.opened(place) is None
    assert world.account("u", "quiet") is world.usage.opened(place)
    bucket = world.usage.bucket(context("u", "quiet"))
    assert bucket is world.usage._buckets[CONTROLLER_MUTATION_RATE, None, "quiet"]
