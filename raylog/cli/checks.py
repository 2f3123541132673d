"""What ``raylog doctor`` checks: pure functions from facts about a machine to findings.

``Facts`` says what was seen (``raylog/cli/machine.py`` looks), each check judges one thing, and
each finding that is not ok carries the command that mends it. Three levels: a *failure* keeps
raylog from working or from keeping its promises, a *warning* will matter under load or for one
feature, ok is ok. Nothing here reads the machine, so that every judgement can be tested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from raylog.log.open_files import DESCRIPTORS_MAX, descriptors_for, logs_max_of

GIB = 1024**3
MIB = 1024**2
RAY_VERSION_MIN = (2, 37)
JAVA_WANTED = 17
MAP_COUNT_MIN = (
    65530  # the kernel's own default; raylog maps no log, but each segment that Kafka's tools open needs two maps
)
SHM_BYTES_MIN = 128 * MIB  # the embedded cluster's object store is 80 MB
DISK_FREE_BYTES_MIN = GIB
OWN_OPEN_FILES = 256  # sockets, Ray's own files and libraries of one server process
OPEN_FILES_MIN = 128  # with 64 no server of raylog's comes up, and Ray's own processes need about as many
MEMORY_BYTES_MIN = 512 * MIB  # Ray's own processes and the four servers of one broker
MEMORY_BYTES_WANTED = 2 * GIB  # the same with the twelve servers of three brokers, their logs and Kafka clients
THREADS_OF_A_SERVER = 40  # measured: 31 with a thousand replicas as with one, most of them Ray's
THREADS_WANTED = 1_000  # Ray's own processes and the servers of a few brokers
RAY_HEAD_PORT = 6379


class Level(Enum):
    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's verdict. ``remedy`` is a command (or the one line to change), empty when all is
    well.
    """

    check: str
    level: Level
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """What the machine is meant to hold: replicas here, bytes that each retains, size of a segment."""

    partitions: int = 100
    partition_bytes: int = 10 * GIB
    segment_bytes: int = GIB


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """A folder; ``problem`` is what keeps it from being used, in the words of its DiskError, and
    ``doubt`` a line about its file system.
    """

    path: str
    free_bytes: int
    total_bytes: int
    problem: str | None
    doubt: str | None = None


@dataclass(frozen=True, slots=True)
class RayFacts:
    """``installed_version`` is None where Ray is not installed. ``running`` is the address of the
    Ray that runs on this machine, None for none. ``running_version`` may be unknown.

    ``auth_mode`` is Ray's (RAY_AUTH_MODE, None where unset); ``has_token`` whether a token can be
    found here.
    """

    installed_version: str | None
    running: str | None
    running_version: str | None
    auth_mode: str | None
    has_token: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """``head_port_owner``: "free", "ray", or the name of the process that listens there.
    ``oom_scores``: process id and ``oom_score_adj`` of the server processes that run here.
    ``java_version``: the major number, None without Java. ``kernel_trouble``: why records are
    converted by the packaged codec and not by the C kernel, None if they are not.
    """

    open_files_soft: int
    open_files_hard: int
    map_count: int
    shm_total_bytes: int
    shm_free_bytes: int
    disks: tuple[DiskFacts, ...]
    loopback_problem: str | None
    head_port_owner: str
    ray: RayFacts
    java_version: int | None
    oom_scores: tuple[tuple[int, int], ...]
    kernel_trouble: str | None
    damaged_logs: tuple[str, ...] | None = None
    """Each damaged log of the cluster that runs from the folders, by name; None where no such
    cluster answers.
    """
    recovering_controllers: tuple[str, ...] | None = None
    """The brokers whose controllers' disks have lost metadata and have not got them back; None
    where nobody answers.
    """
    replicas: int = 0
    """How many replicas the folders hold now."""
    replicas_of_a_disk: int = 0
    """How many the fullest of their disks holds: one process may hold all of them."""
    threads_allowed: int = 1 << 30
    """How many threads this user may have here: the smallest of the machine's, the user's and the
    container's bounds.
    """
    threads_running: int = 0
    """How many threads there are on the machine now."""
    memory_available_bytes: int = 1 << 62
    """What processes may still take, of the machine's memory or of the container's."""


