"""A disk: a folder that belongs to one broker of one cluster, and says so itself.

The folder is the truth and Ray is a cache (DESIGN §3): what a cluster needs to come back after
everything was stopped is read from here. This module formats a folder, reads its identity, locks it
and refuses every folder that is not ours to use. It knows nothing of Ray, topics or the network.

Files of a formatted disk, besides the replicas' folders::

    meta.properties    0644   identity, as Java properties; the last file that formatting writes: with it the disk exists;
                              0600 with configs, some of which are secret
    cluster.secret     0600   the secret that servers and clients prove to know (SCRAM); never sent, never printed
    listeners.json     0600   the listeners with their settings, passwords and keys among them; absent without any
    internal.json      0600   the settings of TLS on the links between the cluster's processes; absent: plain ones
    .lock              0644   held with flock for the life of the Broker; contains the holder's process id

    version=1                              # of this layout; a higher one is refused
    cluster.id=5L6g3nShT-eMCtK--X86sw      # 22 characters, Kafka's base64 form of a UUID
    broker.id=0
    directory.id=kqHjjKrvQ-mgHcGNrFs1mQ    # the same form
    rack=rack-a                            # absent without a rack
    controllers=127.0.0.1:40001            # comma list of host:port; hints for finding the quorum, may be stale
    controller.endpoint=127.0.0.1:40001    # where the controller of this very disk listened last; absent without one
    listeners=127.0.0.1:9092               # where the Broker listens for Kafka clients, a list; absent: by default, "none": nowhere
    advertised.listeners=kafka.example:9092  # what these clients are told instead; absent: the same
    config.num.partitions=4                # what its node wants set for all brokers where nobody has set it; one line each

A folder is *blank* if it does not exist, is empty, or holds nothing but a reservation and what an
interrupted formatting leaves behind. A Ray node advertises its disks by directory id when it
starts, so a blank one is given its id before it is formatted::

    reserved.properties  0644   version=1, directory.id, and where known rack, cluster.id, broker.id, listeners and
                         configs; 0600 with configs; formatting deletes it

Anything else without ``meta.properties`` is somebody's data and is refused. All trouble is a
DiskError that names folder and remedy. A folder in memory (``raylog.log.mounts``) is a disk like
any other.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import os
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from raylog.disks.link_file import LINKS_FILE, Links, read_links, write_links
from raylog.disks.listener_file import LISTENERS_FILE, listener_lines, read_listeners, write_listeners
from raylog.disks.small_files import make_folder, mode_of, read_text, replace_file
from raylog.errors import ConfigError, DiskError, DiskLockedError
from raylog.log.mounts import mounted_at
from raylog.types import Endpoint
from raylog.wire.internal_tls import SecretInsideTls, secret_inside
from raylog.wire.listeners import Listeners

FORMAT_VERSION = 1
META_FILE = "meta.properties"
SECRET_FILE = "cluster.secret"
LOCK_FILE = ".lock"
RESERVATION_FILE = "reserved.properties"
METADATA_FOLDER = "__cluster_metadata-0"
FOUNDING_FOLDER = "__cluster_metadata-0.founding"
"""The first metadata of a cluster that is being founded: made on each first voter's disk before any
disk is formatted.
"""
_IN_A_BLANK_FOLDER = frozenset(
    {
        *(SECRET_FILE, LOCK_FILE, META_FILE + ".tmp", SECRET_FILE + ".tmp"),
        *(LISTENERS_FILE, LISTENERS_FILE + ".tmp", LINKS_FILE, LINKS_FILE + ".tmp"),
        *(RESERVATION_FILE, RESERVATION_FILE + ".tmp", FOUNDING_FOLDER),
        *("lost+found", ".DS_Store"),
    }
)
_CONFIG_PREFIX = "config."
Configs = tuple[tuple[str, str], ...]
"""Brokers' configs by name, sorted."""
_BOOT_OF_THIS_PROCESS = str(uuid.uuid4())
_T = TypeVar("_T")
_changing = threading.Lock()  # in memory; on a disk the folder itself is locked, as other processes change it, too
_IDENTIFIER = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class Disk:
    """A formatted disk as its own files describe it."""

    path: Path
    cluster_id: str
    broker_id: int
    directory_id: uuid.UUID
    rack: str | None
    controllers: tuple[Endpoint, ...]
    secret: str = field(repr=False)
    controller_endpoint: Endpoint | None = None
    listeners: Listeners | None = None
    configs: Configs = ()
    links: Links = field(default=(), repr=False)

    @property
    def link_secret(self) -> bytes | SecretInsideTls:
        """What this disk's processes prove to others of the cluster, inside TLS where links have it."""
        return secret_inside(self.secret, self.links)


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a blank folder will be called when it is formatted; ``cluster_id`` and ``broker_id``: by
    a cluster that is being founded.
    """

    directory_id: uuid.UUID
    rack: str | None = None
    cluster_id: str | None = None
    broker_id: int | None = None
    listeners: Listeners | None = None
    configs: Configs = ()


@dataclass(slots=True)
class DiskLock:
    """The exclusive right to a disk, until ``release`` or the end of the process, however it ends."""

    path: Path
    _let_go: Callable[[], None] | None

    def release(self) -> None:
        """Idempotent."""
        let_go, self._let_go = self._let_go, None
        if let_go is not None:
            let_go()

    @property
    def held(self) -> bool:
        return self._let_go is not None


def encode_id(value: uuid.UUID) -> str:
    """Kafka's text form of a UUID: URL-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_id(text: str) -> uuid.UUID:
    """The reverse of ``encode_id``; ValueError for anything else."""
    try:
        raw = base64.b64decode(text.encode() + b"==", altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError(f"{text!r} is no id in Kafka's base64 form") from error
    if len(raw) != 16:
        raise ValueError(f"{text!r} is {len(raw)} bytes long, an id has 16")
    return uuid.UUID(bytes=raw)


def new_id() -> uuid.UUID:
    """A random UUID whose text form does not start with a dash, so that command lines can take it
    (as in Kafka).
    """
    while True:
        drawn = uuid.uuid4()
        if not encode_id(drawn).startswith("-"):
            return drawn


def boot_id() -> str:
    """The kernel's id of this boot: equal before and after means that the page cache was not lost
    in between. Where the kernel has none (macOS), each process has an id of its own, as if the
    machine had started with it.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except FileNotFoundError:
        return _BOOT_OF_THIS_PROCESS


def free_bytes(path: Path) -> int:
    """What an unprivileged process may still write to the file system of ``path``."""
    return shutil.disk_usage(path).free


def disk_path(folder: Path, broker_id: int, number: int) -> Path:
    """Where an embedded cluster has a broker's disks: ``broker-0``, ``broker-0-disk-1``, … A link
    to another file system will do.
    """
    return folder / (f"broker-{broker_id}" if number == 0 else f"broker-{broker_id}-disk-{number}")


def format_disk(
    path: Path,
    *,
    cluster_id: str,
    broker_id: int,
    rack: str | None,
    controllers: Sequence[Endpoint],
    secret: str,
    directory_id: uuid.UUID | None = None,
) -> Disk:
    """Make a blank folder a disk. Durable when it returns; interrupted, it leaves the folder blank.

    Creates the folder; takes over what is reserved there, unless it is given. Raises DiskError if
    the folder is not blank or can't be written.
    """
    assert broker_id >= 0, broker_id
    _check_rack(rack)
    if read_disk(path) is not None:
        raise DiskError(f"{path} is already formatted; give another folder, or delete it if its data may go")
    reserved = read_reservation(path) or Reservation(new_id())
    disk = Disk(
        path=path,
        cluster_id=cluster_id,
        broker_id=broker_id,
        directory_id=directory_id or reserved.directory_id,
        rack=rack or reserved.rack,
        controllers=tuple(controllers),
        secret=secret,
        listeners=reserved.listeners,
        configs=reserved.configs,
    )

    def write() -> None:
        make_folder(path)
        replace_file(path / SECRET_FILE, secret + "\n", mode=0o600)
        replace_file(path / META_FILE, _properties_of(disk), mode=mode_of(disk.configs))
        if mounted_at(path) is None:
            (path / RESERVATION_FILE).unlink(missing_ok=True)

    _reporting(path, write)
    return disk


def reserve_disk(
    path: Path, *, rack: str | None = None, listeners: Listeners | None = None, configs: Configs = ()
) -> Reservation:
    """Give a blank folder its directory id, durably; the one that it has already if it is reserved.
    The rest is noted, too.

    Raises DiskError for a folder that is missing (a disk that is not mounted?) or not blank.
    """
    _check_rack(rack)
    if not _reporting(path, path.is_dir):
        raise DiskError(f"there is no folder {path}: mount its disk, or make it")
    if read_disk(path) is not None:
        raise DiskError(f"{path} is already formatted")
    found = read_reservation(path)
    known = found or Reservation(new_id())
    reserved = replace(
        known, rack=rack or known.rack, listeners=listeners or known.listeners, configs=configs or known.configs
    )
    if reserved == found:
        return found
    write_reservation(path, reserved)
    return reserved


def write_reservation(path: Path, reserved: Reservation) -> None:
    """Reserve a blank folder, durably; an earlier reservation is replaced."""
    fields = {
        "version": FORMAT_VERSION,
        "directory.id": encode_id(reserved.directory_id),
        "rack": reserved.rack,
        "cluster.id": reserved.cluster_id,
        "broker.id": reserved.broker_id,
    }
    lines = [f"{name}={value}" for name, value in fields.items() if value is not None]
    text = "\n".join([*lines, *listener_lines(reserved.listeners), *_config_lines(reserved.configs)]) + "\n"

    def write() -> None:
        replace_file(path / RESERVATION_FILE, text, mode=mode_of(reserved.configs))

    _reporting(path, lambda: write_listeners(path, reserved.listeners, write))


def read_reservation(path: Path) -> Reservation | None:
    """What is reserved for that folder, if anything is; DiskError if that can't be read."""
    where = path / RESERVATION_FILE
    try:
        properties = _properties(read_text(where))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise DiskError(f"{where} can't be read: {error}") from error
    try:
        if int(properties["version"]) > FORMAT_VERSION:
            raise DiskError(f"{where} is of a newer version; upgrade raylog")
        return Reservation(
            decode_id(properties["directory.id"]),
            properties.get("rack"),
            properties.get("cluster.id"),
            int(properties["broker.id"]) if "broker.id" in properties else None,
            read_listeners(path, properties),
            _configs_of(properties),
        )
    except (KeyError, ValueError, ConfigError) as error:
        raise DiskError(f"{where} is damaged ({error}): delete it") from None


def read_disk(path: Path) -> Disk | None:
    """The disk in that folder, None if the folder is blank.

    Raises DiskError for a folder that is no disk of ours (somebody's files, Apache Kafka's own log
    directory, a newer layout, broken properties, a missing secret).
    """
    is_mounted = mounted_at(path) is not None
    if not is_mounted and not _reporting(path, path.exists):
        return None
    if not is_mounted and not path.is_dir():
        raise DiskError(f"{path} is a file; a disk is a folder")
    try:
        text = read_text(path / META_FILE)
    except FileNotFoundError:
        if not is_mounted:
            _refuse_foreign_files(path)
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise DiskError(f"{path / META_FILE} can't be read: {error}") from error
    return _parse(path, _properties(text))


def open_disk(path: Path, *, cluster_id: str | None = None) -> Disk:
    """A formatted disk, of that cluster if one is named; DiskError otherwise. Checks that the
    folder can be written.
    """
    disk = read_disk(path)
    if disk is None:
        raise DiskError(f"{path} is not formatted: no {META_FILE} in it")
    if cluster_id is not None and disk.cluster_id != cluster_id:
        raise DiskError(
            f"{path} belongs to cluster {disk.cluster_id}, not to {cluster_id}; give each cluster folders of its own"
        )
    check_writable(path)
    return disk


def check_writable(path: Path) -> None:
    """DiskError unless files can be made in that folder."""
    if mounted_at(path) is not None:
        return
    probe = path / f"{META_FILE}.probe-{os.getpid()}-{threading.get_ident()}"

    def write() -> None:
        probe.write_bytes(b"")
        probe.unlink()

    _reporting(path, write)


def with_controllers(disk: Disk, controllers: Sequence[Endpoint]) -> Disk:
    """Write down where the controllers are now, durably; returns the disk as it then reads."""
    return _change(disk.path, disk.cluster_id, lambda found: replace(found, controllers=tuple(controllers)))


def controller_moved(disk: Disk, *, home: Path, old: Endpoint | None, new: Endpoint, is_alone: bool) -> Disk:
    """Write down, durably, that the controller whose disk is ``home`` listens at ``new`` now;
    returns the disk as it then reads.

    ``is_alone``: there is no other, so every other address is stale.
    """

    def move(found: Disk) -> Disk:
        others = [] if is_alone else [each for each in found.controllers if each not in (old, new)]
        place = next((at for at, each in enumerate(found.controllers) if each in (old, new)), len(others))
        own = new if found.path == home else found.controller_endpoint
        return replace(found, controllers=(*others[:place], new, *others[place:]), controller_endpoint=own)

    return _change(disk.path, disk.cluster_id, move)


def controller_left(disk: Disk, *, home: Path, was_at: Sequence[Endpoint]) -> Disk:
    """Write down, durably, that the disk ``home`` has no controller any more; it listened at
    ``was_at``. The last address stays, for a disk without any counts as one of a new cluster.
    """

    def leave(found: Disk) -> Disk:
        others = tuple(each for each in found.controllers if each not in was_at)
        own = None if found.path == home else found.controller_endpoint
        return replace(found, controllers=others or found.controllers, controller_endpoint=own)

    return _change(disk.path, disk.cluster_id, leave)


def with_listeners(disk: Disk, listeners: Listeners | None) -> Disk:
    """Write down where the disk's Broker listens for Kafka clients, durably; it counts from the
    Broker's next start.
    """

    def write() -> Disk:
        return _change(disk.path, disk.cluster_id, lambda found: replace(found, listeners=listeners))

    return _reporting(disk.path, lambda: write_listeners(disk.path, listeners, write))


def with_links(disk: Disk, links: Links) -> Disk:
    """Write down how links between the cluster's processes have TLS, durably; it counts from a
    process's next start.
    """
    if disk.links != links:
        _reporting(disk.path, lambda: write_links(disk.path, links))
    return replace(disk, links=links)


def with_same_links(disks: Sequence[Disk], wanted: Links | None) -> list[Disk]:
    """All disks of a cluster have the TLS inside that is wanted, or, for None, that the first of them
    has: those that were just formatted too.
    """
    links = wanted if wanted is not None else next((disk.links for disk in disks if disk.links), ())
    return [with_links(disk, links) for disk in disks]


def with_configs(disk: Disk, configs: Configs) -> Disk:
    """Write down what the disk's node wants set for all brokers, durably; it counts from the disk's
    next registration.
    """
    return _change(disk.path, disk.cluster_id, lambda found: replace(found, configs=configs))


def set_listeners(disks: Sequence[Disk], wanted: Sequence[Listeners | None]) -> list[Disk]:
    """Write down the listeners that are wanted of the disks' brokers, by broker id; None leaves
    what is there.
    """
    return [with_listeners(disk, wanted[disk.broker_id]) if differs(disk, wanted) else disk for disk in disks]


def differs(disk: Disk, wanted: Sequence[Listeners | None]) -> bool:
    """Whether other listeners are wanted of the disk's broker than it has."""
    new = wanted[disk.broker_id] if disk.broker_id < len(wanted) else None
    return new is not None and new != disk.listeners


def _change(path: Path, cluster_id: str, change: Callable[[Disk], Disk]) -> Disk:
    """Read, change and write the properties while nobody else does."""

    def changed() -> Disk:
        before = open_disk(path, cluster_id=cluster_id)
        after = change(before)
        if after != before:
            replace_file(path / META_FILE, _properties_of(after), mode=mode_of(after.configs))
        return after

    def work() -> Disk:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            return changed()
        finally:
            os.close(folder)

    if mounted_at(path) is not None:
        with _changing:
            return changed()
    return _reporting(path, work)


def lock_disk(path: Path) -> DiskLock:
    """Take the disk for this process; DiskError with the holder's process id if another one has it.

    The kernel frees the lock when the holder dies, so a lock is never stale.
    """
    name = path / LOCK_FILE
    files = mounted_at(path)
    if files is not None:
        return DiskLock(path, files.lock(str(name)).close)
    descriptor = _reporting(path, lambda: os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise DiskLockedError(
            f"{path} is in use by process {holder}; stop that one first or give another folder"
        ) from None
    except OSError as error:
        os.close(descriptor)
        raise DiskError(f"{path} can't be locked: {error}") from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return DiskLock(path, lambda: os.close(descriptor))


def _check_rack(rack: str | None) -> None:
    if rack is not None and not _IDENTIFIER.fullmatch(rack):
        raise DiskError(f"rack {rack!r} may hold letters, digits, '.', '_' and '-' only")


def _refuse_foreign_files(path: Path) -> None:
    names = _reporting(path, lambda: sorted(os.listdir(path)))
    foreign = [name for name in names if name not in _IN_A_BLANK_FOLDER and ".probe-" not in name]
    if foreign:
        shown = ", ".join(foreign[:3]) + (", …" if len(foreign) > 3 else "")
        raise DiskError(f"{path} holds files that are not raylog's ({shown}); give an empty folder")


def _parse(path: Path, properties: dict[str, str]) -> Disk:
    where = path / META_FILE
    version = properties.get("version", "")
    if "node.id" in properties or version == "0":
        raise DiskError(f"{path} is a log directory of Apache Kafka, which can't be adopted; give an empty folder")
    if not version.isdecimal():
        raise DiskError(f"{where} has no version: it is damaged, or not raylog's")
    if int(version) > FORMAT_VERSION:
        raise DiskError(f"{where} has version {version}, newer than this raylog's {FORMAT_VERSION}; upgrade raylog")
    try:
        controllers = tuple(_endpoint(each) for each in properties["controllers"].split(",") if each)
        broker_id = int(properties["broker.id"])
        directory_id = decode_id(properties["directory.id"])
        cluster_id = properties["cluster.id"]
        own = properties.get("controller.endpoint")
        controller_endpoint = _endpoint(own) if own else None
        listeners = read_listeners(path, properties)
        links = read_links(path)
    except KeyError as error:
        raise DiskError(f"{where} lacks {error.args[0]}: it is damaged") from None
    except (ValueError, ConfigError) as error:
        raise DiskError(f"{where} is damaged: {error}") from None
    if broker_id < 0 or not cluster_id:
        raise DiskError(f"{where} is damaged: broker.id={broker_id}, cluster.id={cluster_id!r}")
    try:
        secret = read_text(path / SECRET_FILE).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DiskError(f"{path / SECRET_FILE}: {reason}; copy it from another disk of this cluster") from error
    rack = properties.get("rack") or None
    configs = _configs_of(properties)
    return Disk(
        path,
        cluster_id,
        broker_id,
        directory_id,
        rack,
        controllers,
        secret,
        controller_endpoint,
        listeners,
        configs,
        links,
    )


def _configs_of(properties: dict[str, str]) -> Configs:
    return tuple(
        sorted(
            (name.removeprefix(_CONFIG_PREFIX), value)
            for name, value in properties.items()
            if name.startswith(_CONFIG_PREFIX)
        )
    )


def _config_lines(configs: Configs) -> list[str]:
    return [f"{_CONFIG_PREFIX}{name}={value}" for name, value in configs]


def _properties(text: str) -> dict[str, str]:
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith(("#", "!")))
    return {key.strip(): value.strip() for key, _, value in pairs}


def _properties_of(disk: Disk) -> str:
    lines = [
        f"version={FORMAT_VERSION}",
        f"cluster.id={disk.cluster_id}",
        f"broker.id={disk.broker_id}",
        f"directory.id={encode_id(disk.directory_id)}",
        f"controllers={','.join(map(_endpoint_text, disk.controllers))}",
    ]
    if disk.controller_endpoint is not None:
        lines.append(f"controller.endpoint={_endpoint_text(disk.controller_endpoint)}")
    if disk.rack is not None:
        lines.append(f"rack={disk.rack}")
    return "\n".join([*lines, *listener_lines(disk.listeners), *_config_lines(disk.configs)]) + "\n"


def _endpoint(text: str) -> Endpoint:
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is no host:port")
    return Endpoint(host.removeprefix("[").removesuffix("]"), int(port))


def _endpoint_text(endpoint: Endpoint) -> str:
    return f"[{endpoint.host}]:{endpoint.port}" if ":" in endpoint.host else str(endpoint)


def _reporting(path: Path, action: Callable[[], _T]) -> _T:
    try:
        return action()
    except OSError as error:
        for each in (path, *path.parents):
            if os.path.isfile(each):
                raise DiskError(f"{each} is a file and not a folder: give another folder") from error
        raise DiskError(f"{path} can't be used: {error.strerror or error}; check its owner, mode and mount") from error
