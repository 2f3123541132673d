"""raylog on a Ray that was there before, which asks for a token: programs that start a cluster and leave, and Rays that cannot be used."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import ray
from driver_scripts import Run, run_script
from ray_clusters import eventually, isr_is_whole, kill, partition_of, pid_of

import raylog
from raylog import TopicPartition

pytestmark = pytest.mark.ray

TOKEN = "0123456789abcdef" * 4
START_PATIENCE_S = 300.0
PATIENT_RAY = """
from ray.scripts.scripts import main
from raylog.placement.ray_start import started
started(main)
"""


@dataclass(frozen=True)
class RunningRay:
    """A Ray that runs on its own, as ``ray start`` leaves it."""

    address: str
    client_address: str
    environment: dict[str, str]


@pytest.fixture(scope="module")
def running_ray(short_folder: Path) -> Iterator[RunningRay]:
    with socket.socket() as probe, socket.socket() as other:
        for each in (probe, other):
            each.bind(("127.0.0.1", 0))
        port, client_port = probe.getsockname()[1], other.getsockname()[1]
    environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-c", PATIENT_RAY, "start", "--head", "--block", f"--port={port}"]
    command += ["--include-dashboard=false", "--num-cpus=2", "--object-store-memory=80000000"]
    command += ["--node-ip-address=127.0.0.1", f"--ray-client-server-port={client_port}"]
    with (short_folder / "ray.log").open("w") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    address = f"127.0.0.1:{port}"
    try:
        eventually(lambda: _answers(process, port, short_folder / "ray.log"), "Ray's head answers", START_PATIENCE_S)
        yield RunningRay(address, f"ray://127.0.0.1:{client_port}", environment)
    finally:
        family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for each in psutil.wait_procs(family, timeout=10)[1]:
            each.kill()


def _answers(process: subprocess.Popen[bytes], port: int, log: Path) -> bool:
    assert process.poll() is None, log.read_text()
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0 and "Ray runtime started" in log.read_text()


# ------------------------------------------------------------------ programs that start a cluster and leave

LEAVING_PROGRAM = """
import ray
folder, address, mode = sys.argv[1:]
if mode == "working_dir":
    mine = {"working_dir": ".", "env_vars": {"OF_THE_DRIVER": "1"}}
    ray.init(address=address, runtime_env=mine, logging_level="ERROR", log_to_driver=False)
cluster = raylog.init(folder, ray_address=address)
make(cluster, "left")
with cluster.producer(acks="all") as producer:
    note(offset=producer.send("left", b"by a program that is gone", partition=0).result(60).offset)
if mode == "uv":
    note(hook=os.environ.get("RAY_RUNTIME_ENV_HOOK"), uv=[name for name in os.environ if name.startswith("UV")])
"""


def assert_a_killed_replica_comes_back(folder: Path, forbidden: bytes) -> None:
    """The servers live on without the program that made them, and hold nothing of its environment."""
    with raylog.connect(folder=folder / "data") as cluster:
        leader = partition_of(cluster, "left")["leader_node"]
        before = pid_of(cluster, leader)
        kill(before)
        eventually(lambda: partition_of(cluster, "left")["leader_node"] != leader, "another leader")
        eventually(lambda: isr_is_whole(cluster, "left"), "the killed replica is back and in sync")
        pids = {each["pid"] for each in cluster.status()["actors"]} | {cluster.status()["controller"]["pid"]}
        assert len(pids) == 10 and before not in pids  # three brokers, two hosts for each disk, a controller
        for pid in sorted(pids):
            assert "working_dir" not in os.readlink(f"/proc/{pid}/cwd")
            assert forbidden not in Path(f"/proc/{pid}/environ").read_bytes()
        assert all("raylog.actors.fork_server" in psutil.Process(pid).parent().cmdline() for pid in pids)
        with cluster.consumer() as consumer:
            consumer.assign([TopicPartition("left", 0)])
            consumer.seek_to_beginning()
            found = eventually(lambda: consumer.consume(1, timeout=1.0), "the record")
        assert found[0].value == b"by a program that is gone"
        cluster.shutdown()


CLIENT_PROGRAM = """
import ray
folder, disk, address = sys.argv[1:]
for is_last in (False, False, True):
    try:
        ray.init(address, logging_level="ERROR")
        break
    except ConnectionAbortedError as error:  # Ray's own server for this client has 30 s to start
        if is_last or "Starting Ray client server failed" not in str(error):
            raise
