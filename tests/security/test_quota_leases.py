"""Who is lent how much of a quota, and what its processes spend of it together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.security.quota_leases import IDLE_MS, LEASE_MS, RENEWAL_MS, Holding, LeaseAsk, Pool, QuotaLease
from raylog.security.quota_rates import Rate, burst_of
from raylog.wire import values

KEY, CLIENT = "producer_byte_rate", "app"
LIMIT = 1_000.0
BURST_S = 1.0


def asked(**values: float) -> LeaseAsk:
    return LeaseAsk(KEY, CLIENT, **values)  # type: ignore[arg-type]


class Broker:
    """Some processes and their lender, with a clock of their own. A message takes ``latency_ms``."""

    def __init__(self, processes: int, *, limit: float = LIMIT, latency_ms: int = 0) -> None:
        self.now_ms = 0
        self.limit = limit
        self.latency_ms = latency_ms
        self.pool: Pool | None = None  # while it has a lender
        self.spent = [0.0] * processes
        self.holdings = [Holding(limit, processes, self.wanted(name), 0) for name in range(processes)]
        self._due: list[tuple[int, Callable[[], None]]] = []
        self._in_hand = [True] * processes  # whether the process may ask now
        self._asked_ms = [0] * processes
        self._borrowing: set[int] = set()
        self.is_lost: Callable[[], bool] = lambda: False
        self.lent_most = 0.0

    def wanted(self, name: int) -> Callable[[], None]:
        def want() -> None:
            self._borrowing.add(name)
            self.ask(name)

        return want

    def ask(self, name: int) -> None:
        if not self._in_hand[name]:
            return
        self._in_hand[name], self._asked_ms[name] = False, self.now_ms
        ask = self.holdings[name].ask(KEY, CLIENT, self.now_ms)
        self._after(lambda: self._arrived(name, ask))

    def _arrived(self, name: int, ask: LeaseAsk) -> None:
        if self.pool is None or self.is_lost():
            self._in_hand[name] = True
            return
        lease = self.pool.ask(name, ask, self.now_ms)
        self.lent_most = max(self.lent_most, self.pool.lent(self.now_ms))
        self._after(lambda: self._lent(name, lease))

    def _lent(self, name: int, lease: QuotaLease) -> None:
        self._in_hand[name] = True
        self.holdings[name].lend(lease, self.now_ms)
        if lease.is_over and not self.holdings[name].is_urgent:
            self._borrowing.discard(name)
        if self.holdings[name].is_urgent:
            self._asked_ms[name] = self.now_ms - RENEWAL_MS  # as processes do, at once

    def _after(self, then: Callable[[], None]) -> None:
        if self.latency_ms:
            self._due.append((self.now_ms + self.latency_ms, then))
        else:
            then()

    def spend(self, name: int, size: float) -> int:
        self.spent[name] += size
        return self.holdings[name].spend(size, self.now_ms)

    def run(self, until_ms: int, clients: list[Client] = []) -> None:  # noqa: B006
        while self.now_ms < until_ms:
            self.now_ms = min(until_ms, max(self.now_ms + 1, self._next_ms(clients)))
            due, self._due = self._due, []
            for at_ms, then in due:
                if at_ms <= self.now_ms:
                    then()
                else:
                    self._due.append((at_ms, then))
            for name in sorted(self._borrowing):
                if self.now_ms - self._asked_ms[name] >= RENEWAL_MS:
                    self.ask(name)
            for client in clients:
                client.go_on(self)

    def _next_ms(self, clients: list[Client]) -> int:
        renewals = [self._asked_ms[name] + RENEWAL_MS for name in self._borrowing]
        return min([1 << 40, *(at_ms for at_ms, _ in self._due), *renewals, *(each.next_ms for each in clients)])


class Client:
    """Sends requests of one size to one process of a broker, as fast as it may, from a time to another."""

    def __init__(self, process: int, size: float, from_ms: int = 0, until_ms: int = 1 << 40) -> None:
        self.process = process
        self.size = size
        self.next_ms = from_ms
        self.until_ms = until_ms

    def go_on(self, broker: Broker) -> None:
        if self.next_ms <= broker.now_ms < self.until_ms:
            self.next_ms = broker.now_ms + max(1, broker.spend(self.process, self.size))
        elif broker.now_ms >= self.until_ms:
            self.next_ms = 1 << 40


def shared(processes: int, *, latency_ms: int = 0, limit: float = LIMIT) -> Broker:
    broker = Broker(processes, latency_ms=latency_ms, limit=limit)
    broker.pool = Pool(limit, BURST_S, 0)
    return broker


asks = st.builds(
    asked,
    level=st.floats(-2_000, 2_000),
    spent=st.floats(0, 2_000),
    reserve=st.sampled_from([0.0, 500.0]),
    is_hungry=st.booleans(),
    has_lease=st.booleans(),
)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 4), asks, st.integers(0, 600)), max_size=40))
def test_the_leases_that_live_are_never_above_the_quota(steps: list[tuple[int, LeaseAsk, int]]) -> None:
    pool, now_ms = Pool(LIMIT, BURST_S, 0), 0
    for name, ask, pause_ms in steps:
        now_ms += pause_ms
        lease = pool.ask(name, ask, now_ms)
        assert lease.rate >= 0 and pool.level >= 0
        assert pool.lent(now_ms) <= LIMIT * (1 + 1e-9)
        assert 0 <= lease.free <= LIMIT


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 400)), min_size=1, max_size=6),
    st.integers(0, 20),
)
def test_processes_together_spend_no_more_than_the_quota(streams: list[tuple[int, int]], latency_ms: int) -> None:
    """Beyond it: what a full pool has, one request of each client, and what is spent while an answer is out."""
    broker = shared(3, latency_ms=latency_ms)
    clients = [Client(process, size) for process, size in streams]
    broker.run(6_000, clients)
    waiting = sum(client.size for client in clients) * (2 + 4 * latency_ms)
    assert sum(broker.spent) <= LIMIT * (6 + BURST_S) + waiting + LIMIT * LEASE_MS / 1_000
    assert broker.lent_most <= LIMIT * (1 + 1e-9)


@pytest.mark.parametrize("hosts", [1, 2, 4])
@pytest.mark.parametrize("latency_ms", [0, 3])
def test_a_client_of_several_processes_has_its_quota_once(hosts: int, latency_ms: int) -> None:
    """Over five seconds behind the first burst. Where each process counted alone it had as many quotas as hosts."""
    limit = 100_000.0
    broker = shared(hosts, latency_ms=latency_ms, limit=limit)
    clients = [Client(process, 2_000) for process in range(hosts) for _ in range(2)]
    broker.run(3_000, clients)
    before = list(broker.spent)
    broker.run(8_000, clients)
    spent = [now - then for now, then in zip(broker.spent, before, strict=True)]
    assert sum(spent) / 5 == pytest.approx(limit, rel=0.1)
    assert min(spent) >= 0.7 * max(spent)

    alone = 0.0
    for _ in range(hosts):
        rate, now_ms = Rate(2, 1_000), 0
        while now_ms < 8_000:
            rate.record(2_000, now_ms)
            alone += 2_000
            now_ms += max(1, rate.throttle_ms(limit, now_ms))
    assert alone / 8 >= 0.95 * hosts * limit


def test_who_asks_alone_gets_all_within_a_second() -> None:
    broker = shared(3)
    others = [Client(process, 20, until_ms=3_000) for process in (0, 1)]
    mover = [Client(2, 20, from_ms=3_000), Client(2, 20, from_ms=3_000)]
    broker.run(3_000, [*others, *mover])
    assert broker.holdings[0].rate(3_000) == pytest.approx(LIMIT / 2, rel=0.01)
    broker.run(4_000, [*others, *mover])
    assert broker.holdings[2].rate(4_000) == pytest.approx(LIMIT)
    before = broker.spent[2]
    broker.run(7_000, mover)
    assert broker.spent[2] - before == pytest.approx(3 * LIMIT, rel=0.1)


def test_a_little_is_lent_to_who_spends_little() -> None:
    broker = shared(2)

    class Slow(Client):
        def go_on(self, broker: Broker) -> None:
            if broker.now_ms >= self.next_ms:
                self.next_ms += 100
                delay_ms = broker.spend(self.process, self.size)
                assert delay_ms == 0 or broker.now_ms < 1_000, "it stays below an even part"

    broker.run(2_000, [Client(0, 50), Client(0, 50), Slow(1, 10)])
    before = broker.spent[0]
    broker.run(6_000, [Client(0, 50), Slow(1, 10, from_ms=2_000)])
    assert (broker.spent[0] - before) / 4 == pytest.approx(LIMIT - 100, rel=0.15)
    assert broker.spent[1] == pytest.approx(600, abs=30)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 300), min_size=2, max_size=4), st.integers(0, 10))
def test_nobody_starves(sizes: list[int], latency_ms: int) -> None:
    broker = shared(len(sizes), latency_ms=latency_ms)
    broker.run(10_000, [Client(process, size) for process, size in enumerate(sizes)])
    for spent in broker.spent:
        assert spent >= 0.5 * LIMIT * 8 / len(sizes)


def test_a_burst_is_the_clients_wherever_it_goes() -> None:
    """What a full pool has may be sent at once, to one process, or to several once they are known."""
    alone = shared(2)
    assert alone.spend(0, 750) == 0 and alone.spend(0, 250) == 0 and alone.spend(0, 100) == 100
    both = shared(2)
    assert both.spend(0, 1) == 0 and both.spend(1, 1) > 0
    both.run(2 * RENEWAL_MS)
    delays = [both.spend(count % 2, 100) for count in range(12)]
    assert delays[:8] == [0] * 8 and delays[-1] > 0 and delays[-2] > 0


def test_a_client_that_waits_for_much_gets_it_beside_one_that_takes_little_at_a_time() -> None:
    broker = shared(2)
    got = []

    class Fetcher(Client):
        def go_on(self, broker: Broker) -> None:
            if self.next_ms <= broker.now_ms:
                delay_ms = broker.holdings[self.process].spend(self.size, broker.now_ms)
                if delay_ms:
                    broker.holdings[self.process].take_back(self.size, broker.now_ms)
                else:
                    broker.spent[self.process] += self.size
                    got.append(broker.now_ms)
                self.next_ms = broker.now_ms + max(1, delay_ms)

    broker.run(20_000, [Client(0, 10), Client(0, 10), Fetcher(1, 2_000)])
    assert len(got) >= 4
    assert sum(broker.spent) <= LIMIT * (20 + BURST_S) + 2_000 + LIMIT


def test_a_lease_ends_with_its_use_and_the_pool_has_the_rest() -> None:
    pool, holding = Pool(LIMIT, BURST_S, 0), None

    def want() -> None:
        assert holding is not None
        holding.lend(pool.ask(0, holding.ask(KEY, CLIENT, 0), 0), 0)

    holding = Holding(LIMIT, 1, want, 0)
    assert holding.spend(100, 0) == 0 and holding.rate(0) == LIMIT
    for now_ms in range(RENEWAL_MS, IDLE_MS + RENEWAL_MS, RENEWAL_MS):
        assert holding.rate(now_ms) > 0 or now_ms > RENEWAL_MS
        lease = pool.ask(0, holding.ask(KEY, CLIENT, now_ms), now_ms)
        holding.lend(lease, now_ms)
    assert lease.is_over and holding.rate(IDLE_MS) == 0 and holding.level == 0
    assert pool.level == LIMIT * BURST_S, "it has filled again"


@settings(max_examples=50)
@given(st.integers(1, 5), st.integers(2_000, 5_000))
def test_without_a_lender_each_goes_on_with_a_safe_share(processes: int, dies_ms: int) -> None:
    broker = shared(processes)
    clients = [Client(process, 10) for process in range(processes)]
    broker.run(dies_ms, clients)
    broker.pool = None
    before = sum(broker.spent)
    broker.run(dies_ms + LEASE_MS, clients)
    assert sum(broker.spent) - before == pytest.approx(LIMIT, rel=0.15), "the last leases last for so long"
    before = sum(broker.spent)
    broker.run(dies_ms + LEASE_MS + 5_000, clients)
    assert sum(broker.spent) - before == pytest.approx(5 * LIMIT, rel=0.15)
    assert all(holding.rate(broker.now_ms) == 0 for holding in broker.holdings)


def test_who_has_all_the_traffic_has_a_share_when_the_lender_is_dead() -> None:
    broker = shared(4)
    clients = [Client(0, 10)]
    broker.run(3_000, clients)
    broker.pool = None
    broker.run(3_000 + LEASE_MS, clients)
    before = broker.spent[0]
    broker.run(8_000, clients)
    assert broker.spent[0] - before == pytest.approx(LIMIT, rel=0.1), "a quarter, for four seconds"


@settings(max_examples=50)
@given(st.integers(2_000, 4_000), st.integers(0, 3_000))
def test_another_lender_begins_with_nothing_to_give(dies_ms: int, away_ms: int) -> None:
    broker = shared(3)
    clients = [Client(process, 20) for process in range(3)]
    broker.run(dies_ms, clients)
    before = sum(broker.spent)
    broker.pool = None
    broker.run(dies_ms + away_ms, clients)
    broker.pool = Pool(LIMIT, BURST_S, broker.now_ms, is_full=False)
    broker.run(dies_ms + away_ms + 4_000, clients)
    most = LIMIT * (away_ms + 4_000 + LEASE_MS) / 1_000 + 3 * 20
    assert 0.8 * LIMIT * (away_ms + 4_000) / 1_000 <= sum(broker.spent) - before <= most


@settings(max_examples=50)
@given(st.lists(st.booleans(), min_size=1, max_size=50))
def test_messages_that_are_lost_cost_no_more_than_a_lease(losses: list[bool]) -> None:
    broker = shared(2)
    left = list(losses)
    broker.is_lost = lambda: bool(left) and left.pop()
    broker.run(10_000, [Client(0, 20), Client(1, 20)])
    assert sum(broker.spent) <= LIMIT * (10 + BURST_S + LEASE_MS / 1_000) + 2 * 20 + 2 * 20 * 100


def test_a_process_that_dies_leaves_its_part_after_a_lease() -> None:
    pool = Pool(LIMIT, BURST_S, 0)
    for now_ms in range(0, LEASE_MS + 1, RENEWAL_MS):
        for name in (0, 1):
            pool.ask(name, asked(is_hungry=True), now_ms)
    assert pool.ask(0, asked(is_hungry=True), LEASE_MS).rate == LIMIT / 2
    now_ms = 2 * LEASE_MS - 1
    assert pool.ask(0, asked(is_hungry=True), now_ms).rate == LIMIT / 2
    now_ms += 1
    assert pool.ask(0, asked(is_hungry=True), now_ms).rate == LIMIT


def test_what_was_saved_by_a_higher_quota_is_not_spent_by_a_lower_one() -> None:
    broker = shared(1)
    holding = broker.holdings[0]
    assert broker.spend(0, LIMIT / 10) == 0 and holding.level == pytest.approx(0.9 * LIMIT)
    holding.limit_to(LIMIT / 10)
    assert holding.level == pytest.approx(0.09 * LIMIT) and holding.rate(0) == LIMIT / 10
    holding.limit_to(LIMIT)
    assert holding.level == pytest.approx(0.09 * LIMIT)
    holding.level = -LIMIT
    holding.limit_to(LIMIT / 10)
    assert holding.level == -LIMIT, "a debt is not forgiven"


def test_an_ask_and_a_lease_of_a_user_read_as_older_processes_wrote_them() -> None:
    for kind in (LeaseAsk, QuotaLease):
        plain = values.to_plain(kind(KEY, CLIENT, user="alice"))
        assert values.from_plain(kind, plain).user == "alice"
        del plain["user"]
        assert values.from_plain(kind, plain) == kind(KEY, CLIENT)
    lease = Pool(LIMIT, BURST_S, 0).ask(0, LeaseAsk(KEY, CLIENT, spent=1, user="alice"), 0)
    assert lease.user == "alice"


def test_a_lower_quota_holds_after_a_lease() -> None:
    pool = Pool(LIMIT, BURST_S, 0)
    for name in range(3):
        pool.ask(name, asked(is_hungry=True), 0)
    pool.limit = LIMIT / 10
    for now_ms in range(RENEWAL_MS, LEASE_MS + 1, RENEWAL_MS):
        for name in range(3):
            pool.ask(name, asked(is_hungry=True), now_ms)
    assert pool.lent(LEASE_MS) <= LIMIT / 10 * (1 + 1e-9)
    assert pool.level <= LIMIT / 10 * BURST_S


def test_the_burst_is_that_of_rates() -> None:
    assert Pool(LIMIT, burst_of(1), 0).level == burst_of(LIMIT)
