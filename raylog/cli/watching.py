"""What ``--watch`` does: shows the same again and again, until Ctrl-C."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import Annotated

import typer

from raylog.cli.output import notice, print_text
from raylog.errors import ClientTimeoutError, ClusterError, ConfigError, DisconnectedError

Watch = Annotated[
    float | None,
    typer.Option("--watch", min=0.1, metavar="SECONDS", help="Show it anew every so many seconds, until Ctrl-C."),
]
TOP_LEFT_AND_CLEAR = "\x1b[H\x1b[J"


def watched(show: Callable[[], None], every_s: float, *, as_json: bool) -> None:
    """Never returns. A terminal shows the newest only; a pipe gets all, each under its time. What a
    cluster that is not there is asked is asked again.
    """
    while True:
        if sys.stdout.isatty() and not as_json:
            sys.stdout.write(TOP_LEFT_AND_CLEAR)
        if not as_json:
            print_text(datetime.now().isoformat(" ", "seconds"))
        try:
            show()
        except ConfigError:
            raise
        except (ClusterError, ClientTimeoutError, DisconnectedError) as error:
            notice(f"{error}; asking again")
        sys.stdout.flush()
        time.sleep(every_s)