raylog.init(folder)
cluster = raylog.connect()
make(cluster, "by-client")
with cluster.producer(acks="all") as producer:
    producer.send("by-client", b"through Ray's client", partition=0).result(60)
with cluster.consumer() as consumer:
    consumer.assign([("by-client", 0)])
    consumer.seek_to_beginning()
    note(value=consumer.consume(1, timeout=30)[0].value.decode())
cluster.shutdown()
lent = raylog.init(disks={ray.nodes()[0]["NodeID"]: disk}, name="lent")
note(brokers=len(lent.status()["brokers"]))
lent.shutdown()
"""


@pytest.mark.slow
def test_a_program_on_rays_client_starts_clusters_and_uses_them(short_folder: Path, running_ray: RunningRay) -> None:
    folder = short_folder / "client"
    (folder / "disk").mkdir(parents=True)
    arguments = (str(folder / "data"), str(folder / "disk"), running_ray.client_address)
    done = run_script(folder, CLIENT_PROGRAM, *arguments, **running_ray.environment)
    assert done.code == 0, done.stdout + done.stderr
    assert done.facts == {"value": "through Ray's client", "brokers": 1}


def leave(short_folder: Path, running_ray: RunningRay, mode: str, command: list[str] | None = None) -> Path:
    folder = short_folder / mode
    folder.mkdir()
    done = run_script(
        folder,
        LEAVING_PROGRAM,
        str(folder / "data"),
        running_ray.address,
        mode,
        command=command,
        **running_ray.environment,
    )
    assert done.code == 0, done.stdout + done.stderr
    assert done.facts["offset"] == 0
    return folder


def test_servers_take_nothing_of_a_drivers_runtime_env(short_folder: Path, running_ray: RunningRay) -> None:
    folder = leave(short_folder, running_ray, "working_dir")
    shutil.rmtree(folder / "program.py", ignore_errors=True)
    assert_a_killed_replica_comes_back(folder, b"OF_THE_DRIVER")


def test_servers_take_nothing_of_uv_run(short_folder: Path, running_ray: RunningRay) -> None:
    uv = Path(sys.executable).parent / "uv"
    if not uv.exists():
        pytest.skip("uv is not installed: pip install uv")
    command = [str(uv), "run", "--no-project", "--offline", "--python", sys.executable]
    folder = leave(short_folder, running_ray, "uv", command)
    assert_a_killed_replica_comes_back(folder, b"no such text in any environment")


# ------------------------------------------------------------------ Rays that cannot be used

REFUSED_PROGRAM = """
folder, address, version = sys.argv[1:]
import ray
if version:
    ray.__version__ = version  # what a program with another Ray would tell the head of itself
started = time.monotonic()
try:
    raylog.init(folder, ray_address=address or None)
except raylog.errors.RayError as error:
    note(error=str(error), seconds=time.monotonic() - started)
"""


def refused(folder: Path, address: str, version: str = "", **environment: str) -> Run:
    folder.mkdir(exist_ok=True)
    done = run_script(folder, REFUSED_PROGRAM, str(folder / "data"), address, version, **environment)
    assert done.code == 0 and "error" in done.facts, done.stdout + done.stderr
    return done


def test_a_ray_of_another_token_is_named_with_the_fix(short_folder: Path, running_ray: RunningRay) -> None:
    other = {**running_ray.environment, "RAY_AUTH_TOKEN": "f" * 64}
    run = refused(short_folder / "token", running_ray.address, **other)
    error = run.facts["error"]
    assert running_ray.address in error and "token" in error and "RAY_AUTH_TOKEN" in error
    assert run.stderr == "", "Ray's own client was asked, which prints each refusal"
    asked = [sys.executable, "-m", "raylog.cli.main", "status", "--address", running_ray.address]
    status = subprocess.run(asked, env={**os.environ, **other}, capture_output=True, text=True, timeout=280)
    assert status.returncode == 1 and status.stdout == ""
    connecting, refusal = status.stderr.splitlines()
    assert connecting == f"Connecting to Ray at {running_ray.address} (up to 30 s)…" and "RAY_AUTH_TOKEN" in refusal


def test_a_ray_of_another_version_is_named_with_the_fix(short_folder: Path, running_ray: RunningRay) -> None:
    error = refused(short_folder / "version", running_ray.address, "2.1.0", **running_ray.environment).facts["error"]
    assert running_ray.address in error and ray.__version__ in error and "2.1.0" in error


def test_a_ray_that_is_not_there_is_a_clear_error_at_once(short_folder: Path) -> None:
    facts = refused(short_folder / "nobody", "127.0.0.1:1").facts
    assert facts["error"].startswith("no Ray at 127.0.0.1:1: Connection refused; start one with `ray start --head`")


CONNECTING_PROGRAM = """
import signal
address, *pids = sys.argv[1:]
gcs, raylet = map(int, pids)

