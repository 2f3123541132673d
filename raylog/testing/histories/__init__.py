"""Histories of what clients did to a log, and the checker that says what is wrong with them."""

from __future__ import annotations

from raylog.testing.histories.anomalies import Anomaly, AnomalyKind, HistoryVerdict, IsolationModel
from raylog.testing.histories.checker import check
from raylog.testing.histories.operations import (
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

__all__ = [
    "Action",
    "Anomaly",
    "AnomalyKind",
    "Assign",
    "Crash",
    "Debug",
    "EventType",
    "HistoryOperation",
    "HistoryVerdict",
    "IsolationModel",
    "LocatedRecord",
    "OperationEvent",
    "Poll",
    "Send",
    "Subscribe",
    "Value",
    "check",
]
