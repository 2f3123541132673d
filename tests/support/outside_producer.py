"""A producer with a transactional id that speaks to a listener, byte for byte as a test wants it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode
from outside import Client, Pending, milliseconds, request
from raw_requests import eventually

Open = Callable[..., Client]
NONE = ErrorCode.none


class Producer:
    """A client that speaks to the coordinator of its id."""

    def __init__(self, open_: Open, transactional_id: str) -> None:
        self.id = transactional_id
        self.producer_id = self.epoch = -1
        found = open_().ask(request(10, 4, key_type=1, coordinator_keys=(transactional_id,))).coordinators[0]
        assert found.error_code is NONE, found
        self.client = open_(found.node_id)

    def ask(self, key: int, version: int, **values: Any) -> Any:
        return self.client.ask(request(key, version, **values))

    def init(self, version: int = 4, timeout_ms: int = 60_000, **values: Any) -> Any:
        if version >= 3:
            values = {"producer_id": -1, "producer_epoch": -1} | values
        reply = self.ask(22, version, transactional_id=self.id, transaction_timeout=milliseconds(timeout_ms), **values)
        if reply.error_code is NONE:
            self.producer_id, self.epoch = reply.producer_id, reply.producer_epoch
        return reply

    def initialised(self) -> None:
        eventually(lambda: self.init().error_code is NONE, "an id that can be used")

    def add(self, topic: str, *numbers: int, version: int = 3, epoch: int | None = None) -> dict[int, ErrorCode]:
        reply = self.ask(
            24,
            version,
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch if epoch is None else epoch,
            v3_and_below_topics=lambda module: (module.AddPartitionsToTxnTopic(name=topic, partitions=numbers),),
        )
        (found,) = reply.results_by_topic_v3_and_below
        return {each.partition_index: each.partition_error_code for each in found.results_by_partition}

    def add_as_leader(self, topic: str, *numbers: int, version: int = 5, verify_only: bool = False) -> list[ErrorCode]:
        reply = self.ask(
            24,
            version,
            transactions=lambda module: (
                module.AddPartitionsToTxnTransaction(
                    transactional_id=self.id,
                    producer_id=self.producer_id,
                    producer_epoch=self.epoch,
                    verify_only=verify_only,
                    topics=(module.AddPartitionsToTxnTopic(name=topic, partitions=numbers),),
                ),
            ),
        )
        (transaction,) = reply.results_by_transaction
        assert transaction.transactional_id == self.id
        return [each.partition_error_code for each in transaction.topic_results[0].results_by_partition]

    def end(self, version: int = 4, *, commits: bool = True, epoch: int | None = None) -> Any:
        return self.send_end(version, commits=commits, epoch=epoch).result()

    def send_end(self, version: int = 4, *, commits: bool = True, epoch: int | None = None) -> Pending:
        """Without waiting for the answer."""
        ending = request(
            26,
            version,
            transactional_id=self.id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            committed=commits,
        )
        return self.client.send(ending)

    def state(self) -> Any:
        (found,) = self.ask(65, 0, transactional_ids=(self.id,)).transaction_states
        return found
