"""This program's connection to a Ray: which Ray is meant, whether it answers, and ``ray.init``; or
a new Ray of its own.

``ray.init`` can't be trusted with an address that is wrong. It dials twenty times, for about 40 s
each, prints only to the terminal, and can't be interrupted; in other cases it ends the program. So
``connect_ray`` asks first, each question with a deadline:

1. The host's name resolves, and the port accepts a TCP connection.
2. What listens there is the head of a Ray (its GCS answers GetClusterId), and takes the token that
   Ray's client would offer.
3. A live node of that Ray runs on this machine, and its raylet answers: a Ray driver works through
   one.

Only then does ``ray.init`` run. It gets a single attempt to reach the head, which Ray itself ends
after about 40 s. That attempt, and a raylet that stops between question 3 and ``ray.init``, are the
two things that the time-out doesn't bound.

Each function raises RayError, which names the address, what answered there or didn't, and what to
do.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import queue
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from raylog.errors import RayError
from raylog.placement import ray_private
from raylog.placement.local_ray import flags_of_raylets, is_endpoint, is_loopback, noted_ray, running_ray
from raylog.placement.ray_environment import RAY_STARTUPS, added_environment, java_of_the_extra, loopback_only
from raylog.placement.ray_start import own_worker_setup, started

CONNECT_TIMEOUT_S = 30.0
OBJECT_STORE_BYTES = 80 * 1024 * 1024  # raylog keeps nothing there; Ray refuses less than 75 MB
AUTO = "auto"
_START = "start one with `ray start --head`"
_LAST_START = "the last `ray start` on this machine"
_NODE_POLL_S = 0.2
_GCS = "/ray.rpc.NodeInfoGcsService/"
_UNKNOWN_METHOD = "/ray.rpc.NodeManagerService/IsAnybodyThere"  # any answer, also "no such method", shows life
_ONE_ATTEMPT = {
    "RAY_gcs_server_port_wait_time_s": "1"
}  # how often ray.init tries to reach the head; 20 times without it

logger = logging.getLogger("raylog.connect")


@dataclass(frozen=True, slots=True)
class Deadline:
    """``timeout_s`` seconds from the moment it was made."""

    timeout_s: float
    at: float

    @staticmethod
    def after(timeout_s: float) -> Deadline:
        return Deadline(timeout_s, time.monotonic() + timeout_s)

    def left_s(self) -> float:
        """Seconds until then, and never quite none: sockets take 0 for "don't block"."""
        return max(0.001, self.at - time.monotonic())

    @property
    def has_passed(self) -> bool:
        return time.monotonic() >= self.at


@dataclass(frozen=True, slots=True)
class RayTarget:
    """A Ray to connect to: ``endpoint`` is the ``host:port`` of its head; ``named_by`` says where
    that came from, if not from the caller.

    ``is_here``: a Ray of this machine, which is offered the token that this machine has.
    """

    endpoint: str
    is_here: bool
    named_by: str | None = None

    def __str__(self) -> str:
        return f"{self.endpoint} (named by {self.named_by})" if self.named_by else self.endpoint


def find_ray(address: str) -> RayTarget:
    """The Ray that an address means: the ``host:port`` of a head, or "auto", which is the one that
    ``ray.init`` would take.
    """
    if address.startswith("ray://"):
        raise RayError(
            f"{address} is an address of Ray Client, which raylog doesn't work through: run this program on a node of that Ray, "
            "and give the address of its head, as host:6379"
        )
    if address != AUTO:
        if not is_endpoint(address):
            raise RayError(f"{address!r} is no address of a Ray: give host:port, as 127.0.0.1:6379, or leave it out")
        return RayTarget(address, address in {*_running(), noted_ray()})
    if (named := os.environ.get("RAY_ADDRESS")) and named != AUTO:
        return replace(find_ray(named), named_by="RAY_ADDRESS")
    running, noted = sorted(_running()), noted_ray()
    if len(running) == 1:
        return RayTarget(running[0], is_here=True)
    if noted is not None:
        return RayTarget(noted, is_here=True, named_by=_LAST_START)
    if running:
        raise RayError(f"several Rays run here, at {', '.join(running)}: say which by its address")
    raise RayError(f"no Ray runs on this machine: {_START}, or name one elsewhere by its address")


def ensure_ray(
    resources: dict[str, float], address: str | None, *, log_to_driver: bool, timeout_s: float
) -> tuple[bool, str]:
    """Connect this process to a Ray, or start one with those resources; whether it was started
    here, and its address.

    None is the Ray that was left running on this machine, or a new one; "local" always is a new
    one.
    """
    owns = False
    if is_connected():
        if address != "local":
            check_connected_ray(address, timeout_s)
    else:
        address = address or running_ray()  # not "auto": that also finds Rays that live in other programs
        if address is not None and address != "local":
            connect_ray(address, timeout_s, log_to_driver=log_to_driver)
        else:
            _start_ray(resources, log_to_driver)
            owns = True
    import ray

    untyped: Any = ray
    return owns, str(untyped.get_runtime_context().gcs_address)


def _start_ray(resources: dict[str, float], log_to_driver: bool) -> None:
    import ray

    quiet = {
        **RAY_STARTUPS,
        "RAY_USAGE_STATS_ENABLED": "0",  # Ray's notice about its reports would not be seen
    }
    with loopback_only(), added_environment(quiet), java_of_the_extra(), own_worker_setup():
        started(
            lambda: ray.init(
                address="local",
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                resources=resources,
                log_to_driver=log_to_driver,
                logging_level=logging.ERROR,
            )
        )


def is_connected() -> bool:
    """Whether this process has a Ray. Doesn't import it."""
    ray: Any = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def connect_ray(address: str, timeout_s: float, *, log_to_driver: bool = False) -> Deadline:
    """Connect this process to a Ray: "auto" or the ``host:port`` of its head. Returns the deadline,
    for whatever follows.
    """
    named = os.environ.get("RAY_ADDRESS", AUTO) if address == AUTO else address
    announce("the Ray of this machine" if named == AUTO else f"Ray at {named}", timeout_s)
    import ray  # takes a second or two, which doesn't count

    deadline = Deadline.after(timeout_s)
    target = find_ray(address)
    await_ray(target, deadline)
    try:
        if target.is_here:
            ray_private.offer_token()
        with loopback_only() if is_loopback(target.endpoint) else nullcontext(), one_attempt():
            ray.init(address=target.endpoint, log_to_driver=log_to_driver, logging_level=logging.ERROR)
        return deadline
    except ConnectionError as error:
        if ray_private.is_authentication_error(error.__cause__):
            raise _other_token(target) from error
        raise RayError(
            f"no Ray at {target}: its head answered a first question and then no more; see `ray status`"
        ) from error
    except Exception as error:
        if ray_private.is_authentication_error(error):
            raise _other_token(target) from error
        if isinstance(error, RuntimeError) and "ersion mismatch" in str(error):
            raise RayError(other_version(str(target), str(error))) from error
        raise


