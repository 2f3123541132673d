"""Offsets kept outside: results and positions go to one database in one transaction, so that each record counts exactly once.

A group shares out the partitions; where to go on is read from the database when they are assigned, and nothing is committed to the group.
Run it in several terminals, end some of them as rudely as you like: the sums come out right.

python examples/offsets_outside.py [how many records to write first]
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Sequence

import raylog

TOPIC = "payments"
ACCOUNTS = 10


class Ledger:
    """Sums by account, and how far each partition has been added up."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path, timeout=30)
        with self._database:
            self._database.execute("CREATE TABLE IF NOT EXISTS sums (account TEXT PRIMARY KEY, total INTEGER)")
            self._database.execute("CREATE TABLE IF NOT EXISTS positions (partition INTEGER PRIMARY KEY, next INTEGER)")

    def position(self, partition: int) -> int:
        found = self._database.execute("SELECT next FROM positions WHERE partition = ?", (partition,)).fetchone()
        return int(found[0]) if found else 0

    def add(self, records: Sequence[raylog.Record]) -> None:
        """All or nothing. A record that somebody else has added meanwhile, because the partition moved, is passed over."""
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            for record in records:
                if record.offset < self.position(record.partition):
                    continue
                account, amount = bytes(record.key or b"").decode(), int(record.value or b"0")
                self._database.execute(
                    "INSERT INTO sums VALUES (?, ?) ON CONFLICT (account) DO UPDATE SET total = total + excluded.total",
                    (account, amount),
                )
                self._database.execute(
                    "INSERT OR REPLACE INTO positions VALUES (?, ?)", (record.partition, record.offset + 1)
                )

    def total(self) -> int:
        return int(self._database.execute("SELECT coalesce(sum(total), 0) FROM sums").fetchone()[0])


class FromLedger(raylog.RebalanceListener):
    """Partitions go on where the ledger says."""

    def __init__(self, consumer: raylog.Consumer, ledger: Ledger) -> None:
        self._consumer = consumer
        self._ledger = ledger

    def on_assigned(self, partitions: list[raylog.TopicPartition]) -> None:
        for key in partitions:
            self._consumer.seek(key, self._ledger.position(key.partition))


def add_up(consumer: raylog.Consumer, ledger: Ledger, *, idle_polls: int) -> int:
    """Add up what comes until nothing has come for so many polls; how many records were taken."""
    consumer.subscribe(TOPIC, FromLedger(consumer, ledger))
    taken = quiet = 0
    while quiet < idle_polls:
        records = consumer.consume(500, timeout=1.0)
        quiet = 0 if records else quiet + 1
        if records:
            ledger.add(records)
            taken += len(records)
    return taken


def main(count: int) -> None:
    with raylog.init("raylog-data") as cluster:
        with cluster.admin() as admin:
            if TOPIC not in admin.list_topics():
                admin.create_topics(raylog.NewTopic(TOPIC, partitions=6, replication_factor=3))
        with cluster.producer(linger_ms=5) as producer:
            for number in range(count):
                producer.send(TOPIC, b"1", key=b"account-%d" % (number % ACCOUNTS))
        ledger = Ledger("payments.db")
        with cluster.consumer(group_id="ledger", enable_auto_commit=False) as consumer:
            taken = add_up(consumer, ledger, idle_polls=10)
        print(f"added {taken} records; the ledger says {ledger.total()}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
