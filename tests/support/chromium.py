"""A Chromium without a window that a test presses keys in, over its DevTools protocol on two pipes.

No port and no other package: what goes to file descriptor 3 and comes from 4 is JSON, ended by a zero byte.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_S = 120.0
_NAMED_KEYS = {"Escape": 27, "Enter": 13}


def browser_program() -> str:
    """The path of a Chromium; skips the test where there is none."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"none of {', '.join(NAMES)} is on the PATH (Debian: apt-get install chromium)")
    return found


class Page:
    """A tab. What JavaScript answers has to be JSON."""

    def __init__(self, call: Callable[..., dict[str, Any]]) -> None:
        self._call = call

    def open(self, url: str) -> None:
        """Returns when its scripts have run."""
        self._call("Page.navigate", url=url)
        self.until(f"location.href.split('#')[0] === {json.dumps(url)} && document.readyState === 'complete'")

    def js(self, expression: str) -> Any:
        """Its value. Raises AssertionError for what the page throws."""
        told = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def until(self, expression: str, within_s: float = PATIENCE_S) -> Any:
        """The first value of the expression that is true; the page may be on its way to another URL."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            try:
                found = self.js(expression)
            except AssertionError:
                found = None
            if found:
                return found
            time.sleep(0.02)
        raise AssertionError(
            f"never true: {expression}; the page is {self.js('location.href + document.body.innerText')}"
        )

    def press(self, *keys: str) -> None:
        """Each key down and up, as a keyboard does it: the text goes where the focus is."""
        for key in keys:
            code = _NAMED_KEYS.get(key, 0)
            text = {} if code else {"text": key}
            self._call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
            self._call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def click(self, selector: str) -> None:
        self.js(f"document.querySelector({json.dumps(selector)}).click()")

    def have_system(self, scheme: str) -> None:
        """The system is ``dark`` or ``light`` from now on."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])


@contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    """An empty tab of a browser of its own, which keeps what pages store in ``profile``."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    high_in, high_out = (fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 10) for each in (theirs_in, theirs_out))
    os.close(theirs_in)
    os.close(theirs_out)
    program = browser_program()
    arguments = [
        program,
        "--headless=new",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
        "about:blank",
    ]
    quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    pipes = [(os.POSIX_SPAWN_DUP2, high_in, 3), (os.POSIX_SPAWN_DUP2, high_out, 4)]
    pid = os.posix_spawn(program, arguments, os.environ, file_actions=[*quiet, *pipes], setpgroup=0)
    os.close(high_in)
    os.close(high_out)
    try:
        with os.fdopen(ours_out, "wb", buffering=0) as orders, os.fdopen(ours_in, "rb", buffering=0) as answers:
            yield _tab(_caller(orders, answers))
            orders.write(json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
    finally:
        _end(pid)


def _caller(orders: Any, answers: Any) -> Callable[..., dict[str, Any]]:
    """Sends a command and returns its result. Events are skipped."""
    buffered = bytearray()
    numbers = iter(range(1, 1 << 31))

    def next_message() -> dict[str, Any]:
        while b"\0" not in buffered:
            read = answers.read(1 << 16)
            assert read, "the browser has ended"
            buffered.extend(read)
        message, _, rest = bytes(buffered).partition(b"\0")
        buffered[:] = rest
        found: dict[str, Any] = json.loads(message)
        return found

    def call(method: str, session: Mapping[str, str] | None = None, **parameters: Any) -> dict[str, Any]:
        number = next(numbers)
        orders.write(
            json.dumps({"id": number, "method": method, "params": parameters, **(session or {})}).encode() + b"\0"
        )
        while (message := next_message()).get("id") != number:
            pass
        assert "error" not in message, (method, message["error"])
        result: dict[str, Any] = message["result"]
        return result

    return call


def _tab(call: Callable[..., dict[str, Any]]) -> Page:
    target = call("Target.createTarget", url="about:blank")["targetId"]
    session = {"sessionId": call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
    page = Page(lambda method, **parameters: call(method, session, **parameters))
    call("Page.enable", session)
    call("Emulation.setFocusEmulationEnabled", session, enabled=True)
    return page


def _end(pid: int) -> None:
    """It ends by itself within a while; else it is killed with its children."""
    deadline = time.monotonic() + 20
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return
        time.sleep(0.02)
