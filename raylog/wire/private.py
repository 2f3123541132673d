"""The requests that Kafka's protocol has no API for, as dataclasses. API keys from 20,000; bodies
are msgpack.

A body is a map of field names to plain values (numbers, text, bytes, lists, maps, nil; UUIDs go as
16 bytes). A reader ignores names that it does not know and takes a field's default where a name is
missing, so a field with a default may be added at any time. A reply is either such a map or
``{"error": <Kafka's error code>, "message": <text>}``, which the client's end raises.

To add one: a name in capitals for the next free key, a request class under ``@request_of(key)`` and
its reply under ``@reply_to(key)``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

from raylog.errors import RaylogError, code_of, error_for
from raylog.wire import values

FIRST_API_KEY: Final = 20_000
HANDSHAKE: Final = 20_000
SESSION: Final = 20_001
AWAIT_LEADER: Final = 20_002
CLUSTER_STATUS: Final = 20_003
REGISTER_DISKS: Final = 20_004
SHUTDOWN: Final = 20_005
FIND_CONTROLLER: Final = 20_006
QUORUM: Final = 20_007
DESCRIBE_QUORUM: Final = 20_008
SUMMON: Final = 20_009
DRAIN_BROKER: Final = 20_010
CANCEL: Final = 20_011
LOCATE_RECORDS: Final = 20_012
REPAIR_REPLICA: Final = 20_013
MOVE_REPLICAS: Final = 20_014
PLAN_HOST: Final = 20_015
RETIRE_HOST: Final = 20_016
OPEN_DOOR: Final = 20_017
SET_STATIC_CONFIGS: Final = 20_018
PLAN_CONTROLLERS: Final = 20_019
JOIN_TRANSACTION: Final = 20_020
KEEP_TRANSACTION: Final = 20_021
END_SHARED_TRANSACTION: Final = 20_022
COLLECT_METRICS: Final = 20_023
DESCRIBE_EVENTS: Final = 20_024
READ_LOGS: Final = 20_025
SET_LOGGER_LEVELS: Final = 20_026
LEND_QUOTAS: Final = 20_027
MOVE_TO_DISKS: Final = 20_028


_T = TypeVar("_T")
_requests: dict[int, type[Any]] = {}
_replies: dict[int, type[Any]] = {}


def _register(table: dict[int, type[Any]], api_key: int) -> Callable[[type[_T]], type[_T]]:
    def register(cls: type[_T]) -> type[_T]:
        assert api_key >= FIRST_API_KEY and api_key not in table, f"API key {api_key} is taken"
        cls.API_KEY = api_key  # type: ignore[attr-defined]
        table[api_key] = cls
        return cls

    return register


def request_of(api_key: int) -> Callable[[type[_T]], type[_T]]:
    """Declares a slotted frozen dataclass to be the request of a private API."""
    return _register(_requests, api_key)


def reply_to(api_key: int) -> Callable[[type[_T]], type[_T]]:
    """Declares a slotted frozen dataclass to be the reply of a private API."""

    def register(cls: type[_T]) -> type[_T]:
        assert "error" not in cls.__annotations__, f"{cls.__name__}.error would be read as a refusal"
        return _register(_replies, api_key)(cls)

    return register


@request_of(HANDSHAKE)
@dataclass(frozen=True, slots=True)
class HandshakeMessage:
    """One message of the handshake; which step it is shows in what is there.

    ``node_id`` and ``incarnation`` say who calls, −1 and 0: a client.
    """

    API_KEY: ClassVar[int]
    cluster_id: str = ""
    scram: str = ""
    node_id: int = -1
    incarnation: int = 0


@reply_to(HANDSHAKE)
@dataclass(frozen=True, slots=True)
class HandshakeReply:
    """``node_id`` and ``incarnation`` say who answers; only after the caller's proof."""

    API_KEY: ClassVar[int]
    scram: str = ""
    node_id: int = -1
    incarnation: int = 0


@request_of(SESSION)
@dataclass(frozen=True, slots=True)
class OpenSession:
    """Turns the connection into a two-way stream of session frames
    (``raylog.control.session_stream``).
    """

    API_KEY: ClassVar[int]


@reply_to(SESSION)
@dataclass(frozen=True, slots=True)
class SessionOpened:
    """From the byte after this reply both ends send session frames only."""

    API_KEY: ClassVar[int]


