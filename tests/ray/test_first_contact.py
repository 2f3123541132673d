"""The first hour with raylog on a Ray of its own: what the terminal shows, what listens, notebooks, second programs."""

from __future__ import annotations

import ipaddress
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jupyter_client
import pytest
from driver_scripts import PROLOGUE, Run, run_script

pytestmark = pytest.mark.ray

FIRST_PROGRAM = """
import subprocess, psutil
folder = sys.argv[1]
cluster = raylog.init(folder)
note(same=raylog.init(folder) is cluster)
make(cluster, "flights")
producer = cluster.producer(acks="all")
producer.send("flights", b"before", partition=0).result(60)

ours = psutil.Process().children(recursive=True)
note(
    processes=[each.name() for each in ours],
    addresses=sorted({
        connection.laddr.ip
        for each in [psutil.Process(), *ours]
        for connection in each.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN or connection.type == 2 and not connection.raddr
    }),
    dashboards=[line for each in ours if (line := " ".join(each.cmdline())) and "dashboard/dashboard.py" in line],
)

second = '''
import json, sys, raylog
with raylog.init(sys.argv[1]) as cluster:
    with cluster.producer(acks="all") as producer:
        offset = producer.send("flights", b"from another program", partition=0).result(60).offset
import ray
print(json.dumps({"attached": cluster.address.cluster_id, "offset": offset, "ray": ray.is_initialized()}))
'''
done = subprocess.run([sys.executable, "-c", second, folder], capture_output=True, text=True, timeout=300)
note(cluster_id=cluster.address.cluster_id, second=[done.returncode, done.stdout, done.stderr])

before = part(cluster, "flights")
os.kill(pid_of(cluster, before["leader_node"]), signal.SIGKILL)
producer.send("flights", b"after", partition=0).result(60)
eventually(lambda: is_whole(cluster, "flights"))
time.sleep(3)  # Ray tells of an actor's death later than raylog, and would do it by now
after = part(cluster, "flights")
producer.close()
note(killed=before["leader"], leads=after["leader"], epoch=after["leader_epoch"])

kept = cluster.producer(delivery_timeout_ms=2000, request_timeout_ms=1000, max_block_ms=1500, linger_ms=0)
cluster.shutdown()
cluster.shutdown()
errors = []
for attempt in (cluster.producer, cluster.consumer, cluster.admin, cluster.status, lambda: kept.send("flights", b"x").result(20)):
    try:
        attempt()
        errors.append("none")
    except raylog.errors.RaylogError as error:
        errors.append(f"{type(error).__name__}: {error}")
note(errors=errors, left=[each.name() for each in psutil.Process().children(recursive=True)])
"""


@pytest.fixture(scope="module")
def first_program(short_folder: Path) -> Run:
    """A program that starts a cluster, kills a leader, ends the cluster."""
    folder = short_folder / "first"
    folder.mkdir()
    done = run_script(folder, FIRST_PROGRAM, str(folder / "data"))
    assert done.code == 0, done.stdout + done.stderr
    return done


def test_a_killed_leader_prints_one_line_of_ours_and_nothing_of_rays(first_program: Run) -> None:
    facts = first_program.facts
    lines = first_program.stderr.splitlines()
    assert len(lines) == 1, first_program.stderr
    told = re.fullmatch(
        r"leader of flights-0 \(broker (\d)\) is gone; broker (\d) leads since epoch (\d+), after \d+ ms", lines[0]
    )
    assert told, lines[0]
    assert told.groups() == tuple(map(str, (facts["killed"], facts["leads"], facts["epoch"])))


def test_the_terminal_shows_what_the_program_printed_and_nothing_else(first_program: Run) -> None:
    assert all(line.startswith("{") for line in first_program.stdout.splitlines()), first_program.stdout


def test_an_embedded_ray_listens_on_the_loopback_interface_only(first_program: Run) -> None:
    facts = first_program.facts
    assert {"gcs_server", "raylet"} <= set(facts["processes"])
    assert facts["addresses"]
    for text in facts["addresses"]:
        address = ipaddress.ip_address(text)
        assert (getattr(address, "ipv4_mapped", None) or address).is_loopback, facts["addresses"]


def test_an_embedded_ray_has_no_dashboard(first_program: Run) -> None:
    for line in first_program.facts["dashboards"]:  # Ray starts the process in any case
        assert "--disable-frontend" in line