def other_version(where: str, said: str) -> str:
    """What to do about Ray's complaint of a mismatch. It names the versions of the cluster, then this
    process's; where it does not in the known way, its own words follow.
    """
    rays, pythons = (re.findall(rf"^\s*{each}: (\S+)$", said, re.MULTILINE) for each in ("Ray", "Python"))
    without = "a client needs none: raylog.connect(bootstrap_servers=…)"
    if len(rays) == 2 and rays[0] != rays[1]:
        return (
            f"the Ray at {where} is {rays[0]}, and this program has {rays[1]}: install ray=={rays[0]} here; {without}"
        )
    if len(pythons) == 2 and pythons[0] != pythons[1]:
        theirs, own = pythons
        return f"the Ray at {where} runs on Python {theirs}, and this program on {own}: run it on {theirs}; {without}"
    return f"the Ray at {where} is another version: install the same one here; {without} ({' '.join(said.split())})"


def check_connected_ray(address: str | None, timeout_s: float) -> Deadline:
    """That the Ray which this process is connected to answers, and is the one at ``address`` (None
    or "auto": any).

    Returns the deadline, for whatever follows.
    """
    import ray

    untyped: Any = ray
    deadline = Deadline.after(timeout_s)
    if untyped.util.client.ray.is_connected():
        return deadline
    endpoint = str(untyped.get_runtime_context().gcs_address)
    connected = RayTarget(endpoint, is_here=False, named_by="this process's connection to Ray")
    cluster_id = _ask_head(connected, ray_private.own_token(), deadline)
    if address in (None, AUTO, endpoint) or ray_private.is_k8s():
        return deadline
    other = find_ray(str(address))
    if _ask_head(other, ray_private.own_token(), deadline) != cluster_id:
        raise RayError(
            f"this process is connected to the Ray at {endpoint}, not to the one at {other}: "
            "call ray.shutdown() first, or leave the address out"
        )
    return deadline


