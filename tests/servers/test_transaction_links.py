"""What leaders ask transaction coordinators: together, one request at a time to each, and each question is answered once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.add_partitions_to_txn.v5 import response as answers
from kio.schema.errors import ErrorCode

from raylog.offsets_topic import partition_for
from raylog.replication.transaction_events import TransactionMembership, TransactionVerified, VerifyTransaction
from raylog.server import transaction_links
from raylog.server.transaction_links import TransactionLinks

NONE = ErrorCode.none
Judge = Callable[[str, str, int], ErrorCode]


class Coordinator:
    """Answers what it is asked, when the test lets it. ``whole``: the error of the request, if it has one."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.whole = 0
        self.requests: list[Any] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def ask(self, body: Any, *, timeout_ms: float) -> tuple[int, Any]:
        self.requests.append(body)
        await self.gate.wait()
        if self.whole:
            return self.whole, None
        results = tuple(
            answers.AddPartitionsToTxnResult(
                transactional_id=each.transactional_id,
                topic_results=tuple(
                    answers.AddPartitionsToTxnTopicResult(
                        name=topic.name,
                        results_by_partition=tuple(
                            answers.AddPartitionsToTxnPartitionResult(
                                partition_index=number,
                                partition_error_code=self.judge(each.transactional_id, topic.name, number),
                            )
                            for number in topic.partitions
                        ),
                    )
                    for topic in each.topics
                ),
            )
            for each in body.transactions
        )
        return 0, answers.AddPartitionsToTxnResponse(
            throttle_time=0,
            error_code=NONE,
            results_by_transaction=results,  # type: ignore[arg-type]
        )


class Bench:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, judge: Judge = lambda *_: NONE) -> None:
        self.answered: list[tuple[int, int]] = []
        self.coordinator = Coordinator(judge)
        self.asked_of: list[int] = []
        self.links = TransactionLinks(None, lambda: None, self._heard)  # type: ignore[arg-type]

        def coordinator_of(links: TransactionLinks, partition: int) -> Coordinator:
            self.asked_of.append(partition)
            return self.coordinator

        monkeypatch.setattr(TransactionLinks, "_coordinator", coordinator_of)
        self._questions = 0

    def _heard(self, event: TransactionVerified) -> None:
        self.answered.append((event.question, event.error))

    def ask(
        self, transactional_id: str = "t", topic: str = "a", partition: int = 0, *, producer: int = 1, adds: bool = True
    ) -> int:
        self._questions += 1
        membership = TransactionMembership(transactional_id, adds=adds)
        self.links.ask(VerifyTransaction(self._questions, topic, partition, membership, producer, 0))
        return self._questions

    async def until(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.answered) < count:
                await asyncio.sleep(0.001)

    def named(self, number: int) -> list[tuple[str, bool, list[tuple[str, tuple[int, ...]]]]]:
        body = self.coordinator.requests[number]
        return [
            (each.transactional_id, each.verify_only, [(topic.name, topic.partitions) for topic in each.topics])
            for each in body.transactions
        ]


def test_what_comes_while_a_request_is_under_way_goes_together_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        bench = Bench(monkeypatch, lambda _, topic, number: ErrorCode.transaction_abortable if number == 3 else NONE)
        bench.coordinator.gate.clear()
        same = [f"t{number}" for number in range(400) if partition_for(f"t{number}") == partition_for("t1")][:2]
        bench.ask(same[0])
        while not bench.coordinator.requests:
            await asyncio.sleep(0)
        bench.ask(same[0], "a", 3)
        bench.ask(same[0], "b", 1)
        bench.ask(same[1], "a", 3, adds=False)
        bench.ask(same[0], "a", 3)
        for _ in range(20):  # turns of the loop, in which nothing more is asked
            await asyncio.sleep(0)
        assert len(bench.coordinator.requests) == 1
        bench.coordinator.gate.set()
        await bench.until(5)
        abortable = ErrorCode.transaction_abortable.value
        assert sorted(bench.answered) == [(1, 0), (2, abortable), (3, 0), (4, abortable), (5, abortable)]
        assert bench.named(1) == [(same[0], False, [("a", (3,)), ("b", (1,))]), (same[1], True, [("a", (3,))])]
        assert set(bench.asked_of) == {partition_for(same[0])}

    asyncio.run(work())


def test_a_request_names_a_transactional_id_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        bench = Bench(monkeypatch)
        bench.ask(producer=1)
        bench.ask(producer=2)
        bench.ask(producer=1, partition=5, adds=False)
        await bench.until(3)
        assert [bench.named(number) for number in range(3)] == [
            [("t", False, [("a", (0,))])],
            [("t", False, [("a", (0,))])],
            [("t", True, [("a", (5,))])],
        ]

    asyncio.run(work())


@pytest.mark.parametrize("error", [ErrorCode.concurrent_transactions, ErrorCode.not_coordinator])
def test_a_coordinator_that_is_just_busy_is_asked_again(monkeypatch: pytest.MonkeyPatch, error: ErrorCode) -> None:
    async def work() -> None:
        bench = Bench(monkeypatch)
        bench.coordinator.judge = lambda *_: error if len(bench.coordinator.requests) < 3 else NONE
        bench.ask()
        await bench.until(1)
        assert bench.answered == [(1, 0)] and len(bench.coordinator.requests) == 3

    asyncio.run(work())


@pytest.mark.parametrize(
    ("error", "told"),
    [(0, ErrorCode.concurrent_transactions), (ErrorCode.network_exception, ErrorCode.network_exception)],
)
def test_the_last_error_is_the_answer_in_the_end(monkeypatch: pytest.MonkeyPatch, error: int, told: ErrorCode) -> None:
    async def work() -> None:
        monkeypatch.setitem(transaction_links.RETRIES_MS, ErrorCode.concurrent_transactions.value, 50)
        bench = Bench(monkeypatch, lambda *_: ErrorCode.concurrent_transactions)
        bench.coordinator.whole = int(error)
        bench.ask()
        await bench.until(1)
        assert bench.answered == [(1, told.value)]
        assert (len(bench.coordinator.requests) > 1) == (error == 0)

    asyncio.run(work())


def test_a_partition_that_the_answer_leaves_out_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        bench = Bench(monkeypatch)

        async def silent(body: Any, *, timeout_ms: float) -> tuple[int, Any]:
            empty = answers.AddPartitionsToTxnResponse(throttle_time=0, error_code=NONE, results_by_transaction=())  # type: ignore[arg-type]
            return 0, empty

        monkeypatch.setattr(bench.coordinator, "ask", silent)
        bench.ask()
        await bench.until(1)
        assert bench.answered == [(1, ErrorCode.network_exception.value)]

    asyncio.run(work())