def test_init_twice_returns_one_cluster(first_program: Run) -> None:
    assert first_program.facts["same"] is True


def test_a_second_program_attaches_to_the_cluster_on_its_folder_and_leaves_it_running(first_program: Run) -> None:
    code, stdout, stderr = first_program.facts["second"]
    assert (code, stderr) == (0, "")
    found = run_facts(stdout)
    assert found == {"attached": first_program.facts["cluster_id"], "offset": 1, "ray": False}


def run_facts(stdout: str) -> dict[str, Any]:
    return Run(0, stdout, "").facts


def test_shutdown_twice_is_fine_and_leaves_no_process(first_program: Run) -> None:
    assert first_program.facts["left"] == []


def test_handles_of_a_cluster_that_was_shut_down_say_so(first_program: Run) -> None:
    *of_the_cluster, of_a_producer = first_program.facts["errors"]
    for error in of_the_cluster:
        assert re.match(r"ClosedError: cluster \S+ was shut down: raylog\.init\('.*/data'\) starts it again", error), (
            error
        )
    assert re.match(r"(ClusterError: no controller of cluster 'raylog' answers|ClientTimeoutError: )", of_a_producer)


# ------------------------------------------------------------------ notebooks


@pytest.fixture
def kernels(short_folder: Path) -> Iterator[Any]:
    """Starts real Jupyter kernels; each is killed at the end."""
    started: list[Any] = []

    def start() -> tuple[Any, Any]:
        manager = jupyter_client.KernelManager(kernel_name="python3")
        manager.start_kernel(cwd=str(short_folder))
        client = manager.client()
        started.append((manager, client))
        client.start_channels()
        client.wait_for_ready(timeout=180)
        return manager, client

    yield start
    for manager, client in started:
        client.stop_channels()
        if manager.has_kernel:
            manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def cell(client: Any, code: str, timeout_s: float = 280) -> Run:
    """Run a cell in the kernel, as a notebook would."""
    printed: dict[str, str] = {"stdout": "", "stderr": ""}

    def output(message: Any) -> None:
        if message["msg_type"] == "stream":
            printed[message["content"]["name"]] += message["content"]["text"]

    reply = client.execute_interactive(code, timeout=timeout_s, output_hook=output)
    assert reply["content"]["status"] == "ok", "\n".join(reply["content"].get("traceback", [])) + str(printed)
    return Run(0, printed["stdout"], printed["stderr"])


def test_a_notebook_gets_one_cluster_and_after_a_killed_kernel_its_data(short_folder: Path, kernels: Any) -> None:
    folder = short_folder / "notebook"
    manager, client = kernels()
    first = cell(
        client,
        PROLOGUE
        + f"""
import asyncio
asyncio.get_running_loop()  # a notebook's cells run inside an event loop
cluster = raylog.init({str(folder)!r})
note(same=raylog.init({str(folder)!r}) is cluster)
make(cluster, "notes")
with cluster.producer(acks="all") as producer:
    note(offsets=[producer.send("notes", b"%d" % number, partition=0).result(60).offset for number in range(20)])
""",
    )
    assert first.facts == {"same": True, "offsets": list(range(20))}
    assert first.stderr == ""
    manager.signal_kernel(signal.SIGKILL)
    deadline = time.monotonic() + 120
    while manager.is_alive():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    _, client = kernels()
    again = cell(
        client,
        PROLOGUE
        + f"""
started = time.monotonic()
cluster = raylog.init({str(folder)!r})
note(seconds=time.monotonic() - started)
with cluster.consumer() as consumer:
    consumer.assign([raylog.TopicPartition("notes", 0)])
    consumer.seek_to_beginning()
    found = []
    eventually(lambda: found.extend(record.value.decode() for record in consumer.consume(100, timeout=1.0)) or len(found) >= 20)
with cluster.producer(acks="all") as producer:
    note(found=found, next=producer.send("notes", b"20", partition=0).result(60).offset)
cluster.shutdown()
""",
    )
    assert again.facts["found"] == [str(number) for number in range(20)]
    assert again.facts["next"] == 20
    print("init after the kill:", again.facts["seconds"])
    assert again.facts["seconds"] < 200, "nobody waits for the processes of the killed kernel"
    assert again.stderr == ""
