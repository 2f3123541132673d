"""Controllers that are actors move between brokers while records flow; the broker of the active one is removed, the rest found again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import ray
from ray_clusters import PATIENCE_S, eventually, isr_is_whole
from ray_load import Load
from typer.testing import CliRunner

import raylog
from raylog import NewTopic
from raylog.cli.main import app
from raylog.disks.disk import disk_path, read_disk
from raylog.disks.quorum_disks import METADATA_FOLDER

pytestmark = pytest.mark.ray


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout)


def voters(cluster: raylog.Cluster) -> list[int]:
    return sorted(voter["broker"] for voter in cluster.quorum()["voters"])


def controller_actors() -> int:
    names = [each["name"] for each in ray.util.list_named_actors(all_namespaces=True)]
    return sum(name.startswith("raylog:controller:") for name in names)


def test_a_controller_moves_its_broker_is_removed_under_load_and_a_start_from_the_folder_finds_the_others(
    short_folder: Path,
) -> None:
    folder = short_folder / "data"
    cluster = raylog.init(folder, brokers=4, controllers=3, ray_address="local", timeout_s=PATIENCE_S)
    cluster.admin().create_topics([NewTopic("events", 1, 3, configs={"min.insync.replicas": "2"})])
    eventually(lambda: isr_is_whole(cluster, "events"), "all replicas of events in sync")
    with Load(cluster) as load:
        moved = run("quorum", "move", "--brokers", "1,2,3", "--folder", str(folder))
        assert moved["before"] == [0, 1, 2] and moved["controllers"] == [1, 2, 3]
        load.more()
        leaving = int(cluster.status()["controller"]["broker"])
        said = run("brokers", "remove", str(leaving), "--folder", str(folder))
        rest = sorted({0, 1, 2, 3} - {leaving})
        assert said["unregistered"] and said["controllers"] == rest
        load.more()
    load.check()
    assert voters(cluster) == rest
    eventually(lambda: controller_actors() == 3, "three actors are controllers")
    assert not (disk_path(folder, leaving, 0) / METADATA_FOLDER).exists()
    assert {str(each) for each in read_disk(disk_path(folder, rest[0], 0)).controllers} == {
        voter["endpoint"] for voter in cluster.quorum()["voters"]
    }
    cluster.shutdown()
    disk_path(folder, leaving, 0).rename(short_folder / "taken-out")
    again = raylog.init(folder, brokers=3, controllers=3, ray_address="local", timeout_s=PATIENCE_S)
    try:
        assert voters(again) == rest, "there are three, so nothing moves"
        eventually(lambda: isr_is_whole(again, "events"), "all replicas of events in sync")
        load.check_in(again)
        assert raylog.init(folder, brokers=3, controllers=1) is again
        assert len(voters(again)) == 1
        again.admin().create_topics([NewTopic("more", 1, 3)])
        raylog.init(folder, brokers=3, controllers=3)
        assert len(voters(again)) == 3
        eventually(lambda: controller_actors() == 3, "three actors are controllers again")
    finally:
        again.shutdown()