def await_ray(target: RayTarget, deadline: Deadline) -> None:
    """Return when ``ray.init`` may be called: the head answers, and so does a node of that Ray on
    this machine.
    """
    token = _token(target)
    _ask_head(target, token, deadline)
    if not ray_private.is_k8s():
        _await_local_node(target, token, deadline)


def check_default_ray(timeout_s: float = CONNECT_TIMEOUT_S) -> None:
    """For what calls ``ray.init()`` by itself where this process has no Ray, as Ray Data does: that
    the Ray it would take answers.

    Returns at once where this process has a Ray, or ``ray.init()`` would start one.
    """
    if is_connected():
        return
    if named := os.environ.get("RAY_ADDRESS"):
        if not is_endpoint(named) or named.startswith("ray://"):
            return
        target = RayTarget(named, is_here=False, named_by="RAY_ADDRESS")
    elif noted := noted_ray():
        target = RayTarget(noted, is_here=True, named_by=_LAST_START)
    else:
        return
    announce(f"Ray at {target}", timeout_s)
    await_ray(target, Deadline.after(timeout_s))


@contextlib.contextmanager
def one_attempt() -> Iterator[None]:
    """``ray.init`` meanwhile tries once to reach the head, not twenty times."""
    with added_environment(_ONE_ATTEMPT):
        yield


def announce(what: str, timeout_s: float) -> None:
    """Log what is being tried before it is. The command line prints it."""
    logger.info("Connecting to %s (up to %g s)…", what, timeout_s)


# ------------------------------------------------------------------ which one


def _running() -> set[str]:
    """The heads of the Rays that have a node on this machine."""
    return flags_of_raylets("--gcs-address")


# ------------------------------------------------------------------ the head


def _token(target: RayTarget) -> str | None:
    """The token that Ray's client would offer; None if it would offer none."""
    mode = os.environ.get("RAY_AUTH_MODE")
    offers = target.is_here if mode is None else mode.lower() == "token"
    return ray_private.machines_token() if offers else None


def _ask_head(target: RayTarget, token: str | None, deadline: Deadline) -> bytes:
    """The id of the Ray whose head listens there."""
    _, messages = ray_private.head_messages()
    dial(target, deadline)
    if ray_private.is_k8s():
        return b""
    reply = messages.GetClusterIdReply.FromString(_call(target, "GetClusterId", b"", token, deadline))
    return bytes(reply.cluster_id)


def dial(target: RayTarget, deadline: Deadline) -> None:
    """That the name resolves and the port accepts a connection."""
    host, _, port = target.endpoint.rpartition(":")
    host = host.strip("[]")
    failure: OSError | None = None
    addresses = _resolve(target, host, int(port), deadline)
    for number, address in enumerate(addresses):
        try:
            socket.create_connection(address, deadline.left_s() / (len(addresses) - number)).close()
            return
        except OSError as error:
            failure = failure or error
    if isinstance(failure, TimeoutError):
        raise RayError(
            f"no Ray at {target}: the port did not accept a connection within {deadline.timeout_s:g} s; "
            f"see whether that machine is up and no firewall is between, or correct the address"
        )
    reason = os.strerror(failure.errno) if failure is not None and failure.errno else str(failure)
    raise RayError(f"no Ray at {target}: {reason}; {_START}, or correct the address") from failure


def _resolve(target: RayTarget, host: str, port: int, deadline: Deadline) -> Sequence[tuple[str, int]]:
    """A name in a thread: name servers that don't answer can't be waited for with a time-out of
    one's own.
    """
    if _is_numeric(host):
        return [(host, port)]
    answers: queue.SimpleQueue[list[tuple[str, int]] | OSError] = queue.SimpleQueue()

    def resolve() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            answers.put([(str(each[4][0]), port) for each in found])
        except OSError as error:
            answers.put(error)

    threading.Thread(target=resolve, name="raylog-resolve", daemon=True).start()
    try:
        answer = answers.get(timeout=deadline.left_s())
    except queue.Empty:
        raise RayError(
            f"no Ray at {target}: no name server said within {deadline.timeout_s:g} s where {host} is; give a numeric address"
        ) from None
    if isinstance(answer, OSError):
        raise RayError(
            f"no Ray at {target}: the name {host} does not resolve ({answer.strerror}); correct the address"
        ) from answer
    return list(dict.fromkeys(answer))