def error_of_connect(*stopped):
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        raylog.connect(address, timeout_s=8 if stopped else 60)
    except raylog.errors.ClusterError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)

note(mute=error_of_connect(gcs))
note(without_node=error_of_connect(raylet))
note(empty=error_of_connect())
note(mute_again=error_of_connect(gcs))
address = "127.0.0.1:1"
note(another=error_of_connect())
"""


def process_of(running_ray: RunningRay, name: str) -> int:
    """That Ray's process of a name: its command line names its head's port."""
    port = running_ray.address.rpartition(":")[2]
    found = [
        each.pid
        for each in psutil.process_iter(["name", "cmdline"])
        if each.info["name"] == name and any(port in word for word in each.info["cmdline"] or ())
    ]
    assert len(found) == 1, found
    return found[0]


def test_a_ray_that_does_not_answer_or_has_no_cluster_is_named(short_folder: Path, running_ray: RunningRay) -> None:
    folder = short_folder / "connecting"
    folder.mkdir()
    pids = [str(process_of(running_ray, name)) for name in ("gcs_server", "raylet")]
    done = run_script(folder, CONNECTING_PROGRAM, running_ray.address, *pids, **running_ray.environment)
    assert done.code == 0, done.stdout + done.stderr
    said = done.facts
    where = running_ray.address
    assert said["mute"].startswith(f"RayError: no Ray at {where}: the port accepted a connection, and nothing answered")
    assert said["without_node"].startswith(f"RayError: the Ray at {where} answers, but its node on this machine")
    assert said["empty"].startswith(f"ClusterError: no cluster runs on the Ray at {where}")
    assert said["mute_again"].startswith(f"RayError: no Ray at {where} (named by this process's connection to Ray)")
    assert said["another"].startswith("RayError: no Ray at 127.0.0.1:1"), "the Ray that it was connected to was taken"


# ------------------------------------------------------------------ Ray's token at a listener

JOB_PROGRAM = """
import ray
from raylog.security.acl import AclBinding
from raylog.security.permissions import Operation, PatternType, PermissionType, Resource
folder, address = sys.argv[1:]
configs = {
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "authorizer.class.name": "raylog",
}
ports = ["SASL_PLAINTEXT://127.0.0.1:0"]
cluster = raylog.init(folder, brokers=1, listeners=ports, configs=configs, ray_address=address)
admin = cluster.admin()
admin.create_topics([raylog.NewTopic("of-jobs", 1, 1)])
of_jobs = Resource.TOPIC, "of-jobs", PatternType.LITERAL, "User:ray", "*"
admin.create_acls([AclBinding(*of_jobs, each, PermissionType.ALLOW) for each in (Operation.WRITE, Operation.DESCRIBE)])

@ray.remote
def job(bootstrap):
    from confluent_kafka import Producer

    def shown(token):
        return {
            "bootstrap.servers": bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: (token, time.time() + 3600),
            "message.timeout.ms": 60_000,
        }

    reports, errors = [], []
    writing = Producer(shown(os.environ["RAY_AUTH_TOKEN"]))
    writing.produce("of-jobs", b"by a job", on_delivery=lambda error, _: reports.append(str(error)))
    writing.flush(60)
    other = Producer(shown("f" * 64) | {"error_cb": lambda error: errors.append(str(error))})
    while not errors:
        other.poll(0.1)
    return reports, errors[0]

reports, error = ray.get(job.remote(cluster.bootstrap_servers()))
note(reports=reports, error=error)
cluster.shutdown()
"""


def test_a_job_is_the_user_ray_by_rays_own_token(short_folder: Path, running_ray: RunningRay) -> None:
    folder = short_folder / "job"
    folder.mkdir()
    done = run_script(folder, JOB_PROGRAM, str(folder / "data"), running_ray.address, **running_ray.environment)
    assert done.code == 0, done.stdout + done.stderr
    assert done.facts["reports"] == ["None"], "delivered"
    assert "invalid_token" in done.facts["error"]
    assert TOKEN not in done.stdout + done.stderr
