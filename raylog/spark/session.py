"""The Spark session of a cluster: RayDP's, with an executor beside every broker.

RayDP 1.6 and pyspark 3.5 have traps. Each is handled here, with an error that explains it:

- A JVM keeps the settings of its first session. The driver's JVM is ended at ``stop``, and one that
  is left over is ended before ``init``.
- Executors that can't start look like a hang. ``init`` waits until all have registered, or raises
  the cause from their logs.
- Only the number of ``placement_group_bundle_indexes`` counts. The executors have a placement group
  of their own, used in order.
- The names of RayDP's actors are fixed. A second session in the same Ray namespace is refused
  before it breaks the first one.
- Java 17 needs flags on driver, executors and application master. All three get them.
- An executor with less than 512 MB hangs. It is refused.

There is one session per process. Ray's nodes need Java on their PATH (``raylog.spark.java``).
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raylog.errors import ClusterError, ConfigError
from raylog.placement import ray_private
from raylog.ranges.given_values import COUNT_MAX, count, seconds
from raylog.spark.installed import require_raydp
from raylog.spark.java import OPTIONS, use_java
from raylog.spark.placing import Room, broker_hosts, bundles, memory_bytes
from raylog.spark.spark_private import active_context, executor_addresses, take_gateway
from raylog.spark.table_store import release_of_ended_sessions

logger = logging.getLogger("raylog.spark")

APP_MASTER_ACTOR = "RAY_APP_MASTER"
QUIET_LOGGING = Path(__file__).with_name("log4j2-quiet.properties")
_LOGGING = "spark.log4j.config.file.name"
_LOG_LINES = 12
_ENDING_S = 20.0
_lock = threading.RLock()
_logged: dict[Path, int] = {}  # the sizes of this node's logs when init began
_group: Any = None
_session: Any = None


def init(
    app_name: str = "raylog",
    *,
    cluster: Any = None,
    executor_cores: int = 1,
    executor_memory: str | int = "1g",
    driver_memory: str = "1g",
    configs: Mapping[str, str] | None = None,
    timeout_s: float = 180,
) -> Any:
    """Start a Spark session with one executor beside each broker of a cluster; return when all are
    ready.

    ``cluster``: what ``raylog.init()`` or ``raylog.connect()`` returned; None connects.
    ``configs``: Spark's own, which override those set here. ClusterError names what is missing:
    Java, memory, the extra, executors that did not start within ``timeout_s``. ConfigError for
    invalid values.
    """
    global _group, _logged, _session
    require_raydp()
    executor_cores = count("executor_cores", executor_cores, COUNT_MAX)
    memory = memory_bytes("executor_memory", executor_memory)
    driver_bytes = memory_bytes("driver_memory", driver_memory)
    timeout_s = seconds("timeout_s", timeout_s)
    _check_named(app_name, configs)
    with _lock:
        if _session is not None:
            raise ClusterError("this process already has a Spark session: end it with raylog.spark.stop()")
        if cluster is not None and not hasattr(cluster, "status"):
            raise ConfigError(
                f"cluster={cluster!r} is not a cluster: give what raylog.init() or raylog.connect() returned"
            )
        use_java()
        if cluster is None:
            from raylog.cluster import connect
            from raylog.placement.ray_connection import CONNECT_TIMEOUT_S

            cluster = connect(timeout_s=min(CONNECT_TIMEOUT_S, timeout_s))
        hosts = broker_hosts(cluster.status()["actors"])
        _check_ray(timeout_s)
        _end_jvm()
        _logged = _log_files()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        wanted, cpus = bundles(hosts, _rooms(), cores=executor_cores, memory=memory)
        spark_configs = _configs(f"{driver_bytes >> 20}M", cpus, configs or {})
        _group = _reserve(app_name, wanted, timeout_s)
        is_quiet = _LOGGING not in (configs or {})
        _session = _start(app_name, len(wanted), executor_cores, memory, spark_configs, timeout_s, is_quiet=is_quiet)
        return _session


def _start(
    app_name: str,
    executors: int,
    cores: int,
    bytes_each: int,
    configs: dict[str, str],
    timeout_s: float,
    *,
    is_quiet: bool,
) -> Any:
    """A session whose executors, which have the placement group, are all ready. If it fails,
    nothing of it is left.
    """
    import raydp

    try:
        session = raydp.init_spark(
            app_name,
            executors,
            cores,
            f"{bytes_each >> 20}M",  # a number without a unit would be mebibytes to Spark
            placement_group=_group,
            configs=configs,
        )
        _await_executors(session, executors, timeout_s)
        if is_quiet:
            session.sparkContext.setLogLevel("ERROR")  # Ray has reset the logging of the driver's JVM
    except BaseException as error:
        _stop_all()
        if isinstance(error, ClusterError) or not isinstance(error, Exception):
            raise
        raise ClusterError(f"Spark did not start: {_cause(error)}") from error
    return session


def stop() -> None:
    """End the session that ``init`` made: executors, the driver's JVM, the placement group. Does
    nothing if there is none.
    """
    with _lock:
        if _session is not None:
            _stop_all()


def _stop_all() -> None:
    """End all parts of a session; parts that are already gone are skipped."""
    global _group, _session
    import raydp

    _session = None
    group, _group = _group, None
    for what, end in (
        ("RayDP", raydp.stop_spark),
        ("Spark", lambda: (context := active_context()) and context.stop()),
        ("Ray's data for DataFrames of Datasets", release_of_ended_sessions),
        ("the driver's JVM", _end_jvm),
        ("RayDP's actors", _await_names_free),
        ("the executors' placement group", lambda: _remove(group)),
    ):
        try:
            end()
        except Exception as error:
            logger.debug("%s did not end cleanly: %s", what, error)


def _remove(group: Any) -> None:
    from ray.util.placement_group import remove_placement_group

    if group is not None:
        remove_placement_group(group)


def _check_named(app_name: str, configs: Mapping[str, str] | None) -> None:
    if not isinstance(app_name, str) or not app_name.strip():
        raise ConfigError(f"app_name={app_name!r}: give the session a name")
    if configs is None:
        return
    if not isinstance(configs, Mapping) or any(not isinstance(name, str) for name in configs):
        raise ConfigError(f'configs={configs!r}: give Spark\'s, as {{"spark.sql.shuffle.partitions": "8"}}')
    for name, value in configs.items():
        if not name.startswith("spark."):
            raise ConfigError(f"configs[{name!r}]: Spark's configs begin with spark.")
        if value is None:
            raise ConfigError(f"configs[{name!r}] is None: give a value, or leave it out")


def _configs(driver_memory: str, cpus: float, given: Mapping[str, str]) -> dict[str, str]:
    defaults = {
        "spark.driver.extraJavaOptions": OPTIONS,
        "spark.executor.extraJavaOptions": OPTIONS,
        "spark.ray.raydp_app_master.extraJavaOptions": f"{OPTIONS} -Xmx256m",
        "spark.ray.raydp_spark_master.actor.resource.CPU": "0",
        "spark.ray.raydp_spark_executor.actor.resource.cpu": f"{cpus:g}",
        "spark.driver.memory": driver_memory,
        _LOGGING: str(QUIET_LOGGING),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.pyspark.fallback.enabled": "false",
    }
    added = {key: value for key, value in given.items() if not key.endswith("xtraJavaOptions")}
    options = {
        key: f"{defaults.get(key, '')} {value}".strip()
        for key, value in given.items()
        if key.endswith("xtraJavaOptions")
    }
    return {**defaults, **{key: str(value) for key, value in added.items()}, **options}


# ------------------------------------------------------------------ Ray


def _check_ray(timeout_s: float) -> None:
    """Check that Ray is connected, its namespace has no session, and this node's workers find a
    Java.
    """
    import ray

    if not ray.is_initialized():
        raise ClusterError("this process is not connected to the cluster's Ray: call raylog.init() or raylog.connect()")
    namespace = ray.get_runtime_context().namespace
    if _names_are_taken():
        raise ClusterError(
            f"another program has a Spark session in Ray's namespace {namespace!r}: end it, or give another to ray.init(namespace=…)"
        )
    try:
        told: str | None = ray.get(ray.remote(_java_of_worker).options(num_cpus=0).remote(), timeout=timeout_s)
    except ray.exceptions.GetTimeoutError:
        raise ClusterError(
            f"Ray started no worker within {timeout_s:g} s, and Spark needs one on each node: see `ray status` and Ray's logs"
        ) from None
    if told is None:
        raise ClusterError(
            "Ray was started without Java on its PATH, and its workers start Spark: start Ray again with it "
            "(raylog.init() sets it when it starts Ray), or install openjdk-17-jre-headless on its nodes"
        )


def _names_are_taken() -> bool:
    """Return whether RayDP's actors live in this process's namespace."""
    import ray

    namespace = ray.get_runtime_context().namespace
    named = ray.util.list_named_actors(all_namespaces=True)
    return any(each["namespace"] == namespace and each["name"] == APP_MASTER_ACTOR for each in named)


def _await_names_free() -> None:
    """RayDP's actors end a moment after ``stop_spark`` returns; wait for them, so that the next
    ``init`` does not take them for another program's.
    """
    deadline = time.monotonic() + _ENDING_S
    while _names_are_taken() and time.monotonic() < deadline:
        time.sleep(0.05)


def _java_of_worker() -> str | None:
    import shutil

    return shutil.which("java")


def _rooms() -> dict[str, Room]:
    """Return the free resources of Ray's live nodes, by address."""
    import ray

    untyped: Any = ray
    free, nodes = ray_private.free_resources(), untyped.nodes()
    rooms = {}
    for node in nodes:
        if node["Alive"]:
            left = free.get(node["NodeID"], {})
            rooms[node["NodeManagerAddress"]] = Room(float(left.get("CPU", 0)), float(left.get("memory", 0)))
    return rooms


