"""Server actors as an administrator sees them: what each holds and uses, and to change that.

``AsyncActorCalls`` and ``ActorCalls`` are the parts of the admin clients that speak of actors. A
replica is a folder of a disk; any actor of that disk can hold it, and a move copies nothing.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from raylog.errors import RaylogError, error_for
from raylog.types import ReplicaMove, TopicPartition
from raylog.wire import private

T = TypeVar("T")
HostKindName = Literal["replicas", "coordinator"]


@dataclass(frozen=True, slots=True)
class ActorInfo:
    """One server actor. ``actor`` is its node id, ``host`` what it is planned to hold (None: it
    runs for its replicas alone).

    ``cpu`` is a share of one core since its last heartbeat, ``memory_bytes`` its resident memory,
    ``busy`` the share of the time in which its event loop ran; None: it has not said.
    ``automatic``: the cluster added it because another actor was saturated.
    """

    actor: int
    broker: int
    disk: str
    kind: str
    host: str | None
    state: str
    pid: int
    replicas: int
    leaders: int
    cpu: float | None
    memory_bytes: int | None
    busy: float | None = None
    automatic: bool = False


@dataclass(frozen=True, slots=True)
class Retirement:
    """``remaining`` are replicas that cannot move yet, with the reason. They move by themselves as
    soon as they can.
    """

    moved: tuple[TopicPartition, ...]
    remaining: dict[TopicPartition, str]


class AsyncActorCalls:
    """What an admin client can do with server actors. Mixed into ``AsyncAdminClient``."""

    async def _ask(self, request: Any) -> Any:
        raise NotImplementedError

    async def list_actors(self) -> list[ActorInfo]:
        """The server actors that hold replicas or are planned to, in order of node id."""
        reply = await self._ask(private.ClusterStatusRequest())
        return [actor_info(each) for each in reply.status["actors"] if each["kind"] != "broker"]

    async def move_replicas(self, moves: Iterable[Sequence[Any]]) -> dict[ReplicaMove, RaylogError | None]:
        """Have other actors of the same disks hold these replicas; by move, why it was refused, or
        None.

        Done when it is decided: the old process closes the log and the new one opens it meanwhile.
        Leadership goes to another replica in sync where there is one, and returns.
        """
        wanted = [ReplicaMove(*each) for each in moves]
        reply = await self._ask(private.MoveReplicasRequest(tuple(tuple(each) for each in wanted)))
        return {
            each: error_for(error, message) if error else None
            for each, (error, message) in zip(wanted, reply.outcomes, strict=True)
        }

    async def add_actor(self, broker: int, *, disk: str = "", kind: HostKindName = "replicas") -> tuple[int, str]:
        """One more actor on a disk of that broker (by its folder; empty: where there are fewest).
        Its node id, and a notice or ''.

        It starts empty; new replicas go to it from now on, and ``move_replicas`` gives it others.
        """
        reply = await self._ask(private.PlanHostRequest(broker, disk, kind))
        return reply.node_id, reply.notice

    async def retire_actor(self, actor: int) -> Retirement:
        """Move an actor's replicas to the others of its disk; it ends when it has let go of all.

        What cannot move yet moves later by itself. Idempotent: asked again it says what remains.
        """
        reply = await self._ask(private.RetireHostRequest(actor))
        return Retirement(
            tuple(TopicPartition(*each) for each in reply.moved),
            {TopicPartition(topic, partition): reason for topic, partition, reason in reply.remaining},
        )


class ActorCalls:
    """The same, blocking. Mixed into ``AdminClient``."""

    _client: AsyncActorCalls

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def list_actors(self) -> list[ActorInfo]:
        """The server actors that hold replicas or are planned to."""
        return self._run(self._client.list_actors())

    def move_replicas(self, moves: Iterable[Sequence[Any]]) -> dict[ReplicaMove, RaylogError | None]:
        """Have other actors of the same disks hold these replicas; by move, why it was refused, or
        None.
        """
        return self._run(self._client.move_replicas(moves))

    def add_actor(self, broker: int, *, disk: str = "", kind: HostKindName = "replicas") -> tuple[int, str]:
        """One more actor on a disk of that broker: its node id, and a notice or ''."""
        return self._run(self._client.add_actor(broker, disk=disk, kind=kind))

    def retire_actor(self, actor: int) -> Retirement:
        """Move an actor's replicas to the others of its disk, and end it. Idempotent."""
        return self._run(self._client.retire_actor(actor))


def actor_info(status: dict[str, Any]) -> ActorInfo:
    """One of the ``actors`` of a cluster's status."""
    return ActorInfo(
        actor=status["node_id"],
        broker=status["broker"],
        disk=status["disk"],
        kind=status["kind"],
        host=status["host"],
        state=status["state"],
        pid=status["pid"],
        replicas=status["replicas"],
        leaders=status["leaders"],
        cpu=status["cpu"],
        memory_bytes=status["memory_bytes"],
        busy=status.get("busy"),
        automatic=status.get("automatic", False),
    )