def recommended_open_files(workload: Workload) -> int:
    """Open files that a machine needs for its logs: partitions × (partition bytes / segment bytes +
    3).
    """
    segments = -(-workload.partition_bytes // workload.segment_bytes)
    return workload.partitions * (segments + 3)


def _held(facts: Facts, workload: Workload) -> Workload:
    """What the machine is meant to hold, and at least as many replicas as its folders hold already."""
    return replace(workload, partitions=max(workload.partitions, facts.replicas))


def check_open_files(facts: Facts, workload: Workload) -> Finding:
    workload = _held(facts, workload)
    wanted = recommended_open_files(workload) + OWN_OPEN_FILES
    found = f"{facts.open_files_soft} may be open, {wanted} recommended for {workload.partitions} partitions"
    if facts.open_files_soft >= wanted:
        return Finding("open files", Level.OK, found)
    if facts.open_files_hard >= wanted:
        return Finding("open files", Level.WARNING, found, f"ulimit -n {wanted}   # before Ray starts")
    line = f"* - nofile {max(wanted, 65536)}"
    level = Level.FAILURE if facts.open_files_hard < OPEN_FILES_MIN else Level.WARNING
    return Finding(
        "open files", level, found, f"echo '{line}' | sudo tee -a /etc/security/limits.conf   # log in again"
    )


def check_replicas(facts: Facts, workload: Workload) -> Finding:
    """A process refuses logs for which it would have no file descriptors
    (``raylog.log.open_files``).
    """
    allowed = min(facts.open_files_hard, DESCRIPTORS_MAX)
    held, wanted = facts.replicas_of_a_disk, max(facts.replicas_of_a_disk, workload.partitions)
    room = logs_max_of(allowed)
    found = f"with {allowed} open files a process may hold {room} replicas; "
    found += f"the fullest disk has {held}" if held >= workload.partitions else f"{wanted} are planned"
    if room >= wanted:
        return Finding("replicas per process", Level.OK, found)
    if wanted > logs_max_of(DESCRIPTORS_MAX):
        remedy = "raylog actors add   # on that disk: several processes then hold what one cannot"
    else:
        line = f"* - nofile {max(descriptors_for(wanted), 65536)}"
        remedy = f"echo '{line}' | sudo tee -a /etc/security/limits.conf   # log in again, before Ray starts"
    return Finding("replicas per process", Level.FAILURE if room < held else Level.WARNING, found, remedy)


def check_threads(facts: Facts, workload: Workload) -> Finding:
    left = facts.threads_allowed - facts.threads_running
    found = f"{facts.threads_running} threads run, {facts.threads_allowed} are allowed"
    if left >= THREADS_WANTED:
        return Finding("threads", Level.OK, found)
    level = Level.FAILURE if left < THREADS_OF_A_SERVER else Level.WARNING
    remedy = "ulimit -u unlimited; sudo sysctl -w kernel.threads-max=100000 kernel.pid_max=100000   # in a container: --pids-limit=-1"
    return Finding("threads", level, f"{found}; a broker of three processes and Ray take {THREADS_WANTED}", remedy)


def check_memory(facts: Facts, workload: Workload) -> Finding:
    found = f"{facts.memory_available_bytes // MIB:,} MiB of memory are available"
    if facts.memory_available_bytes >= MEMORY_BYTES_WANTED:
        return Finding("memory", Level.OK, found)
    level = Level.FAILURE if facts.memory_available_bytes < MEMORY_BYTES_MIN else Level.WARNING
    found += f"; Ray and one broker take {MEMORY_BYTES_MIN // MIB} MiB, three brokers {MEMORY_BYTES_WANTED // MIB:,}"
    return Finding(
        "memory",
        level,
        found,
        "ps aux --sort=-rss | head   # end what is not needed, or raise the container's --memory",
    )


def check_map_count(facts: Facts, workload: Workload) -> Finding:
    workload = _held(facts, workload)
    segments = -(-workload.partition_bytes // workload.segment_bytes)
    wanted = max(MAP_COUNT_MIN, 2 * workload.partitions * segments)
    found = f"vm.max_map_count is {facts.map_count}, {wanted} recommended"
    if facts.map_count >= wanted:
        return Finding("memory maps", Level.OK, found)
    return Finding("memory maps", Level.WARNING, found, f"sudo sysctl -w vm.max_map_count={max(wanted, 262144)}")


def check_shm(facts: Facts, workload: Workload) -> Finding:
    found = f"{facts.shm_free_bytes // MIB:,} MiB of {facts.shm_total_bytes // MIB:,} MiB free in /dev/shm"
    if facts.shm_free_bytes >= SHM_BYTES_MIN:
        return Finding("/dev/shm", Level.OK, found)
    if facts.shm_total_bytes >= SHM_BYTES_MIN:
        return Finding("/dev/shm", Level.WARNING, found, "ls -lS /dev/shm   # remove what dead processes left")
    remedy = "sudo mount -o remount,size=2G /dev/shm   # in a container: docker run --shm-size=2g"
    return Finding("/dev/shm", Level.FAILURE, found, remedy)


def check_disks(facts: Facts, workload: Workload) -> list[Finding]:
    return [_check_disk(disk) for disk in facts.disks]


def check_ports(facts: Facts, workload: Workload) -> Finding:
    if facts.loopback_problem is not None:
        remedy = "sudo ip link set lo up"
        return Finding("ports", Level.FAILURE, f"no server can listen on 127.0.0.1: {facts.loopback_problem}", remedy)
    if facts.head_port_owner in ("free", "ray"):
        state = "free" if facts.head_port_owner == "free" else "Ray's"
        return Finding("ports", Level.OK, f"loopback works; Ray's head port {RAY_HEAD_PORT} is {state}")
    found = f"port {RAY_HEAD_PORT} of Ray's head is taken by {facts.head_port_owner}; embedded Ray takes another"
    return Finding("ports", Level.WARNING, found, "ray start --head --port=6380")


def check_ray_version(facts: Facts, workload: Workload) -> Finding:
    least = ".".join(map(str, RAY_VERSION_MIN))
    ray = facts.ray
    if ray.installed_version is None:
        found = "Ray is not installed; clients and the test broker need none, servers do"
        return Finding("Ray version", Level.WARNING, found, "pip install 'raylog[ray]'")
    if _major_minor(ray.installed_version) < RAY_VERSION_MIN:
        found = f"Ray {ray.installed_version} is installed, raylog needs {least} or later"
        return Finding("Ray version", Level.FAILURE, found, f"pip install 'ray[default]>={least}'")
    if ray.running is None:
        return Finding("Ray version", Level.OK, f"Ray {ray.installed_version} is installed, none runs here")
    if ray.running_version is not None and ray.running_version != ray.installed_version:
        found = f"the Ray at {ray.running} is {ray.running_version}, installed is {ray.installed_version}"
        return Finding("Ray version", Level.FAILURE, found, f"pip install 'ray[default]=={ray.running_version}'")
    return Finding("Ray version", Level.OK, f"Ray {ray.installed_version}; one runs at {ray.running}")


def check_ray_token(facts: Facts, workload: Workload) -> Finding:
    ray = facts.ray
    mode = ray.auth_mode or "unset"
    if ray.auth_mode == "token" and not ray.has_token:
        found = "RAY_AUTH_MODE=token, but there is no token"
        return Finding(
            "Ray token", Level.FAILURE, found, "ray get-auth-token --generate   # or copy the head's ~/.ray/auth_token"
        )
    token = "a token is here" if ray.has_token else "no token is here"
    if ray.auth_mode == "disabled" and ray.running is not None:
        found = f"RAY_AUTH_MODE=disabled, {token}: whoever reaches {ray.running} controls it"
        return Finding("Ray token", Level.WARNING, found, "unset RAY_AUTH_MODE   # before Ray starts")
    return Finding("Ray token", Level.OK, f"RAY_AUTH_MODE {mode}, {token}")


def check_java(facts: Facts, workload: Workload) -> Finding:
    remedy = "sudo apt-get install openjdk-17-jre-headless"
    if facts.java_version is None:
        return Finding("Java", Level.WARNING, "no Java; only Spark and Apache Kafka's tools need it", remedy)
    if facts.java_version != JAVA_WANTED:
        found = f"Java {facts.java_version}; Spark needs {JAVA_WANTED}, the rest needs none"
        return Finding("Java", Level.WARNING, found, remedy)
    return Finding("Java", Level.OK, f"Java {facts.java_version}")


def check_oom_score(facts: Facts, workload: Workload) -> Finding:
    if not facts.oom_scores:
        return Finding("OOM score", Level.OK, "no server runs here")
    worst = max(score for _, score in facts.oom_scores)
    found = f"{len(facts.oom_scores)} server processes, highest oom_score_adj {worst}"
    if worst < 500:
        return Finding("OOM score", Level.OK, found)
    pids = " ".join(str(pid) for pid, _ in facts.oom_scores)
    remedy = (
        f"for p in {pids}; do echo 0 | sudo tee /proc/$p/oom_score_adj; done   "
        "# lasting: RAY_worker_oom_score_adjustment=0 where Ray starts"
    )
    return Finding("OOM score", Level.WARNING, found + ": the kernel ends them first when memory is short", remedy)


def check_kernel(facts: Facts, workload: Workload) -> Finding:
    if facts.kernel_trouble is None:
        return Finding("records to Arrow", Level.OK, "by the C kernel")
    found = f"by the packaged codec, several times slower; the C kernel is {facts.kernel_trouble}"
    remedy = "pip install --force-reinstall --no-deps raylog   # where there is cc, gcc or clang; in a checkout: -e ."
    return Finding("records to Arrow", Level.WARNING, found, remedy)


def check_logs(facts: Facts, workload: Workload) -> Finding:
    if facts.damaged_logs is None:
        return Finding("logs", Level.OK, "no cluster runs from these folders, so none was asked for damaged logs")
    if not facts.damaged_logs:
        return Finding("logs", Level.OK, "the cluster knows of no damaged log")
    remedy = "raylog verify --repair   # where another replica is in sync, the copy is made anew without it"
    return Finding("logs", Level.FAILURE, f"damaged: {'; '.join(facts.damaged_logs)}", remedy)


def check_controllers(facts: Facts, workload: Workload) -> list[Finding]:
    if not facts.recovering_controllers:
        return []
    found = f"copies lost metadata from the others and takes no part in elections: {', '.join(facts.recovering_controllers)}"
    remedy = "raylog quorum status   # it ends by itself while another controller is active"
    return [Finding("controllers", Level.WARNING, found, remedy)]


CHECKS: Sequence[Callable[[Facts, Workload], Finding | list[Finding]]] = (
    check_open_files,
    check_replicas,
    check_threads,
    check_memory,
    check_map_count,
    check_shm,
    check_disks,
    check_ports,
    check_ray_version,
    check_ray_token,
    check_java,
    check_oom_score,
    check_kernel,
    check_logs,
    check_controllers,
)


def judge(facts: Facts, workload: Workload) -> list[Finding]:
    """Every check's findings, in the order in which they are shown."""
    findings: list[Finding] = []
    for check in CHECKS:
        result = check(facts, workload)
        findings.extend(result if isinstance(result, list) else [result])
    return findings


def obstacles(facts: Facts) -> list[Finding]:
    """What keeps a start on this machine from working, of what can be known before Ray runs. What is
    wrong with a folder the start says itself.
    """
    facts, workload = replace(facts, disks=tuple(replace(disk, problem=None) for disk in facts.disks)), Workload()
    findings = [check(facts, workload) for check in (check_open_files, check_threads, check_memory, check_shm)]
    return [each for each in [*findings, *check_disks(facts, workload)] if each.level is Level.FAILURE]


def _check_disk(disk: DiskFacts) -> Finding:
    name = f"disk {disk.path}"
    if disk.problem is not None:
        return Finding(name, Level.FAILURE, disk.problem, f"ls -ld {disk.path} && mount | grep -F {disk.path}")
    found = f"{disk.free_bytes / GIB:,.1f} GiB of {disk.total_bytes / GIB:,.1f} GiB free"
    if disk.free_bytes < DISK_FREE_BYTES_MIN:
        remedy = "raylog topics alter TOPIC --config retention.bytes=N   # or a larger disk"
        return Finding(name, Level.FAILURE, found + ", raylog wants 1 GiB", remedy)
    if disk.doubt is not None:
        return Finding(name, Level.WARNING, disk.doubt, f"findmnt -T {disk.path}")
    return Finding(name, Level.OK, found)


def _major_minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
