"""Every check of ``raylog doctor``: what it says of a healthy machine, of each ill, and the command that mends it."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raylog.cli import machine
from raylog.cli.checks import (
    GIB,
    MIB,
    DiskFacts,
    Facts,
    Finding,
    Level,
    RayFacts,
    Workload,
    judge,
    obstacles,
    recommended_open_files,
)
from raylog.cli.machine import (
    SERVER_ACTORS,
    count_replicas,
    count_replicas_of_a_disk,
    damaged_logs,
    look,
    look_at_disk,
    look_at_limits,
    recovering_controllers,
)

HEALTHY = Facts(
    open_files_soft=65536,
    open_files_hard=65536,
    map_count=262144,
    shm_total_bytes=2 * GIB,
    shm_free_bytes=GIB,
    disks=(DiskFacts("/data/disk-0", 50 * GIB, 100 * GIB, None),),
    loopback_problem=None,
    head_port_owner="free",
    ray=RayFacts("2.60.0", None, None, None, True),
    java_version=17,
    oom_scores=((41, 0), (42, 0)),
    kernel_trouble=None,
)


def findings_of(facts: Facts, workload: Workload | None = None) -> dict[str, Finding]:
    return {finding.check: finding for finding in judge(facts, workload or Workload())}


def test_tv_34_recommended_open_files_of_100_partitions_of_10_gib_are_1300() -> None:
    assert recommended_open_files(Workload(100, 10 * GIB, GIB)) == 1300


def test_a_started_segment_counts_as_a_whole_one() -> None:
    assert recommended_open_files(Workload(1, GIB + 1, GIB)) == 5


def test_a_healthy_machine_needs_nothing() -> None:
    findings = findings_of(HEALTHY)
    assert {finding.level for finding in findings.values()} == {Level.OK}
    assert {finding.remedy for finding in findings.values()} == {""}
    assert len(findings) == 14


@pytest.mark.parametrize(
    ("changed", "check", "level", "found", "remedy"),
    [
        (
            {"open_files_soft": 1024},
            "open files",
            Level.WARNING,
            "1024 may be open, 1556 recommended",
            "ulimit -n 1556",
        ),
        (
            {"open_files_soft": 1024, "open_files_hard": 1024},
            "open files",
            Level.WARNING,
            "1024",
            "nofile 65536' | sudo tee",
        ),
        (
            {"replicas_of_a_disk": 4_000, "open_files_hard": 4_096},
            "replicas per process",
            Level.FAILURE,
            "the fullest disk has 4000",
            "nofile 65536' | sudo tee",
        ),
        (
            {"open_files_hard": 256},
            "replicas per process",
            Level.WARNING,
            "100 are planned",
            "nofile 65536' | sudo tee",
        ),
        (
            {"replicas_of_a_disk": 90_000},
            "replicas per process",
            Level.FAILURE,
            "a process may hold 52992 replicas",
            "raylog actors add",
        ),
        ({"threads_allowed": 500, "threads_running": 100}, "threads", Level.WARNING, "500 are allowed", "ulimit -u"),
        (
            {"threads_allowed": 110, "threads_running": 100},
            "threads",
            Level.FAILURE,
            "110 are allowed",
            "kernel.pid_max",
        ),
        ({"memory_available_bytes": GIB}, "memory", Level.WARNING, "1,024 MiB of memory", "ps aux --sort=-rss"),
        ({"memory_available_bytes": 300 * MIB}, "memory", Level.FAILURE, "300 MiB of memory", "container's --memory"),
        ({"map_count": 1000}, "memory maps", Level.WARNING, "1000", "sysctl -w vm.max_map_count=262144"),
        ({"shm_free_bytes": 10 * MIB}, "/dev/shm", Level.WARNING, "10 MiB of 2,048 MiB", "ls -lS /dev/shm"),
        (
            {"shm_total_bytes": 64 * MIB, "shm_free_bytes": 64 * MIB},
            "/dev/shm",
            Level.FAILURE,
            "64 MiB",
            "remount,size=2G",
        ),
        (
            {"disks": (DiskFacts("/d", 1, GIB, None),)},
            "disk /d",
            Level.FAILURE,
            "raylog wants 1 GiB",
            "retention.bytes",
        ),
        (
            {"disks": (DiskFacts("/d", GIB, GIB, "belongs to cluster x"),)},
            "disk /d",
            Level.FAILURE,
            "cluster x",
            "ls -ld /d",
        ),
        (
            {"disks": (DiskFacts("/d", GIB, GIB, None, "/d is on tmpfs: …"),)},
            "disk /d",
            Level.WARNING,
            "/d is on tmpfs",
            "findmnt -T /d",
        ),
        ({"loopback_problem": "network down"}, "ports", Level.FAILURE, "network down", "ip link set lo up"),
        ({"head_port_owner": "redis-server"}, "ports", Level.WARNING, "taken by redis-server", "--port=6380"),
        ({"java_version": None}, "Java", Level.WARNING, "no Java", "openjdk-17"),
        ({"java_version": 21}, "Java", Level.WARNING, "Java 21; Spark needs 17", "openjdk-17"),
        ({"kernel_trouble": "not built"}, "records to Arrow", Level.WARNING, "packaged codec", "pip install"),
        ({"oom_scores": ((41, 1000), (7, 0))}, "OOM score", Level.WARNING, "highest oom_score_adj 1000", "41 7"),
    ],
)
def test_each_ill_is_named_with_its_remedy(
    changed: dict[str, object], check: str, level: Level, found: str, remedy: str
) -> None:
    findings = findings_of(replace(HEALTHY, **changed))  # type: ignore[arg-type]
    assert findings[check].level is level
    assert found in findings[check].found
    assert remedy in findings[check].remedy
    assert {name for name, finding in findings.items() if finding.level is not Level.OK} == {check}


@pytest.mark.parametrize(
    ("ray", "check", "level", "found", "remedy"),
    [
        (RayFacts(None, None, None, None, True), "Ray version", Level.WARNING, "not installed", "raylog[ray]"),
        (RayFacts("2.36.1", None, None, None, True), "Ray version", Level.FAILURE, "2.36.1", "ray[default]>=2.37"),
        (
            RayFacts("2.60.0", "127.0.0.1:6379", "2.60.1", None, True),
            "Ray version",
            Level.FAILURE,
            "the Ray at 127.0.0.1:6379 is 2.60.1",
            "pip install 'ray[default]==2.60.1'",
        ),
        (
            RayFacts("2.60.0", None, None, "token", False),
            "Ray token",
            Level.FAILURE,
            "there is no token",
            "ray get-auth-token --generate",
        ),
        (
            RayFacts("2.60.0", "10.0.0.1:6379", "2.60.0", "disabled", True),
            "Ray token",
            Level.WARNING,
            "whoever reaches 10.0.0.1:6379 controls it",
            "unset RAY_AUTH_MODE",
        ),
    ],
)
def test_rays_version_and_token_are_judged(ray: RayFacts, check: str, level: Level, found: str, remedy: str) -> None:
    finding = findings_of(replace(HEALTHY, ray=ray))[check]
    assert finding.level is level and found in finding.found and remedy in finding.remedy


def test_rays_own_head_port_is_no_ill() -> None:
    assert findings_of(replace(HEALTHY, head_port_owner="ray"))["ports"].level is Level.OK


def test_a_wider_workload_needs_more_files_and_maps() -> None:
    findings = findings_of(HEALTHY, Workload(partitions=50_000, partition_bytes=10 * GIB, segment_bytes=GIB))
    assert "650256 recommended" in findings["open files"].found
    assert "vm.max_map_count=1000000" in findings["memory maps"].remedy


def test_replicas_that_are_there_count_where_they_are_more_than_planned() -> None:
    finding = findings_of(replace(HEALTHY, replicas=50_000), Workload(partitions=100))["open files"]
    assert finding.level is Level.WARNING and "for 50000 partitions" in finding.found
    assert "vm.max_map_count=1000000" in findings_of(replace(HEALTHY, replicas=50_000))["memory maps"].remedy


def test_replicas_are_counted_in_a_disk_and_in_an_embedded_cluster(tmp_path: Path) -> None:
    for folder in ("broker-0/flights-0", "broker-0/flights-1", "broker-1/flights-0", "broker-1/flights-1.deleted"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("broker-0/flights-0", "broker-0/flights-1", "broker-1/flights-0"):
        (tmp_path / folder / "partition.metadata").touch()
    assert (count_replicas_of_a_disk(tmp_path), count_replicas_of_a_disk(tmp_path / "x")) == (2, 0)
    assert (count_replicas(tmp_path), count_replicas(tmp_path / "broker-0"), count_replicas(tmp_path / "x")) == (
        3,
        2,
        0,
    )


@pytest.mark.core
def test_the_processes_of_every_kind_of_server_are_looked_at() -> None:
    from raylog.actors.ray_classes import RAY_CLASSES

    assert {each.__ray_metadata__.class_name for each in RAY_CLASSES.values()} == set(SERVER_ACTORS)


@pytest.mark.core
def test_this_machine_can_be_looked_at(tmp_path: Path) -> None:
    facts = look([tmp_path / "not" / "yet" / "there"])
    assert facts.open_files_soft > 0 and facts.map_count > 0 and facts.loopback_problem is None
    assert facts.disks[0].problem is None and facts.disks[0].total_bytes > 0
    assert facts.ray.installed_version.startswith("2.60")


def test_a_folder_that_is_no_disk_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    problem = look_at_disk(tmp_path).problem
    assert problem is not None and "not raylog's" in problem


@pytest.mark.core
def test_a_port_that_somebody_listens_on_has_an_owner() -> None:
    from raylog.cli.machine import _port_owner

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert _port_owner(listener.getsockname()[1]) not in ("free", "ray")


def test_damaged_logs_are_a_failure_that_names_them() -> None:
    words = "broker 1: orders-3: 00000000000000000000.log at byte 5156, offset 246: a CRC does not fit"
    finding = findings_of(replace(HEALTHY, damaged_logs=(words,)))["logs"]
    assert finding.level is Level.FAILURE
    assert words in finding.found and "raylog verify --repair" in finding.remedy
    assert findings_of(replace(HEALTHY, damaged_logs=()))["logs"].level is Level.OK


def test_recovering_controllers_are_a_warning_that_names_them() -> None:
    voters = [{"broker": 1, "recovering": True}, {"broker": 2, "recovering": False}, {"broker": 3}]
    found = recovering_controllers({"voters": voters})
    finding = findings_of(replace(HEALTHY, recovering_controllers=tuple(found)))["controllers"]
    assert finding.level is Level.WARNING and finding.found.endswith(": broker 1")
    assert "controllers" not in findings_of(HEALTHY)


def test_damaged_logs_are_read_from_a_status_with_their_broker() -> None:
    status = {"actors": [{"broker": 1, "damaged": ["orders-3: …"]}, {"broker": 2, "damaged": []}]}
    assert damaged_logs(status) == ["broker 1: orders-3: …"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, []),
        ({"open_files_soft": 64, "open_files_hard": 64}, ["open files"]),
        ({"open_files_soft": 256, "open_files_hard": 256}, []),
        ({"threads_allowed": 110, "threads_running": 100}, ["threads"]),
        ({"memory_available_bytes": 300 * MIB}, ["memory"]),
        ({"memory_available_bytes": GIB}, []),
        ({"shm_total_bytes": 64 * MIB, "shm_free_bytes": 64 * MIB}, ["/dev/shm"]),
        ({"disks": (DiskFacts("/d", 1, GIB, None),)}, ["disk /d"]),
        ({"disks": (DiskFacts("/d", 2 * GIB, 2 * GIB, "is no empty folder: a start has its lock in it"),)}, []),
        ({"ray": RayFacts("2.36.1", None, None, None, True)}, []),
    ],
)
def test_what_keeps_a_start_from_working_is_known_before_it(changed: dict[str, Any], said: list[str]) -> None:
    assert [each.check for each in obstacles(replace(HEALTHY, **changed))] == said


def test_this_machine_is_looked_at_without_ray(tmp_path: Path) -> None:
    facts = look_at_limits([tmp_path])
    assert facts.ray.installed_version is None and 0 < facts.memory_available_bytes < 1 << 50
    assert facts.open_files_soft <= facts.open_files_hard and facts.disks[0].path == str(tmp_path)


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({"memory.max": "1000", "memory.current": "900", "memory.stat": "anon 1\ninactive_file 300\n"}, 400),
        ({"memory.max": "max", "memory.current": "900", "memory.stat": "inactive_file 300\n"}, 1 << 62),
        (
            {
                "memory/memory.limit_in_bytes": "1000",
                "memory/memory.usage_in_bytes": "990",
                "memory/memory.stat": "total_inactive_file 5\n",
            },
            15,
        ),
        ({}, 1 << 62),
    ],
)
def test_a_containers_memory_counts(tmp_path: Path, files: dict[str, str], left: int) -> None:
    (tmp_path / "memory").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert machine._left_in_container(tmp_path) == left
