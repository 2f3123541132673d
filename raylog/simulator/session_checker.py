"""What must hold of one process's control session, seen from outside.

The checker compares what the machine (``raylog.control.control_session``) orders with what its
links have done. It knows nothing of the machine's states.
"""

from __future__ import annotations

from collections.abc import Iterable

from raylog.control.session import Exit, FromController, Welcome
from raylog.simulator.checkers import Violation
from raylog.types import Endpoint


class SessionChecker:
    """Of one process. The driver of its session calls a method for each thing that happens, which
    raises ``Violation``.
    """

    def __init__(self, process: str) -> None:
        self._process = process
        self._link: int | None = None  # the one that is open, or being opened
        self._last_link = 0
        self._has_hello = False
        self._connected = False
        self._arriving: tuple[int, FromController] | None = None
        self._known: dict[Endpoint, None] = {}  # addresses that were read last, and those of summons before
        self._summons: dict[Endpoint, None] = {}  # since then
        self._tried: dict[Endpoint, None] = {}  # since the last reading

    def read(self, controllers: Iterable[Endpoint] | None) -> None:
        """None: it could not be read."""
        self._tried.clear()
        if controllers is None:
            self._known |= self._summons
        else:
            self._known = dict.fromkeys(controllers) | self._summons
            self._summons = {}

    def summoned(self, endpoint: Endpoint) -> None:
        self._summons[endpoint] = None

    def opens(self, link: int, endpoint: Endpoint) -> None:
        """One link at a time; each address once for each reading, as it was read last."""
        self._demand(self._link is None, f"opens link {link} beside {self._link}")
        self._demand(link > self._last_link, f"opens link {link} after {self._last_link}")
        self._demand(endpoint not in self._tried, f"tries {endpoint} again without having read the addresses")
        self._demand(endpoint in self._known, f"looks for a controller at {endpoint}, which is not what it read last")
        self._link = self._last_link = link
        self._has_hello = False
        self._tried[endpoint] = None

    def gone(self, link: int) -> None:
        """The link was closed by the process, or has ended."""
        if link == self._link:
            self._link = None

    def says_hello(self, link: int) -> None:
        self._demand(link == self._link and not self._has_hello, f"says hello over link {link} of {self._link}")
        self._has_hello = True

    def sends(self, link: int) -> None:
        self._demand(link == self._last_link and self._has_hello, f"sends over link {link} without a hello")

    def arrives(self, link: int, frame: FromController) -> None:
        """What is ordered next is ordered because of this frame, until ``settled``."""
        self._arriving = (link, frame)

    def changes(self, connected: bool) -> None:
        """A session begins by a Welcome over the open link, behind a hello, and ends before the
        next one begins.
        """
        self._demand(connected is not self._connected, f"reports the session as {connected} twice")
        self._connected = connected
        if connected:
            link, frame = self._arriving or (None, None)
            was_welcomed = link is not None and link == self._link and self._has_hello and isinstance(frame, Welcome)
            self._demand(was_welcomed, f"takes {frame} over link {link} of {self._link} for the begin of a session")

    def obeys(self, frame: FromController) -> None:
        """What is obeyed came over the open link, in a session; an Exit may come instead of one."""
        self._demand(self._arriving is not None, f"obeys {frame}, which did not arrive now")
        assert self._arriving is not None
        link, arrived = self._arriving
        self._demand(arrived is frame, f"obeys {frame} when {arrived} arrives")
        self._demand(link == self._link and self._has_hello, f"obeys {frame} over link {link} of {self._link}")
        self._demand(self._connected or isinstance(frame, Exit), f"obeys {frame} before the session has begun")

    def settled(self) -> None:
        """The machine has handled all that has happened."""
        self._arriving = None
        self._demand(not self._connected or self._link is not None, "keeps a session without a link")

    def _demand(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise Violation(f"{self._process} {otherwise}")
