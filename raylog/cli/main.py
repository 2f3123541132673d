"""The entry point: puts the groups of commands together and decides how the process ends.

Exit codes that scripts can trust are those of ``EXIT_CODES``. Tracebacks are for raylog's own bugs,
and for ``raylog --debug``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

import raylog
from raylog.cli import (
    acls,
    actors,
    brokers,
    certificates,
    client_metrics,
    cluster,
    configs,
    console,
    consume,
    consumer_perf,
    delete_records,
    doctor,
    dump_log,
    e2e_latency,
    events,
    features,
    get_offsets,
    groups,
    leader_election,
    log_dirs,
    logs,
    metrics,
    node,
    perf,
    produce,
    producer_perf,
    quorum,
    quotas,
    reassign,
    tokens,
    top,
    topics,
    transactions,
    users,
    verifiable,
    verify,
)
from raylog.cli.output import notice
from raylog.cli.remote import reaching
from raylog.errors import RaylogError
from raylog.extras import missing

EXIT_CODES = {
    0: "done",
    1: "failed or refused, or what was looked at is not well; the last line on stderr says what to do",
    2: "used wrongly",
    130: "interrupted",
    143: "ended by SIGTERM, which is taken like an interrupt: what was begun is cleaned up",
}
_, FAILED, _, INTERRUPTED, TERMINATED = EXIT_CODES  # click ends the process with the others

app = typer.Typer(
    name="raylog",
    help="A replicated log for Ray and Spark with Apache Kafka's semantics.",
    epilog="Exit codes: " + " · ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items()),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"raylog {raylog.__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.", envvar="RAYLOG_DEBUG")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A replicated log for Ray and Spark with Apache Kafka's semantics."""
    if debug:
        os.environ["RAYLOG_DEBUG"] = "1"


app.command("up")(cluster.up)
app.command("down")(reaching(cluster.down))
app.command("status")(reaching(cluster.status))
app.command("doctor")(doctor.doctor)
app.add_typer(topics.app, name="topics")
app.add_typer(brokers.app, name="brokers")
app.add_typer(actors.app, name="actors")
app.add_typer(configs.app, name="configs")
app.add_typer(acls.app, name="acls")
app.add_typer(groups.app, name="groups")
app.add_typer(transactions.app, name="transactions")
app.add_typer(users.app, name="users")
app.add_typer(quotas.app, name="quotas")
app.add_typer(tokens.app, name="tokens")
app.add_typer(reassign.app, name="reassign")
app.command("leader-election")(reaching(leader_election.leader_election))
app.command("produce")(reaching(produce.produce))
app.command("consume")(reaching(consume.consume))
app.command("get-offsets")(reaching(get_offsets.get_offsets))
app.command("delete-records")(reaching(delete_records.delete_records))
app.command("log-dirs")(reaching(log_dirs.log_dirs))
app.add_typer(features.app, name="features")
app.command("producer-perf")(reaching(producer_perf.producer_perf, has_one_client=True))
app.command("consumer-perf")(reaching(consumer_perf.consumer_perf, has_one_client=True))
app.command("e2e-latency")(reaching(e2e_latency.e2e_latency))
app.command("verifiable-producer")(reaching(verifiable.verifiable_producer))
app.command("verifiable-consumer")(reaching(verifiable.verifiable_consumer))
app.command("verify")(reaching(verify.verify))
app.command("dump-log")(dump_log.dump_log)
app.add_typer(perf.app, name="perf")
app.add_typer(metrics.app, name="metrics")
app.add_typer(client_metrics.app, name="client-metrics")
app.add_typer(node.app, name="node")
app.command("certificates")(certificates.certificates)
app.add_typer(quorum.app, name="quorum")
app.command("logs")(reaching(logs.logs))
app.command("top")(reaching(top.top))
app.command("events")(reaching(events.events))
app.command("console")(reaching(console.console))


def unsupported_platform() -> str | None:
    """One sentence where raylog does not run, None where it does."""
    python = sys.version_info
    if sys.platform in ("linux", "darwin") and (3, 11) <= python[:2] <= (3, 14):
        return None
    return (
        f"raylog runs on Linux and macOS with Python 3.11 to 3.14; "
        f"this is {platform.system()} {platform.machine()} with Python {python[0]}.{python[1]}."
    )


class _Notices(logging.Handler):
    """Log lines as notices."""

    def emit(self, record: logging.LogRecord) -> None:
        notice(record.getMessage())


def _show_connecting() -> None:
    """What the library logs of what it connects to, and waits for, is shown as it happens."""
    connecting = logging.getLogger("raylog.connect")
    if not connecting.handlers:
        connecting.addHandler(_Notices())
        connecting.setLevel(logging.INFO)
        connecting.propagate = False


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit the process."""
    sentence = unsupported_platform()
    if sentence is not None:
        notice(sentence)
        sys.exit(FAILED)
    _show_connecting()
    with _termination_interrupts():
        _run(arguments)


@contextlib.contextmanager
def _termination_interrupts() -> Iterator[None]:
    """SIGTERM interrupts the command, as Ctrl-C does, instead of ending it on the spot."""
    is_terminated = False

    def interrupt(*_: object) -> None:
        nonlocal is_terminated
        is_terminated = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except SystemExit:
        if is_terminated:
            raise SystemExit(TERMINATED) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(arguments: Sequence[str] | None) -> None:
    try:
        app(args=None if arguments is None else list(arguments), prog_name="raylog")
    except RaylogError as error:
        if os.environ.get("RAYLOG_DEBUG"):
            raise
        notice(f"raylog: {' '.join(str(error).split())}")
        sys.exit(FAILED)
    except ModuleNotFoundError as error:
        reason = missing(error, "this command")
        if reason is error or os.environ.get("RAYLOG_DEBUG"):
            raise
        notice(f"raylog: {reason}")
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