@request_of(AWAIT_LEADER)
@dataclass(frozen=True, slots=True)
class AwaitLeaderRequest:
    """Asks for a leader whose epoch is above ``newer_than_epoch``; the answer waits up to
    ``timeout_ms`` for one.
    """

    API_KEY: ClassVar[int]
    topic: str
    partition: int
    newer_than_epoch: int
    timeout_ms: int


@reply_to(AWAIT_LEADER)
@dataclass(frozen=True, slots=True)
class AwaitLeaderResponse:
    """``leader_node`` −1: nobody leads with a newer epoch yet; ``leader_epoch`` is the current one."""

    API_KEY: ClassVar[int]
    leader_node: int
    leader_epoch: int
    host: str = ""
    port: int = -1


@request_of(CLUSTER_STATUS)
@dataclass(frozen=True, slots=True)
class ClusterStatusRequest:
    """Asks the controller what it knows."""

    API_KEY: ClassVar[int]


@reply_to(CLUSTER_STATUS)
@dataclass(frozen=True, slots=True)
class ClusterStatusReply:
    """A map of plain values; its shape is the controller's."""

    API_KEY: ClassVar[int]
    status: dict[str, Any]


@request_of(REGISTER_DISKS)
@dataclass(frozen=True, slots=True)
class RegisterDisks:
    """Tells the controller of formatted disks. Idempotent.

    Each is a map with ``directory_id`` (16 bytes), ``broker_id``, ``path``, ``host``, ``rack``.
    """

    API_KEY: ClassVar[int]
    disks: tuple[dict[str, Any], ...]


@reply_to(REGISTER_DISKS)
@dataclass(frozen=True, slots=True)
class DisksRegistered:
    """The disks are in the committed metadata."""

    API_KEY: ClassVar[int]


@request_of(SET_STATIC_CONFIGS)
@dataclass(frozen=True, slots=True)
class SetStaticConfigsRequest:
    """Tells the controller what a start, or the nodes' disks, say of all brokers' configs.
    Idempotent.

    ``source`` 0: the disks, 1: the start. ``replaces``: what that source said before is void.
    """

    API_KEY: ClassVar[int]
    source: int
    configs: dict[str, str]
    replaces: bool = True


@reply_to(SET_STATIC_CONFIGS)
@dataclass(frozen=True, slots=True)
class SetStaticConfigsResponse:
    """The values are in the committed metadata."""

    API_KEY: ClassVar[int]


LOG_CLOSING_S = 0.02  # how long a shutdown may take for each log that a process holds


@request_of(SHUTDOWN)
@dataclass(frozen=True, slots=True)
class Shutdown:
    """Asks the controller to end every server cleanly, itself last. Data stays on the disks."""

    API_KEY: ClassVar[int]


@reply_to(SHUTDOWN)
@dataclass(frozen=True, slots=True)
class ShutdownDone:
    """Every other server has closed its session; the controller ends right after this reply."""

    API_KEY: ClassVar[int]
    stopped: int


@request_of(FIND_CONTROLLER)
@dataclass(frozen=True, slots=True)
class FindController:
    """Asks a Broker or a replica server where the controller listens that it has a session with, or
    a controller which one is active.
    """

    API_KEY: ClassVar[int]


@reply_to(FIND_CONTROLLER)
@dataclass(frozen=True, slots=True)
class ControllerFound:
    """``port`` −1: not known now."""

    API_KEY: ClassVar[int]
    host: str = ""
    port: int = -1


@request_of(DRAIN_BROKER)
@dataclass(frozen=True, slots=True)
class DrainBrokerRequest:
    """Asks to move a broker's leaders away and keep them away, or with ``is_draining`` false to end
    that.
    """

    API_KEY: ClassVar[int]
    broker_id: int
    is_draining: bool = True


@reply_to(DRAIN_BROKER)
@dataclass(frozen=True, slots=True)
class DrainBrokerResponse:
    """Partitions as ``[topic, partition]``: those that this request took away, and those that
    nobody else can lead yet.
    """

    API_KEY: ClassVar[int]
    moved: tuple[Any, ...] = ()
    remaining: tuple[Any, ...] = ()


