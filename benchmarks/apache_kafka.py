"""Apache Kafka from Maven Central, as a peer to measure against and as an oracle for formats.

Two versions are pinned: ``VERSION``, the default, and ``LATEST``, the newest at the time of writing. ``libs()`` fetches
the jars of one of them once, into ``benchmarks/.cache`` (ignored by git; set ``RAYLOG_KAFKA_LIBS`` to a folder of jars to
use that for ``VERSION``). ``tool(...)`` runs one of Kafka's own tools.
``ApacheKafka`` runs one or more KRaft brokers on loopback with their data in a folder of its own and ends exactly the
processes that it started::

    with ApacheKafka(brokers=3) as kafka:
        kafka.create_topic("flights", partitions=1, replication_factor=3, configs={"min.insync.replicas": "2"})
        os.kill(kafka.pid_of(kafka.leader("flights", 0)), signal.SIGKILL)

Needs ``mvn`` for the first run and Java 17; brokers run with ``-Xmx1G`` and G1, like Kafka's own start script.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from maven import PeerError, copy_jars

from raylog.disks.disk import encode_id, new_id

VERSION = "3.9.1"
LATEST = "4.3.0"
HEAP = "-Xmx1G"
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 30
JVM_OPTIONS = ("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-Djava.awt.headless=true")

_CACHE = Path(__file__).resolve().parent / ".cache"
_LOGGING = {  # what each version's slf4j logs through, and the option that names the file beside the jars
    VERSION: (("org.slf4j", "slf4j-reload4j", "1.7.36"), "log4j.properties", "-Dlog4j.configuration=file:{}"),
    LATEST: (
        ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
        "log4j2.properties",
        "-Dlog4j2.configurationFile={}",
    ),
}
_LOGGING_FILES = {
    "log4j.properties": """\
log4j.rootLogger=WARN, stderr
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.Target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern=%d %p %m (%c)%n
""",
    "log4j2.properties": """\
