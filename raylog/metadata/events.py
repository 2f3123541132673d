"""What goes into the controller machine and what comes out of it.

Events are facts that the shell reports; effects are orders that it carries out, in the order given.
``now_ms`` is the shell's monotonic clock, given with each event. A *session id* is the shell's name
for one control session, a *token* its name for one request that waits for a reply; neither is ever
used again for another.

The shell owes the machine three things. It reports everything that has arrived (frames, closed
sessions, dial results) before ``ControllerTicked``, so that nobody is judged silent whose voice
lies unread in a buffer. It answers each ``Dial`` with ``Dialed`` and each ``StartActor`` with
``ActorStarted`` or ``ActorStartFailed``, exactly once. It ticks when ``next_deadline_ms`` has
passed.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from enum import Enum, IntEnum

from raylog.control.session import FromActor, FromController, Hello
from raylog.metadata.requests import ControllerReply, Request
from raylog.raft.messages import Message, QuorumWrite
from raylog.types import Endpoint, TopicIdPartition

# ------------------------------------------------------------------ events


@dataclass(frozen=True, slots=True)
class SessionHello:
    """A new control session, opened by this hello."""

    session_id: int
    hello: Hello


@dataclass(frozen=True, slots=True)
class SessionFrame:
    """Any later frame of a session."""

    session_id: int
    frame: FromActor


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The connection ended: end of file, reset, or closed by CloseSession."""

    session_id: int


class DialOutcome(Enum):
    ALIVE = "alive"  # the handshake completed with the expected identity and incarnation
    REFUSED = "refused"  # nobody listens there
    CLOSED = (
        "closed"  # accepted, and closed before the handshake completed as expected: another process, or a dying one
    )
    UNREACHABLE = "unreachable"  # no route, or no answer to the connection attempt
    MUTE = "mute"  # connected, and no handshake within 200 ms

    @property
    def words(self) -> str:
        """What a person is told of it."""
        return {
            DialOutcome.ALIVE: "it answers",
            DialOutcome.REFUSED: "its process is gone: connections to it are refused",
            DialOutcome.CLOSED: "its process is gone: connections to it are closed",
            DialOutcome.UNREACHABLE: "it cannot be reached",
            DialOutcome.MUTE: "it accepts connections, and does not answer",
        }[self]


@dataclass(frozen=True, slots=True)
class Dialed:
    """The answer to Dial, 200 ms after it at the latest."""

    node_id: int
    incarnation: int
    dial_id: int
    outcome: DialOutcome


@dataclass(frozen=True, slots=True)
class RequestReceived:
    token: int
    request: Request


@dataclass(frozen=True, slots=True)
class RequestAbandoned:
    """The asker went away; what was decided for it stands."""

    token: int


@dataclass(frozen=True, slots=True)
class ActorStarted:
    """The process was created; its hello will come."""

    node_id: int


@dataclass(frozen=True, slots=True)
class ActorStartFailed:
    node_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class ControllerTicked:
    """A deadline that ``next_deadline_ms`` announced may have come; everything that arrived before
    was reported.
    """


@dataclass(frozen=True, slots=True)
class QuorumMessage:
    """From another member of the quorum, named by its directory id."""

    sender: uuid.UUID
    message: Message


@dataclass(frozen=True, slots=True)
class PeerJoined:
    """Another controller of this cluster can be reached; voter or not, it is sent the log."""

    peer: uuid.UUID


@dataclass(frozen=True, slots=True)
class PeerLeft:
    """It cannot be reached any more. ``is_dead``: its process is known to have ended, as opposed to
    silence.
    """

    peer: uuid.UUID
    is_dead: bool


@dataclass(frozen=True, slots=True)
class Persisted:
    """The write of that number is durable."""

    number: int


ActiveEvent = (
    SessionHello | SessionFrame | SessionClosed | Dialed | RequestReceived | RequestAbandoned | ActorStarted
    | ActorStartFailed | ControllerTicked
)  # fmt: skip

Event = ActiveEvent | QuorumMessage | PeerJoined | PeerLeft | Persisted

# ------------------------------------------------------------------ effects


@dataclass(frozen=True, slots=True)
class SendFrame:
    """Send over that session; dropped by the shell if it has ended."""

    session_id: int
    frame: FromController


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Close after what was sent has been written."""

    session_id: int


@dataclass(frozen=True, slots=True)
class Dial:
    """Find out within 200 ms whether that process of that actor still listens; report Dialed."""

    node_id: int
    endpoint: Endpoint
    incarnation: int
    dial_id: int


@dataclass(frozen=True, slots=True)
class SendControllerReply:
    token: int
    reply: ControllerReply


class ActorKind(Enum):
    BROKER = "broker"
    REPLICAS = "replicas"
    COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True)
class StartActor:
    """Create the process of a server actor on its disk; report ActorStarted or ActorStartFailed,
    however long it takes.

    ``replicas`` says what it will be assigned, for sizing; the assignments themselves come over its
    session.
    """

    node_id: int
    kind: ActorKind
    broker_id: int
    directory_id: uuid.UUID
    path: str
    replicas: tuple[TopicIdPartition, ...]


class NoticeLevel(IntEnum):
    """How much a notice matters, by the levels of the log and their numbers (``server.process_log``)."""

    INFO = 20
    WARNING = 30
    ERROR = 40


@dataclass(frozen=True, slots=True)
class Notice:
    """A line for the log of the server: something that an operator may want to know."""

    text: str
    level: NoticeLevel = NoticeLevel.INFO


def warning(text: str) -> Notice:
    """What may come to something that an operator has to act on."""
    return Notice(text, NoticeLevel.WARNING)


@dataclass(frozen=True, slots=True)
class StartController:
    """Create a controller on that disk if there is none; it joins as any other. Ordered again every
    few seconds until it has.
    """

    broker_id: int
    directory_id: uuid.UUID
    path: str


@dataclass(frozen=True, slots=True)
class RetireController:
    """This controller is no longer one, and never votes again: end it, and forget its metadata.
    Ordered once, the last of all.
    """


@dataclass(frozen=True, slots=True)
class Persist:
    """Make the write durable, in the order of its docstring, and report Persisted. One is out at a
    time.
    """

    write: QuorumWrite


@dataclass(frozen=True, slots=True)
class SendQuorum:
    """Send to another member of the quorum; may be lost."""

    to: uuid.UUID
    message: Message


ActiveEffect = SendFrame | CloseSession | Dial | SendControllerReply | StartActor | Notice
Effect = ActiveEffect | Persist | SendQuorum | StartController | RetireController
