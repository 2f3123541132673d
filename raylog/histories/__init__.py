"""Histories of what clients did to a log, a recorder that makes them, and the checker that says what
is wrong with them (docs/testing.md).

::

    recorder = HistoryRecorder()
    ...                                          # see ``recorder``
    verdict = check(recorder.history())
    assert verdict.holds, verdict.words()
"""

from __future__ import annotations

from raylog.histories.anomalies import Anomaly, AnomalyKind, HistoryVerdict, IsolationModel
from raylog.histories.checker import check
from raylog.histories.operations import (
    Action,
    Assign,
    Crash,
    Debug,
    EventType,
    HistoryOperation,
    LocatedRecord,
    OperationEvent,
    Poll,
    Send,
    Subscribe,
    Value,
)
from raylog.histories.recorder import HistoryRecorder, RecordedOperation, RecordedProcess, RecordedTransaction

__all__ = [
    "Action",
    "Anomaly",
    "AnomalyKind",
    "Assign",
    "Crash",
    "Debug",
    "EventType",
    "HistoryOperation",
    "HistoryRecorder",
    "HistoryVerdict",
    "IsolationModel",
    "LocatedRecord",
    "OperationEvent",
    "Poll",
    "RecordedOperation",
    "RecordedProcess",
    "RecordedTransaction",
    "Send",
    "Subscribe",
    "Value",
    "check",
]