def _is_numeric(host: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


def _call(target: RayTarget, method: str, request: bytes, token: str | None, deadline: Deadline) -> bytes:
    """A head's reply."""
    import grpc

    try:
        with _channel(target.endpoint) as channel:
            return bytes(
                channel.unary_unary(_GCS + method)(request, timeout=deadline.left_s(), metadata=_bearer(token))
            )
    except grpc.RpcError as error:
        code, details = error.code(), str(error.details())
        if code is grpc.StatusCode.UNAUTHENTICATED:
            raise _other_token(target) from error
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise RayError(
                f"no Ray at {target}: the port accepted a connection, and nothing answered within {deadline.timeout_s:g} s; "
                "see `ray status` on that machine, or correct the address"
            ) from error
        if code is grpc.StatusCode.UNAVAILABLE and "HTTP/2" not in details:
            raise RayError(
                f"no Ray at {target}: the connection was closed without an answer ({_last(details)}); {_START}, or correct the address"
            ) from error
        what = "it speaks another protocol" if "HTTP/2" in details else _last(details)
        raise RayError(
            f"what listens at {target} is not the head of a Ray ({what}): correct the address; a head's port is 6379 "
            "unless `ray start` was told otherwise, and not its dashboard's (8265) or Ray Client's (10001)"
        ) from error


def _last(details: str) -> str:
    """What gRPC says went wrong, without the address that the message has anyway."""
    return details.rpartition("last error: ")[2].rpartition(": ")[2] or details


def _bearer(token: str | None) -> list[tuple[str, str]] | None:
    return [("authorization", f"Bearer {token}")] if token else None


@contextlib.contextmanager
def _channel(endpoint: str) -> Iterator[Any]:
    import grpc

    options = [("grpc.enable_http_proxy", 0)]
    if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
        chain, key, authority = ray_private.certificates()
        proof = grpc.ssl_channel_credentials(certificate_chain=chain, private_key=key, root_certificates=authority)
        channel = grpc.secure_channel(endpoint, proof, options=options)
    else:
        channel = grpc.insecure_channel(endpoint, options=options)
    with channel:
        yield channel


def _other_token(target: RayTarget) -> RayError:
    return RayError(
        f"the Ray at {target} asks for another token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to its own, or copy its "
        "~/.ray/auth_token here"
    )


# ------------------------------------------------------------------ the node of this machine


def _await_local_node(target: RayTarget, token: str | None, deadline: Deadline) -> None:
    """Wait for a live node of that Ray whose raylet runs on this machine and answers; it may have
    been started just now.
    """
    found = False
    while not (raylets := _local_raylets(target, token, deadline)):
        if deadline.has_passed:
            raise RayError(
                f"the Ray at {target} answers, but no node of it runs on this machine (waited {deadline.timeout_s:g} s), and a program "
                f"works through one: run it on a node of that Ray, or start one here with `ray start --address={target.endpoint}`"
            )
        if not found:
            logger.warning("The Ray at %s answers; waiting for a node of it on this machine", target)
            found = True
        time.sleep(min(_NODE_POLL_S, deadline.left_s()))
    if not any(_is_alive(raylet, deadline) for raylet in raylets):
        raise RayError(
            f"the Ray at {target} answers, but its node on this machine (raylet at {', '.join(raylets)}) does not: "
            "see `ray status`, or start that node again"
        )


def _local_raylets(target: RayTarget, token: str | None, deadline: Deadline) -> list[str]:
    """Where the raylets of this machine listen that are live nodes of that Ray, the head's node
    first, as Ray takes them.
    """
    states, messages = ray_private.head_messages()
    here = flags_of_raylets("--node_id")
    if not here:
        return []
    reply = messages.GetAllNodeInfoReply.FromString(_call(target, "GetAllNodeInfo", b"", token, deadline))
    nodes = [
        node
        for node in reply.node_info_list
        if node.state == states.GcsNodeInfo.GcsNodeState.ALIVE and node.node_id.hex() in here
    ]
    nodes.sort(key=lambda node: not node.is_head_node)
    return [f"{node.node_manager_address}:{node.node_manager_port}" for node in nodes]


def _is_alive(raylet: str, deadline: Deadline) -> bool:
    import grpc

    try:
        with _channel(raylet) as channel:
            channel.unary_unary(_UNKNOWN_METHOD)(b"", timeout=deadline.left_s())
    except grpc.RpcError as error:
        return error.code() not in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
    return True
