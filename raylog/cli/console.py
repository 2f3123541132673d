"""``raylog console``: a web page that shows the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, Folder, Timeout, find_cluster
from raylog.cli.output import AsJson, notice, print_json, print_text
from raylog.cli.schema_registry import (
    RegistryCa,
    RegistryPasswordFile,
    RegistryUrl,
    RegistryUser,
    decoder_of,
    password_in,
)

PORT = 8900


def console(
    host: Annotated[
        str, typer.Option("--host", help="Where to listen. All but loopback needs a password, or --insecure.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="0 takes any free port.")] = PORT,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse all changes.")] = False,
    password_file: Annotated[
        Path | None,
        typer.Option(
            "--password-file", help="Its first line is the password that browsers have to give.", show_default=False
        ),
    ] = None,
    ssl_certificate: Annotated[
        Path | None, typer.Option("--ssl-certificate", help="Serve HTTPS: a certificate in PEM.", show_default=False)
    ] = None,
    ssl_key: Annotated[
        Path | None, typer.Option("--ssl-key", help="The certificate's private key in PEM.", show_default=False)
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Listen on the network without a password.")] = False,
    schema_registry: RegistryUrl = None,
    schema_registry_user: RegistryUser = None,
    schema_registry_password_file: RegistryPasswordFile = None,
    schema_registry_ca: RegistryCa = None,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Show the cluster in a browser: brokers, topics, messages, groups, transactions, events.

    The console may do what the user of --command-config may do. Runs until Ctrl-C. Needs
    raylog[console].
    """
    from raylog.extras import need_console

    need_console("raylog console")
    from raylog.console.app import console_app
    from raylog.console.serving import ConsoleSettings, serve
    from raylog.console.view import ClusterView

    password = None if password_file is None else password_in(password_file)
    settings = ConsoleSettings(host, port, read_only, insecure, password, ssl_certificate, ssl_key)
    lines = settings.checked()
    decoder = decoder_of(schema_registry, schema_registry_user, schema_registry_password_file, schema_registry_ca)
    view = ClusterView(find_cluster(folder, address, timeout))

    def say(url: str) -> None:
        for line in lines:
            notice(line)
        if as_json:
            print_json({"url": url, "read_only": read_only})
        else:
            print_text(f"The console of cluster {view.cluster.address.cluster_id}: {url}")

    serve(console_app(view, settings, decoder), settings, say)