def _reserve(app_name: str, wanted: list[dict[str, float]], timeout_s: float) -> Any:
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group(wanted, strategy="PACK", name=f"raylog-spark-{app_name}")
    if not group.wait(timeout_s):
        remove_placement_group(group)
        raise ClusterError(
            f"Ray did not find room for {wanted} within {timeout_s:g} s: `ray status` shows what is in use"
        )
    return group


# ------------------------------------------------------------------ JVMs


def _end_jvm() -> None:
    """End this process's JVM, if any: another session in it would inherit the settings of the
    first.
    """
    if active_context() is not None:
        raise ClusterError("this process has a Spark session that raylog did not start: stop() it first")
    gateway = take_gateway()
    if gateway is None:
        return
    try:
        gateway.shutdown()
    finally:
        process = getattr(gateway, "proc", None)
        if process is not None:
            process.stdin.close()  # the JVM exits when its standard input closes
            process.wait(30)


def _await_executors(session: Any, count: int, timeout_s: float) -> None:
    """Wait until that many executors have registered."""
    deadline = time.monotonic() + timeout_s
    while (there := len(executor_addresses(session)) - 1) < count:
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{there} of {count} Spark executors have started after {timeout_s:g} s: {_from_logs() or 'their logs show no cause'}"
            )
        time.sleep(0.1)


