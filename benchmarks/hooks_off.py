"""The plain path of small requests with the hooks of what is off at first, and without them.

The log of slow requests and the spans of records are off unless a config turns them on; what is left of them on the way of a
request is a comparison here and there. ``CUTS`` names these places. In a process of servers ``leave_out`` replaces the code of
the functions by the same code without the hooks of a feature, and puts it back, while requests go on: so contestants alternate
in one process. A place that the product no longer has is an error, not a measurement of nothing.

The servers are the production ones, in one process without Ray, one broker, so nothing but the way of a request is measured.
"""

from __future__ import annotations

import inspect
import multiprocessing
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import plain_kafka
from harness import Benchmark, cpu_ns
from small_requests import Kind, SmallRequests, Wanted

from raylog.client.admin.admin import NewTopic
from raylog.cluster import Cluster
from raylog.replication.leader import Leader
from raylog.replication.produce_requests import ProduceRequests
from raylog.server.door import _DoorConnection
from raylog.server.replica_server import ReplicaServer
from raylog.testing.in_process import cluster
from raylog.wire.server_connection import ServerConnection

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

AS_IT_IS = "off, as it is"
SLOW_LOG, SPANS = "without the slow-request log", "without the spans"
CONNECTIONS, IN_FLIGHT, RECORDS = 6, 5, 200
WINDOW_S, WARM_UP_S, SETTLE_S = 5.0, 5.0, 0.3
ROUNDS = 9
SHARE_MAX = 0.01
COST = "µs/request"
KINDS: tuple[Kind, ...] = ("produce", "fetch")


@dataclass(frozen=True, slots=True)
class Cut:
    """In the source of a function ``hook``, which is there once, becomes ``rest``."""

    function: FunctionType
    hook: str
    rest: str = ""

    def code(self) -> CodeType:
        """The function's code without the hook. Raises ValueError where it has none."""
        return without(self.function, [self])


_ENDED_AT_ONCE = """\
        if (slow := self.server.slow) is not None:
            context, api = self._context_of(usual.client_id), (usual.key, usual.version)
            slow.ended_at_once(
                self,
                context,
                api,
                _correlation(data, 4)[0],
                length_ns=length_ns,
                request_bytes=len(data),
                answer=answer,
            )
"""


def _of(owner: Any, name: str, hook: str, rest: str = "") -> Cut:
    return Cut(vars(owner)[name], hook, rest)


CUTS: Mapping[str, Sequence[Cut]] = {
    SLOW_LOG: (
        _of(ServerConnection, "_dispatch", " or self.server.slow is not None:", ":"),
        _of(
            ServerConnection,
            "send_reply",
            "        if self.server.slow is not None:\n            self.server.slow.ended(request, frame)\n",
        ),
        _of(_DoorConnection, "_answered", _ENDED_AT_ONCE),
    ),
    SPANS: (
        _of(ReplicaServer, "append_at_once", " or (self._spans.is_on and self._spans.wants(records))"),
        _of(
            ReplicaServer,
            "read_at_once",
            "        if self._spans.is_on:\n            self._spans.fetched((result,))\n",
        ),
        _of(
            ReplicaServer,
            "answer",
            "        if self._spans.is_on:\n            self._spans.answered(token, reply)\n",
        ),
        _of(ReplicaServer, "answer_fetch", "        self._spans.fetched((result,))\n"),
        _of(
            ReplicaServer,
            "produce_usual",
            "self._spans.followed(usual.event(token, records), request)",
            "usual.event(token, records)",
        ),
        _of(
            ReplicaServer,
            "_produce",
            "self._spans.followed(produce.event(body, token, self._names, request.version), request)",
            "produce.event(body, token, self._names, request.version)",
        ),
        _of(ReplicaServer, "_fetch", "self._spans.sent(event, reply)", "reply"),
        _of(ProduceRequests, "received", "is_plain = part.trace is None", "is_plain = True"),
        _of(
            ProduceRequests,
            "_append",
            "        if part.trace is not None and not result.error:\n"
            "            leader.follow(part.trace, result.base_offset, end)\n",
        ),
        _of(
            Leader,
            "advance_high_watermark",
            "            if self.traced is not None:\n                self.traced.high_watermark_rose(end)\n",
        ),
    ),
}


