"""``raylog certificates``: an authority, and certificates for the nodes of a Ray and for clients."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylog.cli.output import AsJson, print_columns, print_json, print_text

if TYPE_CHECKING:
    from raylog.disks.node_certificates import CertificateFolder, HeldCertificate

DAYS_MIN, DAYS_MAX = 31, 1_825
"""One that lasts no longer than the first would be made anew each time; the authority lasts twice the second."""


def certificates(
    folder: Annotated[Path, typer.Argument(help="Where the authority is kept, and all that it has signed.")],
    nodes: Annotated[
        list[str] | None,
        typer.Option(
            "--node",
            metavar="HOST,…",
            help="A node, by the address that Ray knows it by, and by other names and addresses of it; may be repeated.",
            show_default=False,
        ),
    ] = None,
    clients: Annotated[
        list[str] | None,
        typer.Option(
            "--client",
            metavar="NAME",
            help="A client that authenticates by a certificate, whose subject is CN=NAME; may be repeated.",
            show_default=False,
        ),
    ] = None,
    placed_at: Annotated[
        Path | None,
        typer.Option(
            "--placed-at",
            help="Where the files of a node's folder are on the node, such as /etc/raylog.",
            show_default="where they are made",
        ),
    ] = None,
    days: Annotated[
        int, typer.Option("--days", min=DAYS_MIN, max=DAYS_MAX, help="How long certificates last that are made.")
    ] = 397,
    as_json: AsJson = False,
) -> None:
    """Make certificates for the nodes of a Ray, and make those anew that end within 30 days.

    The authority is made the first time. A node gets a folder with its key, its certificate and a
    server.properties, which `raylog node lend --config` and `raylog node resources --config` take.
    """
    from raylog.disks.node_certificates import CertificateFolder
    from raylog.extras import need

    need("cryptography", "raylog certificates")
    made = CertificateFolder(folder.expanduser().resolve())
    of_nodes, of_clients = made.make(
        [[host.strip() for host in each.split(",") if host.strip()] for each in nodes or ()],
        clients or (),
        datetime.datetime.now(datetime.UTC),
        days=days,
        placed_at=placed_at,
    )
    if as_json:
        print_json(
            {
                "authority": {"certificate": str(made.authority), "ends": made.authority_ends().isoformat()},
                "nodes": [_document("hosts", each, "server_properties") for each in of_nodes],
                "clients": [_document("names", each, "client_properties") for each in of_clients],
            }
        )
    else:
        _show(made, of_nodes, of_clients, placed_at)


def _show(
    made: CertificateFolder,
    of_nodes: list[HeldCertificate],
    of_clients: list[HeldCertificate],
    placed_at: Path | None,
) -> None:
    rows = [
        (kind, ",".join(each.names), each.change, f"{each.ends:%Y-%m-%d}", str(each.folder))
        for kind, found in (("node", of_nodes), ("client", of_clients))
        for each in found
    ]
    print_columns(("FOR", "NAME", "CHANGE", "ENDS", "FOLDER"), rows)
    print_text("", f"Authority: {made.authority}, which ends {made.authority_ends():%Y-%m-%d}")
    if of_nodes:
        print_text(
            "Copy each node's folder to that node, for its owner only. Then, on the node:",
            f"    raylog node lend DISK --config {placed_at or 'FOLDER'}/server.properties",
        )


def _document(names: str, held: HeldCertificate, properties: str) -> dict[str, Any]:
    return {
        names: list(held.names),
        "folder": str(held.folder),
        "certificate": str(held.pem),
        properties: str(held.properties),
        "ends": held.ends.isoformat(),
        "change": held.change,
    }
