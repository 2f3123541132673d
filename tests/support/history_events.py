"""Short words for histories that are written by hand."""

from __future__ import annotations

from raylog.histories import Action, EventType, OperationEvent, Poll, Send
from raylog.types import TopicPartition

P = TopicPartition("t", 0)
Q = TopicPartition("t", 1)


def ok(process: str, *actions: Action) -> OperationEvent:
    return OperationEvent(process, EventType.OK, actions)


def fail(process: str, *actions: Action) -> OperationEvent:
    return OperationEvent(process, EventType.FAIL, actions)


def info(process: str, *actions: Action) -> OperationEvent:
    return OperationEvent(process, EventType.INFO, actions)


def invoke(process: str, *actions: Action) -> OperationEvent:
    return OperationEvent(process, EventType.INVOKE, actions)


def send(value: str, offset: int | None = None, partition: TopicPartition = P) -> Send:
    return Send(partition, value, offset)


def poll(*records: tuple[int, str], partition: TopicPartition = P) -> Poll:
    return Poll({partition: records})
