"""A second kind of coordinator: counters on a topic of their own. What it takes is all here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raylog.coordination.context import CoordinatorContext
from raylog.coordination.machine import CoordinatorMachine, Decided


@dataclass(frozen=True, slots=True)
class Add:
    name: str


@dataclass(frozen=True, slots=True)
class Counted:
    error: int
    value: int = -1


@dataclass(frozen=True, slots=True)
class Count:
    key: str
    value: int


class CounterMachine(CoordinatorMachine[Add, Counted, Count]):
    def __init__(self, position: int) -> None:
        self.context: CoordinatorContext[Counted, Count] = CoordinatorContext(position)
        self.values: dict[str, int] = {}

    def apply(self, record: Count) -> None:
        self.values[record.key] = record.value

    def decide(self, token: int, request: Add) -> Decided[Counted, Count]:
        pending = [each.value for each in self.context.pending_records() if each.key == request.name]
        value = max(pending, default=self.values.get(request.name, 0)) + 1
        return Decided(lambda error: Counted(error, value), (Count(request.name, value),))

    def refuse(self, request: Add, error: int) -> Counted:
        return Counted(error)


class Counters:
    topic = "__counters"

    def machine(self, position: int) -> CounterMachine:
        return CounterMachine(position)

    def encode(self, record: Count) -> tuple[bytes, bytes]:
        return record.key.encode(), b"%d" % record.value

    def decode(self, key: bytes | None, value: bytes | None) -> Count | None:
        return Count(bytes(key).decode(), int(bytes(value))) if key and value else None

    def partition_of(self, request: Add) -> int | None:
        return 0

    def wait_ms(self, request: Add) -> int | None:
        return None

    def configure(self, configs: Mapping[str, str]) -> None: ...
