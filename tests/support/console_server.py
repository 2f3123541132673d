"""A console on a real socket, for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def serving(cluster: Any, decoder: Any = None, **settings: Any) -> Iterator[Any]:
    """A console of that cluster while the block runs: what ``Browser`` takes. ``decoder``: of a schema registry."""
    from console_browser import Browser

    from raylog.console.app import console_app
    from raylog.console.serving import ConsoleSettings, listening, server_of
    from raylog.console.view import ClusterView

    wanted = ConsoleSettings(**settings)
    bound, url = listening(wanted)
    app = console_app(ClusterView(cluster), wanted, decoder)
    server = server_of(app, wanted)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        yield Browser(url, app)
    finally:
        server.should_exit = True
        thread.join()
        bound.close()