def _cause(error: Exception) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    lines = [
        line for line in lines if line.startswith("Caused by: ")
    ] or lines  # a JVM's: what comes after are its frames
    told = _from_logs()
    return f"{lines[-1] if lines else type(error).__name__}{f' ({told})' if told else ''}"


def _log_files() -> dict[Path, int]:
    """Return this node's logs that may show why a RayDP JVM failed, with their sizes. One that does
    not start writes to the raylet's.
    """
    folder = ray_private.logs_folder()
    if folder is None:
        return {}
    patterns = ("*java-worker*", "raylet.err", "raylet.out")
    return {log: log.stat().st_size for pattern in patterns for log in sorted(folder.glob(pattern))}


def _from_logs() -> str:
    """The last lines that look like a cause in what was logged since ``init`` began."""
    found: list[str] = []
    for log in _log_files():
        with log.open("rb") as file:
            file.seek(_logged.get(log, 0))
            text = file.read().decode(errors="replace")
        found += _causes(text, is_raylets=log.name.startswith("raylet."))
    return " | ".join(list(dict.fromkeys(found))[-_LOG_LINES:])


_OF_THE_RAYLET = re.compile(r"\[|- |Current usage: |\d+ pending objects ")
"""The beginnings of a raylet's own lines: messages, and the object store's figures, printed each
minute.
"""


def _causes(text: str, *, is_raylets: bool) -> list[str]:
    """Return the lines of a log that may show a cause: errors of a JVM; in a raylet's log, lines of
    other processes, which fail before they have a log of their own.
    """
    lines = [line.strip()[:300] for line in text.splitlines() if line.strip()]
    if is_raylets:
        return [line for line in lines if not _OF_THE_RAYLET.match(line)]
    return [line for line in lines if re.search(r"\b(ERROR|\w*Exception)\b", line)]
