"""A process that copies records from one topic to another in transactions, as the copier of Kafka's transactions system test.

``python transactional_copier.py SETTINGS``, the fields of ``CopierSettings`` in JSON. It is a member of a group that reads the
input. A record goes to the partition of the output that it had in the input, and the name of the transaction that copied it is
added to its value: so an aborted copy is told from the one that replaced it.

It says on stdout what it does, one JSON list a line:

    ["begin", name]            a transaction has begun
    ["send", [[p, value], …]]  these records are about to be sent
    ["end"]                    the transaction is about to be committed
    ["committed", [offset, …]] it is committed; where the records are, in the order in which they were sent
    ["aborted", why]           it is aborted
    ["renewed", why]           its producer has ended for good, and there is a new one

It ends when its stdin does, and by itself when librdkafka hangs: 2.16 never asks again for a group's coordinator that has been away
from Metadata (librdkafka #5511), forgets the timeout that it was given meanwhile (#5456), and such a producer cannot even be closed.
Where it may be killed: anywhere.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

CALL_S = 30.0
GIVE_UP_S = 240.0
HANGS_S = 60.0  # no fault lasts so long
POLLED_AT_ONCE = 75


@dataclass(frozen=True, slots=True)
class CopierSettings:
    bootstrap: str
    transactional_id: str
    input: str
    output: str
    records: int  # of a transaction
    transaction_timeout_ms: int
    session_timeout_ms: int


class Rebalanced(Exception):
    """The group has other owners of partitions: what was read may be another's by now."""


def say(*told: object) -> None:
    print(json.dumps(told), flush=True)


def persist(call: Callable[..., None], *arguments: object) -> None:
    """Call it again for as long as its error says that this is allowed. Ends the process if that takes too long."""
    watchdog = threading.Timer(HANGS_S, end_as_it_hangs, (call.__name__,))
    watchdog.daemon = True
    watchdog.start()
    try:
        while True:
            try:
                return call(*arguments, CALL_S)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
    finally:
        watchdog.cancel()


def end_as_it_hangs(name: str) -> None:
    print(f"{name} hangs", file=sys.stderr, flush=True)
    os._exit(1)


class TransactionalCopier:
    def __init__(self, settings: CopierSettings) -> None:
        self.settings = settings
        self.run = uuid.uuid4().hex[:6]  # a copier that is started again gives its transactions other names
        self.transactions = 0
        self.rebalanced = False
        self.producer = self._new_producer()
        self.consumer = Consumer(
            {
                "bootstrap.servers": settings.bootstrap,
                "group.id": f"copiers of {settings.input}",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": settings.session_timeout_ms,
                "heartbeat.interval.ms": settings.session_timeout_ms // 6,
                "log_level": 0,
            }
        )
        self.consumer.subscribe(
            [settings.input], on_assign=self._rebalances, on_revoke=self._rebalances, on_lost=self._rebalances
        )

    def _rebalances(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.rebalanced = True

    def _new_producer(self) -> Producer:
        settings = self.settings
        producer = Producer(
            {
                "bootstrap.servers": settings.bootstrap,
                "transactional.id": settings.transactional_id,
                "transaction.timeout.ms": settings.transaction_timeout_ms,
                "linger.ms": 1,
                "log_level": 0,
            }
        )
        persist(producer.init_transactions)
        return producer

    def copy(self) -> None:
        """One transaction, if there is anything to copy."""
        messages = self._poll()
        if self.rebalanced:
            self._rewind()
        elif messages:
            try:
                self._transact(messages)
            except (KafkaException, Rebalanced) as error:
                self._abort(error)
                self._rewind()

    def _transact(self, messages: list[Any]) -> None:
        self.transactions += 1
        name = f"{self.settings.transactional_id}/{self.run}/{self.transactions}"
        self.producer.begin_transaction()
        say("begin", name)
        offsets: list[int] = []
        ends: dict[int, int] = {}
        left = self.settings.records
        while messages:
            copies = [(each.partition(), f"{each.value().decode()} {name}") for each in messages]
            say("send", copies)
            for message, (partition, value) in zip(messages, copies, strict=True):
                self._send(partition, value, offsets)
                ends[partition] = message.offset() + 1
            left -= len(messages)
            messages = self._poll(left) if left else []
            if self.rebalanced:
                raise Rebalanced
        positions = [TopicPartition(self.settings.input, partition, end) for partition, end in ends.items()]
        persist(self.producer.send_offsets_to_transaction, positions, self.consumer.consumer_group_metadata())
        self.producer.flush(CALL_S)
        say("end")
        persist(self.producer.commit_transaction)
        say("committed", offsets)

    def _send(self, partition: int, value: str, offsets: list[int]) -> None:
        index = len(offsets)
        offsets.append(-1)

        def delivered(error: object, message: Any) -> None:
            if error is None:
                offsets[index] = message.offset()

        self.producer.produce(self.settings.output, value, partition=partition, on_delivery=delivered)
        self.producer.poll(0)

    def _poll(self, most: int = POLLED_AT_ONCE) -> list[Any]:
        found = self.consumer.consume(min(most, POLLED_AT_ONCE), 0.5)
        return [each for each in found if each.error() is None]

    def _abort(self, reason: Exception) -> None:
        why = f"{type(reason).__name__} {reason}"
        if not (isinstance(reason, KafkaException) and reason.args[0].fatal()):
            try:
                self.producer.flush(CALL_S)  # librdkafka ends for good at an abort before the first partition (#4849)
                persist(self.producer.abort_transaction)
                say("aborted", why)
                return
            except KafkaException as error:
                why = f"{why}, then {error}"
        self.producer = self._new_producer()
        say("renewed", why)

    def _rewind(self) -> None:
        """Go on where the group has committed; it may still be deciding where that is."""
        deadline = time.monotonic() + GIVE_UP_S
        while True:
            self.rebalanced = False
            try:
                found = self.consumer.committed(self.consumer.assignment(), CALL_S)
                break
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
        self.consumer.assign(
            [
                TopicPartition(each.topic, each.partition, each.offset if each.offset >= 0 else OFFSET_BEGINNING)
                for each in found
            ]
        )


def end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    threading.Thread(target=end_with_stdin, daemon=True).start()
    copier = TransactionalCopier(CopierSettings(**json.loads(sys.argv[1])))
    while True:
        copier.copy()


if __name__ == "__main__":
    main()
