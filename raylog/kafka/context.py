"""Who asks, and through which door: what a server knows of a request besides its bytes.

The server that a client is connected to makes one ``RequestContext`` for each client id of the connection, and all requests with that
client id share it. Where that server passes a request on to another process of the cluster, the context goes with it, on every way:
raw, split, without an answer, to coordinators and to the controller. It takes the place of the client id in the request's header::

    raylog-context-1 TAB principal TAB listener TAB client host TAB client id TAB trace id TAB milliseconds left

Escaped as PostgreSQL's COPY does: ``\\N`` is none, ``\\t`` a tab, ``\\\\`` a backslash. Further fields behind these are ignored, so that a
later version can add some; one that changes these has another number in front. The deadline travels as the time that is left, because
clocks differ.

A server believes such a client id only on a connection whose peer has proved the cluster's secret and says that it is a server process
(``Peer.node_id`` >= 0). From anybody else it is a client id like others. A request that a process sends for itself, such as a follower's
fetch, has a plain client id, and the context of that process.

Principals are Kafka's, a type and a name. The type ``Cluster`` is for those who have proved the cluster's secret: ``Cluster:65538`` is the
process with that node id, ``Cluster:client`` any other program that knows the secret. Whoever authenticates outside clients never
gives this type away.

Invariant: every text is at most as long as ``_LONGEST`` says, so the field fits into ``FIELD_BYTES_MAX``, which fits into a header.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import Final

from raylog.errors import ProtocolError

ANONYMOUS: Final = "User:ANONYMOUS"
SECRET_HOLDER: Final = "Cluster:client"
EXTERNAL: Final = "PLAINTEXT"  # the listener of Kafka clients that has no other name
INTERNAL: Final = "INTERNAL"  # that of a cluster's own links
CONTROLLER: Final = "CONTROLLER"  # as DescribeQuorum calls that of a controller
CONTROLLER_WITH_TLS: Final = "CONTROLLER_SSL"  # where links inside have TLS
MARK: Final = "raylog-context-"
PRINCIPAL_CHARACTERS_MAX: Final = 1_000
CLIENT_ID_CHARACTERS_MAX: Final = 4_000  # what a longer one has more is cut off
FIELD_BYTES_MAX: Final = 24_000

_START: Final = f"{MARK}1\t"
_NONE: Final = "\\N"
_FIELDS: Final = 6
_LONGEST: Final = {
    "principal": PRINCIPAL_CHARACTERS_MAX,
    "listener": 100,
    "client_host": 255,
    "client_id": CLIENT_ID_CHARACTERS_MAX,
    "trace_id": 250,
}
_escape = re.compile(r"\\(.)", re.DOTALL)
_milliseconds = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Whoever changes it makes another one with ``dataclasses.replace``, because requests share it.

    ``principal``, ``listener`` and ``client_host``: set by the server that the client is connected
    to, ``principal`` by what authenticates the connection. The host is an address without a port.
    ``client_id``: the client's own word, cut to ``CLIENT_ID_CHARACTERS_MAX`` characters; proves
    nothing. ``trace_id`` and ``deadline``: set by a stage (``chain``), if by anybody. The deadline
    is a time of ``time.monotonic`` until which the caller waits; a context that has one belongs to
    one request.

    Raises ProtocolError for a text that is too long: cutting a principal would make it somebody
    else's.
    """

    principal: str
    listener: str
    client_host: str
    client_id: str | None
    trace_id: str | None = None
    deadline: float | None = None
    _field: bytes | None = field(default=None, init=False, repr=False, compare=False)  # the header's, once made

    def __post_init__(self) -> None:
        for name, longest in _LONGEST.items():
            text: str | None = getattr(self, name)
            if text is not None and len(text) > longest:
                raise ProtocolError(f"a {name.replace('_', ' ')} of {len(text)} characters, allowed are {longest}")

    def header_field(self) -> bytes:
        """What stands in a request's header for the client id: a length and the text. Kept, unless
        there is a deadline.
        """
        if self._field is not None:
            return self._field
        left = None if self.deadline is None else max(0, round((self.deadline - time.monotonic()) * 1_000))
        texts = (self.principal, self.listener, self.client_host, self.client_id, self.trace_id)
        written = [*map(_escaped, texts), _NONE if left is None else str(left)]
        encoded = (_START + "\t".join(written)).encode()
        assert len(encoded) <= FIELD_BYTES_MAX, f"a context of {len(encoded)} bytes"
        made = len(encoded).to_bytes(2, "big") + encoded
        if left is None:
            object.__setattr__(self, "_field", made)
        return made


def principal_of_process(node_id: int) -> str:
    """The principal of a server process of this cluster; with −1 that of any other program that
    knows the secret.
    """
    return f"Cluster:{node_id}" if node_id >= 0 else SECRET_HOLDER


def decoded(client_id: str) -> RequestContext:
    """The context that stands in a header's place for the client id. Raises ProtocolError if it
    does not, or not in this version.
    """
    if not client_id.startswith(_START):
        raise ProtocolError(f"a request's context of another version ({client_id[:40]!r})")
    written = client_id[len(_START) :].split("\t")
    if len(written) < _FIELDS:
        raise ProtocolError(f"a request's context of {len(written)} fields")
    principal, listener, host, client, trace, left = map(_plain, written[:_FIELDS])
    if principal is None or listener is None or host is None or not (left is None or _milliseconds.fullmatch(left)):
        raise ProtocolError(f"a request's context that says too little ({client_id[:200]!r})")
    deadline = None if left is None else time.monotonic() + int(left) / 1_000
    return RequestContext(principal, listener, host, client, trace, deadline)


def _escaped(text: str | None) -> str:
    return _NONE if text is None else text.replace("\\", "\\\\").replace("\t", "\\t")


def _plain(written: str) -> str | None:
    if written == _NONE:
        return None
    return _escape.sub(lambda found: "\t" if found[1] == "t" else found[1], written) if "\\" in written else written
