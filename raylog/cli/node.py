"""``raylog node``: what a Ray node says of its disks when it starts, or later."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raylog.cli.output import AsJson, notice, print_json
from raylog.disks.filesystems import doubts
from raylog.errors import DiskError
from raylog.placement.ray_private import messages_to_stderr

if TYPE_CHECKING:
    from raylog.wire.listeners import Listeners

_Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Take a listener that lets in everyone who can connect, from other machines, too."),
]

app = typer.Typer(help="A Ray node and its disks.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """A Ray node and its disks."""


@app.command("resources")
def resources(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders, one per disk, formatted or blank, or folders of such folders.")
    ],
    rack: Annotated[
        str | None, typer.Option(help="The rack of the broker that a blank folder becomes.", show_default=False)
    ] = None,
    listeners: Annotated[
        str | None,
        typer.Option(
            help="Where Kafka clients reach the node's broker: host:port, a list such as PLAINTEXT://:9092,SSL://:9093, or none.",
            show_default="what it has; for a new one port 9092 of a loopback address, and none on any other",
        ),
    ] = None,
    advertised_listeners: Annotated[
        str | None, typer.Option(help="The address that Kafka clients are given instead.", show_default=False)
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            metavar="NAME=VALUE|FILE",
            help="A broker config, or a properties file of them, set for all brokers where nobody has set it; the same on all nodes.",
            show_default=False,
        ),
    ] = None,
    insecure: _Insecure = False,
    as_json: AsJson = False,
) -> None:
    """Print the --resources of a Ray node from its disks' folders (always JSON).

    ray start --resources="$(raylog node resources /disk1 /disk2)"

    A blank folder is given its directory id, and is formatted when the cluster takes it in.
    """
    from raylog.cli.configs import started_with
    from raylog.disks.link_file import wanted_links
    from raylog.disks.listener_file import settings_of_listeners
    from raylog.placement.resources import advertisement
    from raylog.wire.listeners import checked, listeners_of

    told = started_with(config)
    named = listeners or next(iter(told.listeners), None)
    (said,) = checked(
        [
            listeners_of(
                named,
                advertised_listeners or next(iter(told.advertised_listeners), None),
                settings_of_listeners([named] if named is not None else [], told),
            )
        ]
    )
    disks = disk_folders(folders)
    for line in (*_openness(disks, said, insecure), *doubts(folders)):
        notice(line)
    configs, links = tuple(sorted(told.configs.items())), wanted_links(told, None)
    print_json(advertisement(disks, rack=rack, listeners=said, configs=configs, links=links))


@app.command("lend")
def lend(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders, one per disk, formatted or blank, or folders of such folders.")
    ],
    address: Annotated[
        str | None, typer.Option(help="The head of this node's Ray, host:port.", show_default="the Ray that runs here")
    ] = None,
    timeout_s: Annotated[float, typer.Option("--timeout", help="Seconds in which Ray has to answer.")] = 30,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            metavar="NAME=VALUE|FILE",
            help="TLS on links inside the cluster, by files of this node: security.inter.broker.protocol and ssl.*",
            show_default="what the folder has; for a new one none",
        ),
    ] = None,
    insecure: _Insecure = False,
    as_json: AsJson = False,
) -> None:
    """Lend folders of this Ray node, which runs and was started without resources for them.

    The cluster on this Ray takes them in, as `raylog up --disks N` starts it. Ray's head keeps a note of each.
    """
    from raylog.cli.configs import links_told
    from raylog.cluster import use_ray
    from raylog.disks.disk import encode_id

    links = links_told(config)
    use_ray(address, timeout_s)
    messages_to_stderr()
    import ray

    from raylog.actors.node_work import lend_folders

    here = ray.get_runtime_context().get_node_id()
    disks = disk_folders(folders)
    for line in (*_openness(disks, None, insecure), *doubts(folders)):
        notice(line)
    lent = lend_folders({here: [folder.absolute() for folder in disks]}, links)
    if as_json:
        print_json(
            [
                {"directory_id": encode_id(each.directory_id), "host": each.address, "path": str(each.path)}
                for each in lent
            ]
        )
        return
    for each in lent:
        typer.echo(f"{each.address} lends {each.path} ({encode_id(each.directory_id)})")


@app.command("reclaim")
def reclaim(
    folder: Annotated[Path, typer.Argument(help="A folder that this node has lent.")],
    address: Annotated[
        str | None, typer.Option(help="The head of this node's Ray, host:port.", show_default="the Ray that runs here")
    ] = None,
    timeout_s: Annotated[float, typer.Option("--timeout", help="Seconds in which Ray has to answer.")] = 30,
    as_json: AsJson = False,
) -> None:
    """Lend a folder of this Ray node no longer.

    Servers that run on it stay until the cluster is shut down; then nothing starts them again.
    """
    from raylog.cluster import use_ray

    use_ray(address, timeout_s)
    messages_to_stderr()
    import ray

    from raylog.placement import groups

    node: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    if not groups.reclaim(node, folder.resolve()):
        raise DiskError(
            f"{folder} is not lent by {node}: give a folder that `raylog node lend` or init(disks=…) was given"
        )
    if as_json:
        print_json({"host": node, "path": str(folder.resolve())})
    else:
        typer.echo(f"{node} lends {folder.resolve()} no longer")


def _openness(folders: list[Path], said: Listeners | None, insecure: bool) -> list[str]:
    """What to say of the listeners that the disks' brokers will have. Raises ConfigError for one that is
    open to other machines, unless that is meant.
    """
    from raylog.disks.disk import read_disk
    from raylog.wire.open_listeners import refuse_open

    there = [disk.listeners for disk in map(read_disk, folders) if disk is not None]
    each = [said] if said is not None else [listeners for listeners in there if listeners is not None]
    return refuse_open(each, is_insecure=insecure)


def disk_folders(folders: list[Path]) -> list[Path]:
    """These folders; one that is neither a disk nor blank stands for the disks and blank folders in
    it, if there are any.
    """
    found: list[Path] = []
    for folder in folders:
        if not _may_be_disk(folder) and folder.is_dir():
            inside = sorted(each for each in folder.iterdir() if each.is_dir() and _may_be_disk(each))
            found.extend(inside or [folder])
        else:
            found.append(folder)
    return found


def _may_be_disk(folder: Path) -> bool:
    from raylog.disks.disk import META_FILE, read_disk

    if (folder / META_FILE).exists():
        return True
    try:
        read_disk(folder)
    except DiskError:
        return False
    return True
