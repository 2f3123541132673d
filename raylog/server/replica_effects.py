"""Every effect of a ``ReplicaHost``, and whose business it is: one method for each.

The real process and the simulated one carry out by this table. An effect that one of them forgets
is a type error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, assert_never

from raylog.control.session import Assignment, FromActor, Removal
from raylog.replication.events import (
    CheckRecords,
    Clean,
    CloseLog,
    Effect,
    Flush,
    Load,
    OpenLog,
    RemoveFolder,
    Reply,
    RunHousekeeping,
    Scrub,
    SendFetch,
    Tell,
)
from raylog.replication.leaderships import Leadership, LeadershipsChanged
from raylog.replication.traced import TraceReached
from raylog.replication.transaction_events import VerifyTransaction


class ReplicaShell(Protocol):
    """What a process does for its ``ReplicaHost`` on its loop."""

    def answer(self, token: int, reply: Any) -> None: ...

    def send_fetch(self, order: SendFetch) -> None: ...

    def tell(self, frame: FromActor) -> None: ...

    def verify_transaction(self, order: VerifyTransaction) -> None: ...

    def leaderships_changed(self, changes: Sequence[Leadership]) -> None: ...

    def trace_reached(self, reached: TraceReached) -> None: ...


class LogShell(Protocol):
    """What it does for it in threads. Each returns at once, and what becomes of the work is an
    event later.
    """

    def open_log(self, assignment: Assignment) -> None: ...

    def close_log(self, order: CloseLog) -> None: ...

    def remove_folder(self, removal: Removal) -> None: ...

    def flush_log(self, order: Flush) -> None: ...

    def check_records(self, order: CheckRecords) -> None: ...

    def load_range(self, order: Load) -> None: ...

    def keep_house(self, order: RunHousekeeping) -> None: ...

    def clean_log(self, order: Clean) -> None: ...

    def scrub_log(self, order: Scrub) -> None: ...


def carry_out(shell: ReplicaShell, logs: LogShell, effects: Iterable[Effect]) -> None:
    """Do what the effects of one step order, in their order."""
    for effect in effects:
        match effect:
            case Reply():
                shell.answer(effect.token, effect.reply)
            case SendFetch():
                shell.send_fetch(effect)
            case Tell():
                shell.tell(effect.frame)
            case Flush():
                logs.flush_log(effect)
            case VerifyTransaction():
                shell.verify_transaction(effect)
            case LeadershipsChanged():
                shell.leaderships_changed(effect.changes)
            case TraceReached():
                shell.trace_reached(effect)
            case CheckRecords():
                logs.check_records(effect)
            case Load():
                logs.load_range(effect)
            case OpenLog():
                logs.open_log(effect.assignment)
            case CloseLog():
                logs.close_log(effect)
            case RemoveFolder():
                logs.remove_folder(effect.removal)
            case RunHousekeeping():
                logs.keep_house(effect)
            case Clean():
                logs.clean_log(effect)
            case Scrub():
                logs.scrub_log(effect)
            case _:
                assert_never(effect)
