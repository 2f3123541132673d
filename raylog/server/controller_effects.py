"""Every effect of a controller, and whose business it is: one method of the shell for each.

The real controller and the simulated one carry out by this table. An effect that one of them
forgets is a type error.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Protocol, assert_never

from raylog.control.session import FromController
from raylog.metadata.events import (
    CloseSession,
    Dial,
    Effect,
    Notice,
    Persist,
    RetireController,
    SendControllerReply,
    SendFrame,
    SendQuorum,
    StartActor,
    StartController,
)
from raylog.metadata.partitions.assignment_batches import gathered
from raylog.metadata.requests import ControllerReply
from raylog.raft.messages import Message, QuorumWrite


class ControllerShell(Protocol):
    """What a process does for its ``Controller``; each effect says what of that is reported."""

    def send_frame(self, session_id: int, frame: FromController) -> None: ...

    def close_session(self, session_id: int) -> None: ...

    def answer(self, token: int, reply: ControllerReply) -> None: ...

    def dial(self, order: Dial) -> None: ...

    def start_actor(self, order: StartActor) -> None: ...

    def start_controller(self, order: StartController) -> None: ...

    def retire(self) -> None: ...

    def persist(self, write: QuorumWrite) -> None: ...

    def send_quorum(self, to: uuid.UUID, message: Message) -> None: ...

    def notice(self, notice: Notice) -> None: ...


def carry_out(shell: ControllerShell, effects: Iterable[Effect]) -> None:
    """Do what the effects of one step order, in their order; a run of Assignments goes as one frame
    to each session.
    """
    for effect in gathered(effects):
        match effect:
            case SendFrame(session_id, frame):
                shell.send_frame(session_id, frame)
            case SendControllerReply(token, reply):
                shell.answer(token, reply)
            case Persist(write):
                shell.persist(write)
            case SendQuorum(to, message):
                shell.send_quorum(to, message)
            case Dial():
                shell.dial(effect)
            case CloseSession(session_id):
                shell.close_session(session_id)
            case StartActor():
                shell.start_actor(effect)
            case StartController():
                shell.start_controller(effect)
            case RetireController():
                shell.retire()
            case Notice():
                shell.notice(effect)
            case _:
                assert_never(effect)