rootLogger.level=warn
rootLogger.appenderRef.stderr.ref=stderr
appender.stderr.type=Console
appender.stderr.name=stderr
appender.stderr.target=SYSTEM_ERR
appender.stderr.layout.type=PatternLayout
appender.stderr.layout.pattern=%d %p %m (%c)%n
""",
}


# ------------------------------------------------------------------ jars and tools


def libs(version: str = VERSION) -> Path:
    """The folder of jars, fetched on first use (about 56 MB). Several processes may ask at once."""
    assert version in _LOGGING, f"Apache Kafka {version}: only {', '.join(_LOGGING)} are known here"
    given = os.environ.get("RAYLOG_KAFKA_LIBS")
    if given and version == VERSION:
        return Path(given)
    binding, file, _ = _LOGGING[version]
    return _fetched(
        f"apache-kafka-{version}",
        [*(("org.apache.kafka", name, version) for name in ("kafka_2.13", "kafka-tools")), binding],
        {file: _LOGGING_FILES[file]},
    )


def streams_libs(version: str = VERSION) -> Path:
    """The folder of the jars of Kafka Streams, fetched on first use (about 80 MB)."""
    binding, file, _ = _LOGGING[version]
    streams = "org.apache.kafka", "kafka-streams", version
    return _fetched(f"apache-kafka-streams-{version}", [streams, binding], {file: _LOGGING_FILES[file]})


def connect_libs(version: str = VERSION) -> Path:
    """The folder of the jars of Kafka Connect, with its connector of files and MirrorMaker 2, fetched on first use (about 60 MB)."""
    binding, file, _ = _LOGGING[version]
    names = "connect-runtime", "connect-file", "connect-json", "connect-mirror"
    jars = [("org.apache.kafka", name, version) for name in names]
    return _fetched(f"apache-kafka-connect-{version}", [*jars, binding], {file: _LOGGING_FILES[file]})


def _fetched(name: str, jars: Sequence[tuple[str, str, str]], files: Mapping[str, str]) -> Path:
    """The folder of that name, with those jars, what they depend on, and the files."""
    folder = _CACHE / name
    if folder.is_dir():
        return folder
    _CACHE.mkdir(exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        with tempfile.TemporaryDirectory(dir=_CACHE) as scratch:
            made = Path(scratch) / "libs"
            made.mkdir()
            try:
                copy_jars(made, jars)
            except PeerError as error:
                raise PeerError(f"{error}, or set RAYLOG_KAFKA_LIBS to a folder with Kafka's jars") from None
            for file, text in files.items():
                (made / file).write_text(text)
            made.rename(folder)
    return folder


def class_archive() -> Path:
    """Kafka's classes as the JVM keeps them in memory, made on first use: a broker with it starts in half the time, and then is the same.

    A JVM that the archive was not made by ignores it.
    """
    archive = _CACHE / f"apache-kafka-{VERSION}.jsa"
    _CACHE.mkdir(exist_ok=True)
    with (_CACHE / "archive.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            made = archive.with_suffix(".new")
            with ApacheKafka(1, jvm_options=[f"-XX:ArchiveClassesAtExit={made}"]) as broker:
                broker.create_topic("archive")
            made.rename(archive)
    return archive


def java_command(
    main_class: str,
    *arguments: str,
    heap: str = "-Xmx256M",
    jvm_options: Sequence[str] = (),
    version: str = VERSION,
    folder: Path | None = None,
) -> list[str]:
    """The command line of one of Kafka's classes; or of a ``.java`` file, which the JVM compiles and runs with Kafka's classes.

    ``folder``: of the jars, where they are not those of ``libs``.
    """
    java = shutil.which("java")
    if java is None:
        raise PeerError("Java is missing: apt-get install openjdk-17-jre-headless")
    folder = folder or libs(version)
    _, file, option = _LOGGING[version]
    logging = [option.format(folder / file)] if (folder / file).exists() else []
    return [java, heap, *JVM_OPTIONS, *jvm_options, *logging, "-cp", f"{folder}/*", main_class, *arguments]


def tool(
    main_class: str, *arguments: str, timeout_s: float = 120, heap: str = "-Xmx256M", version: str = VERSION
) -> str:
    """Runs a tool to its end and gives back what it printed. Raises PeerError if it fails."""
    done = subprocess.run(
        java_command(main_class, *arguments, heap=heap, version=version),
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    if done.returncode:
        raise PeerError(f"{main_class} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def dump_log(*files: Path, deep: bool = True) -> str:
    """What ``DumpLogSegments`` says about segment and index files."""
    names = ",".join(str(file) for file in files)
    return tool("kafka.tools.DumpLogSegments", "--files", names, *(["--deep-iteration"] if deep else []))


# ------------------------------------------------------------------ brokers


class ApacheKafka:
    """KRaft brokers that are controllers too, on loopback. ``properties`` are added to every broker's. ``protocols``: of
    further listeners of each broker, beside the plain one; they have their protocols' names.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        folder: Path | None = None,
        properties: Mapping[str, str] | None = None,
        heap: str = HEAP,
        jvm_options: Sequence[str] = (),
        version: str = VERSION,
        protocols: Sequence[str] = (),
    ) -> None:
        assert brokers in (1, 3), f"{brokers} brokers: a quorum here has one or three"
        self.version = version
        self.broker_ids = tuple(range(1, brokers + 1))
        self._properties = dict(properties or {})
        self._heap = heap
        self._jvm_options = tuple(jvm_options)
        self._own_folder = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="apache-kafka-")) if folder is None else folder
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        ports = iter(_free_ports((2 + len(protocols)) * brokers))
        self.ports = dict(zip(self.broker_ids, ports, strict=False))
        self._controller_ports = dict(zip(self.broker_ids, ports, strict=False))
        self._protocol_ports = {each: dict(zip(self.broker_ids, ports, strict=False)) for each in protocols}
        self._cluster_id = encode_id(new_id())

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def bootstrap_of(self, protocol: str) -> str:
        """Of a further listener."""
        return ",".join(f"127.0.0.1:{port}" for port in self._protocol_ports[protocol].values())

    @property
    def pids(self) -> dict[int, int]:
        """Broker id → process id of those that run."""
        return {broker: process.pid for broker, process in self._processes.items() if process.poll() is None}

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Formats what is blank, starts every broker that does not run, and waits until each is a registered member."""
        for broker in self.broker_ids:
            self._format(broker)
        for broker in self.broker_ids:
            self.start_broker(broker)
        self._await_members()

    def start_broker(self, broker: int) -> None:
        """Starts one broker (again). Returns before it serves."""
        if broker in self.pids:
            return
        command = java_command(
            "kafka.Kafka",
            str(self._config(broker)),
            heap=self._heap,
            jvm_options=self._jvm_options,
            version=self.version,
        )
        with self.log_of(broker).open("ab") as log:
            self._processes[broker] = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)

    def stop(self) -> None:
        """Ends the brokers cleanly where they let themselves be ended, and removes the folder if it was made here."""
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for process in self._processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def stop_broker(self, broker: int) -> None:
        """Ends one broker cleanly; its data stays."""
        process = self._processes[broker]
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_TIMEOUT_S)

    def kill(self, broker: int) -> None:
        """SIGKILL, and waits for the process to be gone."""
        process = self._processes[broker]
        process.kill()
        process.wait()

    def data_folder(self, broker: int) -> Path:
        return self.folder / f"broker-{broker}"

    def log_of(self, broker: int) -> Path:
        return self.folder / f"broker-{broker}.log"

    def pid_of(self, broker: int) -> int:
        return self.pids[broker]

    # -------------------------------------------------------------- asking it

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication_factor: int = 1,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Creates a topic and waits until every partition has a leader and a full ISR."""
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient, NewTopic

        new = NewTopic(topic, partitions, replication_factor, config=dict(configs or {}))
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:  # a cluster that has just started may have no controller for a client yet
            admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
            try:
                admin.create_topics([new], operation_timeout=10, request_timeout=15)[topic].result()
                break
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.TOPIC_ALREADY_EXISTS:  # by an earlier try
                    break
                passes = error.args[0].retriable() or code in (KafkaError._TIMED_OUT, KafkaError._DESTROY_BROKER)
                if not passes or time.monotonic() > deadline:
                    raise
        while time.monotonic() < deadline:
            found = admin.list_topics(topic, timeout=10).topics[topic].partitions
            whole = [each for each in found.values() if each.leader > 0 and len(each.isrs) == replication_factor]
            if len(whole) == partitions:
                return
            time.sleep(0.05)
        raise PeerError(f"{topic} did not become whole within {START_TIMEOUT_S} s")

    def delete_topic(self, topic: str) -> None:
        """Deletes a topic; its files go after ``file.delete.delay.ms``."""
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.delete_topics([topic], operation_timeout=30)[topic].result()

    def leader(self, topic: str, partition: int) -> int:
        """The broker that leads a partition now; −1 if nobody does."""
        from confluent_kafka.admin import AdminClient

        metadata = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}).list_topics(topic, timeout=10)
        return int(metadata.topics[topic].partitions[partition].leader)

    # -------------------------------------------------------------- starting

    def _config(self, broker: int) -> Path:
        return self.folder / f"broker-{broker}.properties"

    def _format(self, broker: int) -> None:
        voters = ",".join(f"{each}@127.0.0.1:{port}" for each, port in self._controller_ports.items())
        factor = str(len(self.broker_ids))
        further = "".join(f",{each}://127.0.0.1:{ports[broker]}" for each, ports in self._protocol_ports.items())
        properties = {
            "process.roles": "broker,controller",
            "node.id": str(broker),
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.ports[broker]},CONTROLLER://127.0.0.1:{self._controller_ports[broker]}{further}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.ports[broker]}{further}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": ",".join(
                ["CONTROLLER:PLAINTEXT", "PLAINTEXT:PLAINTEXT", *(f"{each}:{each}" for each in self._protocol_ports)]
            ),
            "log.dirs": str(self.data_folder(broker)),
            "offsets.topic.replication.factor": factor,
            "transaction.state.log.replication.factor": factor,
            "transaction.state.log.min.isr": str(min(2, len(self.broker_ids))),
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
        } | self._properties
        self.folder.mkdir(parents=True, exist_ok=True)
        self._config(broker).write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        if not (self.data_folder(broker) / "meta.properties").exists():
            settings = ("-t", self._cluster_id, "-c", str(self._config(broker)))
            tool("kafka.tools.StorageTool", "format", *settings, version=self.version)

    def _await_members(self) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            for broker, process in self._processes.items():
                if process.poll() is not None:
                    log = self.log_of(broker).read_text(errors="replace")
                    raise PeerError(f"broker {broker} ended with {process.returncode}:\n{log[-3000:]}")
            if all(listens(port) for port in self.ports.values()):
                admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
                with contextlib.suppress(KafkaException):
                    if set(admin.list_topics(timeout=5).brokers) == set(self.broker_ids):
                        return
            time.sleep(0.1)
        raise PeerError(f"Apache Kafka was not up within {START_TIMEOUT_S} s; its logs: {self.folder}")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def listens(port: int) -> bool:
    """Whether something accepts connections there, on loopback."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    for pinned in (VERSION, LATEST):
        start = time.monotonic()
        with ApacheKafka(version=pinned) as running:
            running.create_topic("check")
            print(f"Apache Kafka {pinned} served at {running.bootstrap} after {time.monotonic() - start:.1f} s")
