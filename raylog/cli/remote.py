"""The options by which every command reaches a cluster from outside, as Kafka's tools do:
``--bootstrap-server`` and ``--command-config``.

A ``ClusterApp`` adds both to each of its commands that takes a Ray's ``--address``, and
``reaching`` adds them to one. The command itself does not see them: ``outside`` gives what they say
to ``find_cluster``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from raylog.configs.properties import read_properties
from raylog.errors import ConfigError

BOOTSTRAP_SERVERS, CLUSTER_SECRET = "bootstrap.servers", "cluster.secret"
_BootstrapServer = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        metavar="HOST:PORT,…",
        help="Listeners of the cluster's brokers, to be reached from whatever machine.",
        show_default=False,
    ),
]
_CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help="A properties file with options of clients, by Kafka's names.",
        show_default=False,
    ),
]

Command = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Outside:
    """What the two options say. ``options`` are for every client, by Kafka's names."""

    bootstrap_servers: str | None = None
    secret: str | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    client_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """For the one client that the command has, if it takes such: then ``options`` are empty."""


_told: ContextVar[Outside] = ContextVar("raylog_outside")


class ClusterApp(typer.Typer):
    """A group of commands that reach a cluster."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Command], Command]:  # type: ignore[override]
        register = super().command(name, **settings)
        return lambda command: register(reaching(command))


def reaching(command: Command, *, has_one_client: bool = False) -> Command:
    """The same command with the two options, if it takes a Ray's address. With ``has_one_client``
    the file is for that client, whichever it is.
    """
    signature = inspect.signature(command, eval_str=True)
    if "address" not in signature.parameters:
        return command

    @functools.wraps(command)
    def run(*, bootstrap_server: str | None = None, command_config: Path | None = None, **given: Any) -> Any:
        options = {} if command_config is None else read_properties(command_config)
        if has_one_client:
            before = _told.set(Outside(bootstrap_server, client_options=options))
        else:
            servers = options.pop(BOOTSTRAP_SERVERS, None)
            secret = options.pop(CLUSTER_SECRET, None)
            if secret is not None and not (bootstrap_server or servers):
                raise ConfigError(f"{command_config} has cluster.secret, which goes with bootstrap.servers: give both")
            before = _told.set(Outside(bootstrap_server or servers, secret, options))
        try:
            return command(**given)
        finally:
            _told.reset(before)

    added = {"bootstrap_server": _BootstrapServer, "command_config": _CommandConfig}
    parameters = {name: each.replace(kind=each.KEYWORD_ONLY) for name, each in signature.parameters.items()}
    for name, annotation in added.items():
        parameters[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
    untyped: Any = run
    untyped.__signature__ = signature.replace(parameters=list(parameters.values()))
    untyped.__annotations__ = {name: each.annotation for name, each in parameters.items()}
    return run


@contextmanager
def reached_through(servers: str | None, secret: str | None, of_security: Mapping[str, str]) -> Iterator[None]:
    """Meanwhile a cluster is also found by what a client's own options say of it; the command's
    ``--bootstrap-server`` wins. ``of_security`` are those of TLS and SASL.
    """
    told = outside()
    chosen = told.bootstrap_servers or servers
    if secret is not None and chosen is None:
        raise ConfigError("cluster.secret goes with bootstrap.servers: give both")
    options = {**told.options, **of_security}
    before = _told.set(replace(told, bootstrap_servers=chosen, secret=told.secret or secret, options=options))
    try:
        yield
    finally:
        _told.reset(before)


def outside() -> Outside:
    """What the command that runs was told; empty outside of one."""
    return _told.get(Outside())