@request_of(MOVE_REPLICAS)
@dataclass(frozen=True, slots=True)
class MoveReplicasRequest:
    """Asks for replicas to be held by other server actors of their disks. ``moves`` are ``[topic,
    partition, broker, node id]``.
    """

    API_KEY: ClassVar[int]
    moves: tuple[Any, ...] = ()


@reply_to(MOVE_REPLICAS)
@dataclass(frozen=True, slots=True)
class MoveReplicasResponse:
    """One ``[error, message]`` for each move, in their order; 0 and nil: done."""

    API_KEY: ClassVar[int]
    outcomes: tuple[Any, ...] = ()


@request_of(MOVE_TO_DISKS)
@dataclass(frozen=True, slots=True)
class MoveToDisksRequest:
    """Asks for replicas of a broker to be copied to other disks of it. ``replicas`` are ``[topic,
    partition, path]``.
    """

    API_KEY: ClassVar[int]
    broker_id: int
    replicas: tuple[Any, ...] = ()


@reply_to(MOVE_TO_DISKS)
@dataclass(frozen=True, slots=True)
class MoveToDisksResponse:
    """One ``[error, message]`` for each replica, in their order; 0 and nil: its move has begun."""

    API_KEY: ClassVar[int]
    outcomes: tuple[Any, ...] = ()


@request_of(PLAN_HOST)
@dataclass(frozen=True, slots=True)
class PlanHostRequest:
    """Asks for one more server actor on a disk of a broker: the one at ``path``, or where there are
    fewest.

    ``kind`` is ``replicas`` or ``coordinator``.
    """

    API_KEY: ClassVar[int]
    broker_id: int
    path: str = ""
    kind: str = "replicas"


@reply_to(PLAN_HOST)
@dataclass(frozen=True, slots=True)
class PlanHostResponse:
    """``notice``: something that whoever asked should know."""

    API_KEY: ClassVar[int]
    node_id: int = -1
    notice: str = ""


@request_of(RETIRE_HOST)
@dataclass(frozen=True, slots=True)
class RetireHostRequest:
    """Asks to move a server actor's replicas to the others of its disk, and to end it then.
    Idempotent.
    """

    API_KEY: ClassVar[int]
    node_id: int


@reply_to(RETIRE_HOST)
@dataclass(frozen=True, slots=True)
class RetireHostResponse:
    """``[topic, partition]`` that this request took away, and ``[topic, partition, reason]`` that
    cannot move now.
    """

    API_KEY: ClassVar[int]
    moved: tuple[Any, ...] = ()
    remaining: tuple[Any, ...] = ()


@request_of(PLAN_CONTROLLERS)
@dataclass(frozen=True, slots=True)
class PlanControllersRequest:
    """Asks that these brokers hold a controller each, or ``count`` of them, and nobody else.
    Idempotent.
    """

    API_KEY: ClassVar[int]
    broker_ids: tuple[int, ...] = ()
    count: int = 0


@reply_to(PLAN_CONTROLLERS)
@dataclass(frozen=True, slots=True)
class PlanControllersResponse:
    """The brokers of the plan, in order; the controllers move after this reply."""

    API_KEY: ClassVar[int]
    broker_ids: tuple[int, ...] = ()


@request_of(QUORUM)
@dataclass(frozen=True, slots=True)
class OpenQuorum:
    """Turns the connection of two controllers into a two-way stream of quorum messages
    (``raylog.control.quorum_stream``).

    ``directory_id`` (16 bytes) is the caller's disk, by which voters are named.
    """

    API_KEY: ClassVar[int]
    directory_id: bytes


@reply_to(QUORUM)
@dataclass(frozen=True, slots=True)
class QuorumOpened:
    """From the byte after this reply both ends send quorum messages only. ``directory_id`` is the
    answerer's disk.
    """

    API_KEY: ClassVar[int]
    directory_id: bytes


@request_of(DESCRIBE_QUORUM)
@dataclass(frozen=True, slots=True)
class DescribeQuorum:
    """Asks any controller, active or standby, what it sees of the quorum."""

    API_KEY: ClassVar[int]


@reply_to(DESCRIBE_QUORUM)
@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """A map of plain values; its shape is the controller's."""

    API_KEY: ClassVar[int]
    quorum: dict[str, Any]


