"""What the production clients are promised, by what they were told: the checker of
``simulated_clients``.

A writer: an acknowledged record is in the log, at the offset that the acknowledgement named, once;
records of one writer and partition are there in the order of their sending; one that failed may be
there, once at most.

A reader: it gets every committed record once, in order and without a gap, and nothing that later
vanishes.

A group: a member is given records of its own partitions only. It begins no later than where the
group's work has come to, and no earlier than the highest offset whose commit was acknowledged
before the partition was its own. It commits what it was given and nothing beyond. In one generation
a partition has one owner, and a member whose generation is over when it sends a commit is refused.

An unclean election (``History.generation``) may lose what was committed; from then on nothing is
claimed for that partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from raylog.log.log import Log
from raylog.records.codec import light_records
from raylog.simulator.checkers import Checkers, History, Violation, read_batches
from raylog.types import TopicIdPartition


@dataclass(slots=True)
class Sent:
    """What became of one writer's records for one partition, by their numbers."""

    acknowledged: dict[int, int] = field(default_factory=dict)  # number → offset; −1: the leader has forgotten it
    count: int = 0


class ClientChecker:
    def __init__(self, checkers: Checkers, counts: Counter[str]) -> None:
        self._checkers = checkers
        self._counts = counts
        self.sent: dict[tuple[str, int], Sent] = {}  # by writer and partition
        self._seen: dict[int, dict[int, bytes]] = {}  # by partition: offset → value, whoever saw it
        self.done_end: dict[int, int] = {}  # by partition: the group has worked on everything below
        self.committed: dict[int, int] = {}  # by partition: the highest offset whose commit was acknowledged
        self.newest_generation = -1  # of the group, as any member was told
        self._owners: dict[tuple[int, int], str] = {}  # by generation and partition

    # ---------------------------------------------------------------- writers

    def acknowledged(self, id: TopicIdPartition, writer: str, number: int, offset: int) -> None:
        history = self._checkers.history(id)
        self._counts["acknowledged by the client"] += 1
        self.sent[writer, id.partition].acknowledged[number] = offset
        if history.generation:
            return
        if offset >= history.end:
            raise history.fail(f"{writer}'s record {number} was acknowledged at {offset}: {history.end} is committed")

    # ---------------------------------------------------------------- readers

    def read(self, id: TopicIdPartition, reader: str, expected: int, offset: int, value: bytes) -> None:
        """A reader was given a record where it awaited the one at ``expected``."""
        history = self._checkers.history(id)
        self._counts["records read by clients"] += 1
        if history.generation:
            return
        if offset != expected:
            raise history.fail(f"{reader} was given offset {offset} where {expected} was to come")
        if offset >= history.end:
            raise history.fail(f"{reader} was given offset {offset}: {history.end} is committed")
        known = self._seen.setdefault(id.partition, {}).setdefault(offset, value)
        if known != value:
            raise history.fail(f"{reader} was given {value!r} at {offset}, where {known!r} was")

    # ---------------------------------------------------------------- the group

    def assigned(self, member: str, generation: int, partitions: Iterable[int]) -> None:
        """All that a member has in a generation, as it was told when it was given more."""
        if generation > self.newest_generation:
            self.newest_generation = generation
            self._counts["generations of clients"] += 1
        for partition in partitions:
            owner = self._owners.setdefault((generation, partition), member)
            if owner != member and not self._group_is_void():
                raise Violation(f"partition {partition} is {owner}'s and {member}'s in generation {generation}")

    def taken_over(self, id: TopicIdPartition, member: str, offset: int, floor: int | None) -> None:
        """The first record of a partition that a member has; ``floor`` was committed before. None:
        it was not assigned.
        """
        history = self._checkers.history(id)
        self._counts["partitions taken over"] += 1
        if floor is None:
            raise history.fail(f"{member} was given offset {offset} of a partition that it does not have")
        if not self._is_void(history) and offset < floor:
            raise history.fail(f"{member} begins at {offset}: {floor} was committed")

    def worked_on(self, id: TopicIdPartition, member: str, offset: int) -> None:
        history = self._checkers.history(id)
        done = self.done_end.get(id.partition, 0)
        if offset > done and not self._is_void(history):
            raise history.fail(f"{member} was given offset {offset}: the group has worked on what is below {done}")
        self.done_end[id.partition] = max(done, offset + 1)

    def commit_acknowledged(
        self, member: str, generation: int, newest_generation: int, offsets: dict[TopicIdPartition, int]
    ) -> None:
        """Sent by a member of ``generation`` when ``newest_generation`` had been told to somebody."""
        self._counts["commits of clients acknowledged"] += 1
        if 0 <= generation < newest_generation and not self._group_is_void():
            raise Violation(f"{member} commits in generation {generation}, after {newest_generation} had begun")
        for id, offset in offsets.items():
            history = self._checkers.history(id)
            done = self.done_end.get(id.partition, 0)
            if offset > done and not self._is_void(history):
                raise history.fail(f"{member} has committed {offset}: the group has worked on what is below {done}")
            self.committed[id.partition] = max(self.committed.get(id.partition, 0), offset)

    def group_behind(self, ends: dict[int, int]) -> str | None:
        for partition, end in ends.items():
            if (done := self.done_end.get(partition, 0)) < end:
                return f"it has worked on {done} of {end} records of partition {partition}"
        return None

    def _is_void(self, history: History) -> bool:
        """Whether records, or commits, may be lost."""
        return history.generation > 0 or self._group_is_void()

    def _group_is_void(self) -> bool:
        """Whether an unclean election of a coordinator may have lost what it knew."""
        return any(each.generation and each.compacts for each in self._checkers.histories.values())

    # ---------------------------------------------------------------- the end

    def compare(self, id: TopicIdPartition, log: Log) -> None:
        """With the records themselves, as the last leader has them."""
        history = self._checkers.history(id)
        self._counts["partitions without an unclean election"] += not history.generation
        if history.generation:
            return
        found: dict[tuple[str, int], list[int]] = {}
        values: dict[int, bytes] = {}
        for view in read_batches(log, log.log_start_offset, log.high_watermark):
            for record in light_records(view):
                assert record.value is not None, record
                name, number_text, _ = record.value.split(b":", 2)
                found.setdefault((name.decode(), int(number_text)), []).append(record.offset)
                values[record.offset] = record.value
        for (writer, number), offsets in found.items():
            if len(offsets) > 1:
                raise history.fail(f"{writer}'s record {number} is there twice, at {offsets}")
        for (writer, partition), sent in self.sent.items():
            if partition == id.partition:
                self._sent_arrived(history, writer, sent, found)
        for offset, value in self._seen.get(id.partition, {}).items():
            if values.get(offset) != value:
                raise history.fail(f"a reader was given {value!r} at {offset}, where {values.get(offset)!r} is now")

    def _sent_arrived(self, history: History, writer: str, sent: Sent, found: dict[tuple[str, int], list[int]]) -> None:
        for number, offset in sent.acknowledged.items():
            places = found.get((writer, number), [])
            if not places or (offset >= 0 and places != [offset]):
                raise history.fail(f"{writer}'s record {number} was acknowledged at {offset} and is at {places}")
        in_order = [found[writer, number][0] for number in range(sent.count) if (writer, number) in found]
        if in_order != sorted(in_order):
            raise history.fail(f"{writer}'s records are out of order: {in_order}")