def without(function: FunctionType, cuts: Sequence[Cut]) -> CodeType:
    """The code of a function without these hooks. Raises ValueError for one that it does not have just once."""
    source = inspect.getsource(function)
    for cut in cuts:
        if source.count(cut.hook) != 1:
            raise ValueError(f"{function.__qualname__} has {cut.hook.strip()!r} {source.count(cut.hook)} times")
        source = source.replace(cut.hook, cut.rest)
    found: dict[str, Any] = {}
    exec(compile("from __future__ import annotations\n" + textwrap.dedent(source), __file__, "exec"), {}, found)
    code: CodeType = found[function.__name__].__code__
    if code.co_freevars != function.__code__.co_freevars:
        raise ValueError(f"{function.__qualname__} has variables of its class")
    return code


class Hooks:
    """Those of this process. Whoever has a function already, bound or not, gets its other code, too."""

    def __init__(self) -> None:
        self._own = {cut.function: cut.function.__code__ for cuts in CUTS.values() for cut in cuts}
        self._others = {name: {cut.function: cut.code() for cut in cuts} for name, cuts in CUTS.items()}

    def leave_out(self, name: str) -> None:
        """The hooks of that feature only; ``AS_IT_IS``: none."""
        for function, code in self._own.items():
            function.__code__ = self._others.get(name, {}).get(function, code)


def serve(pipe: Connection) -> None:
    """The process of the servers, until the other end of the pipe closes. Takes the names of arms."""
    hooks = Hooks()
    with cluster(1) as running:
        pipe.send((running.address, running.bootstrap_servers()))
        with suppress(EOFError):
            while True:
                hooks.leave_out(pipe.recv())
                pipe.send(True)


@contextmanager
def servers() -> Iterator[tuple[int, Cluster, str, Callable[[str], None]]]:
    """The process id, the cluster, its bootstrap servers, and what begins an arm."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=serve, args=(there,))
    process.start()
    there.close()

    def begin(arm: str) -> None:
        here.send(arm)
        assert here.recv()

    try:
        address, bootstrap = here.recv()
        assert process.pid is not None
        yield process.pid, Cluster(address), bootstrap, begin
    finally:
        here.close()
        process.join()


def measure(bench: Benchmark, *, quick: bool) -> None:
    """CPU of the servers per request with the hooks, and without those of each feature."""
    arms = (AS_IT_IS, *CUTS)
    window_s = WINDOW_S / (10 if quick else 1)
    with servers() as (pid, seen, bootstrap, begin):
        with seen.admin() as admin, seen.producer() as producer:
            for kind in KINDS:
                admin.create_topics([NewTopic(kind, CONNECTIONS, 1)])
            for _ in range(RECORDS):  # a batch of its own for each record: a fetch brings one
                for number in range(CONNECTIONS):
                    producer.send("fetch", b"." * plain_kafka.RECORD_BYTES, partition=number)
                producer.flush()
        for kind in KINDS:
            with SmallRequests(Wanted(bootstrap, kind, kind, CONNECTIONS, IN_FLIGHT)) as load:
                time.sleep(WARM_UP_S / (10 if quick else 1))
                found: dict[str, list[float]] = {arm: [] for arm in arms}
                for number in range(1 if quick else ROUNDS):
                    turn = number % len(arms)
                    for arm in (*arms[turn:], *arms[:turn]):
                        begin(arm)
                        time.sleep(SETTLE_S)
                        first, used = load.look(), cpu_ns(pid)
                        time.sleep(window_s)
                        last, used_after = load.look(), cpu_ns(pid)
                        found[arm].append((used_after - used) / 1e3 / (last.answered - first.answered))
                        print(f"off · {kind} · {arm}: {found[arm][-1]:.3f} {COST}", flush=True)
                begin(AS_IT_IS)
            for arm, values in found.items():
                bench.record(f"off: small {kind} requests, servers' CPU", arm, values, unit=COST)


def judge(bench: Benchmark) -> None:
    """By how much a request costs more for hooks of what is off."""
    for case, measured in bench.cases.items():
        if not case.startswith("off: "):
            continue
        for arm in CUTS:
            share = measured[AS_IT_IS].median / measured[arm].median - 1
            bench.target(f"{case}: more than {arm}", share, at_most=SHARE_MAX)