@request_of(SUMMON)
@dataclass(frozen=True, slots=True)
class Summon:
    """The active controller tells a server process where it is: open your session here, if
    ``epoch`` is no older than you know.
    """

    API_KEY: ClassVar[int]
    epoch: int
    host: str
    port: int


@reply_to(SUMMON)
@dataclass(frozen=True, slots=True)
class Summoned:
    """The process has heard it."""

    API_KEY: ClassVar[int]


@request_of(CANCEL)
@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody waits any more for the reply to an earlier request of this connection: if it is
    parked, it ends without one.
    """

    API_KEY: ClassVar[int]
    correlation_id: int


@reply_to(CANCEL)
@dataclass(frozen=True, slots=True)
class CancelResponse:
    """Done, or there was nothing to cancel."""

    API_KEY: ClassVar[int]


@request_of(LOCATE_RECORDS)
@dataclass(frozen=True, slots=True)
class LocateRecords:
    """Asks a process that holds a replica in which files the offsets from ``offset`` up to
    ``offset_end`` are.
    """

    API_KEY: ClassVar[int]
    topic: str
    partition: int
    offset: int
    offset_end: int
    leader_epoch: int = -1


@reply_to(LOCATE_RECORDS)
@dataclass(frozen=True, slots=True)
class RecordsLocated:
    """Each piece is path, device, inode, position and bytes of whole batches
    (``raylog.log.whereabouts``).

    Together they hold all records up to ``offset_end``: that asked for, the high watermark or as
    many as go into one answer; the offset asked for: nothing is told. ``boot_id``: of the kernel
    whose files they are.
    """

    API_KEY: ClassVar[int]
    boot_id: str
    offset_end: int
    pieces: tuple[tuple[str, int, int, int, int], ...] = ()


@request_of(REPAIR_REPLICA)
@dataclass(frozen=True, slots=True)
class RepairReplica:
    """Tells a process that its replica is wrong from ``offset`` on: it is to be copied anew from
    there, from another one.
    """

    API_KEY: ClassVar[int]
    topic: str
    partition: int
    offset: int
    reason: str


@reply_to(REPAIR_REPLICA)
@dataclass(frozen=True, slots=True)
class RepairBegun:
    """The replica has taken it in. It goes on as it is while no other one is in sync."""

    API_KEY: ClassVar[int]


@request_of(OPEN_DOOR)
@dataclass(frozen=True, slots=True)
class OpenDoor:
    """A Broker asks a host of its own where it takes over connections of Kafka clients
    (``raylog.wire.moved_connections``).
    """

    API_KEY: ClassVar[int]


@reply_to(OPEN_DOOR)
@dataclass(frozen=True, slots=True)
class DoorOpened:
    """``name``: in Linux's abstract namespace; the channel's first message is ``token``."""

    API_KEY: ClassVar[int]
    name: str
    token: bytes


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reply of any private API that failed; the server makes it out of an exception."""

    API_KEY: ClassVar[int] = 0
    error: int = -1
    message: str = ""

    @classmethod
    def of(cls, error: RaylogError) -> Refusal:
        return cls(int(code_of(error)), str(error))


# ------------------------------------------------------------------ codec


def is_known(api_key: int) -> bool:
    return api_key in _requests


def is_private(entity_type: type[Any]) -> bool:
    return hasattr(entity_type, "API_KEY")


def name_of(api_key: int) -> str | None:
    cls = _requests.get(api_key)
    return None if cls is None else cls.__name__


def refusal(api_key: int, error: RaylogError) -> Any:
    """The reply that refuses a request: the API's own, if it has an ``error_code``, else a
    ``Refusal``.
    """
    reply = _replies.get(api_key)
    if reply is not None and "error_code" in reply.__annotations__:
        return reply(error_code=int(code_of(error)))
    return Refusal.of(error)


def encode(message: Any) -> bytes:
    """The body of a request or reply."""
    return values.pack(message)


def decode_request(api_key: int, body: memoryview | bytes) -> Any:
    return values.from_plain(_requests[api_key], values.unpack_map(body))


def decode_reply(api_key: int, body: memoryview | bytes) -> Any:
    """The reply; raises what a refusal says."""
    plain = values.unpack_map(body)
    if "error" in plain:
        refusal: Refusal = values.from_plain(Refusal, plain)
        raise error_for(refusal.error, refusal.message)
    return values.from_plain(_replies[api_key], plain)
