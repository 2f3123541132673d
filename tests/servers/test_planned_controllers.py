"""Controllers that move between brokers, and become more and fewer, while records are written: nothing that was acknowledged is lost."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from raw_requests import eventually, status

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.disks.disk import read_disk
from raylog.disks.quorum_disks import METADATA_FOLDER
from raylog.testing.in_process import InProcessCluster, cluster

pytestmark = pytest.mark.core


def plan(running: InProcessCluster, *brokers: int, count: int = 0) -> tuple[int, ...]:
    with AdminClient(running.address) as admin:
        return admin.plan_controllers(brokers, count=count)


def there(running: InProcessCluster, brokers: Iterable[int]) -> bool:
    """Whether the controllers of these brokers run, vote and know it, and no other runs."""
    wanted = sorted(brokers)
    voters = {each._controller.quorum.voters for each in list(running.controllers.values())}
    ids = tuple(sorted(disk.directory_id for disk in running._disks if disk.broker_id in wanted))
    return sorted(running.controllers) == wanted and voters == {ids} and running.active >= 0


def await_there(running: InProcessCluster, *brokers: int) -> None:
    eventually(lambda: there(running, brokers), f"controllers on {brokers}: {sorted(running.controllers)}")


def addresses(running: InProcessCluster) -> set[tuple[str, ...]]:
    """What the disks say of where the controllers are."""
    return {tuple(sorted(map(str, read_disk(disk.path).controllers))) for disk in running._disks}


def folders(running: InProcessCluster) -> list[int]:
    """The brokers whose disks hold metadata."""
    return [disk.broker_id for disk in running._disks if (disk.path / METADATA_FOLDER).exists()]


def check(six: Any, acked: list[tuple[int, bytes]]) -> None:
    assert [offset for offset, _ in acked] == list(range(len(acked)))
    assert six.values(len(acked)) == [value for _, value in acked]


def test_three_become_five_then_three_elsewhere_then_one_then_three_while_records_are_written(six: Any) -> None:
    running = six.running
    six.make_topic()
    stream = six.stream()
    stream.more()
    epoch = status(running)["controller"]["epoch"]
    for brokers in ((0, 1, 2, 3, 4), (2, 4, 5), (1,), (0, 1, 3)):
        assert plan(running, *brokers) == brokers
        stream.more()
        await_there(running, *brokers)
        with AdminClient(running.address) as admin:
            admin.create_topics([NewTopic("with-" + "-".join(map(str, brokers)), 1, 3)])
        stream.more()
        eventually(lambda brokers=brokers: folders(running) == list(brokers), "the others have forgotten")
        wanted = {tuple(sorted(str(each._endpoint) for each in running.controllers.values()))}
        eventually(lambda wanted=wanted: addresses(running) == wanted, f"all disks say {wanted}: {addresses(running)}")
    check(six, stream.stop())
    after = status(running)
    assert after["controller"]["epoch"] > epoch and len(after["topics"]) == 5
    assert {each["state"] for each in after["actors"]} == {"live"}


def test_the_moved_controllers_are_found_when_the_cluster_starts_again(tmp_path: Path) -> None:
    with cluster(brokers=5, controllers=3, folder=tmp_path) as running:
        assert plan(running, 2, 3, 4) == (2, 3, 4)
        await_there(running, 2, 3, 4)
        with AdminClient(running.address) as admin:
            admin.create_topics([NewTopic("t", 1, 3)])
    with cluster(brokers=5, folder=tmp_path) as running:
        await_there(running, 2, 3, 4)
        with AdminClient(running.address) as admin:
            assert admin.list_topics() == ["t"]
        assert plan(running, count=1)[0] in (2, 3, 4)
        eventually(lambda: len(running.controllers) == 1, "one controller")
    with cluster(brokers=5, folder=tmp_path) as running:
        with AdminClient(running.address) as admin:
            assert admin.list_topics() == ["t"]
        assert len(running.controllers) == 1


def test_a_controller_that_dies_amid_a_move_is_none_the_less_replaced(six: Any) -> None:
    running = six.running
    six.make_topic()
    stream = six.stream()
    stream.more()
    for brokers in ((3, 4, 5), (0, 1, 2)):
        killed = running.active
        plan(running, *brokers)
        eventually(lambda brokers=brokers: set(running.controllers) & set(brokers), "the first of the new ones")
        running.crash_controller(killed)
        stream.more()
        await_there(running, *brokers)
    check(six, stream.stop())


def test_a_controller_that_was_down_when_it_was_voted_out_retires_when_it_starts(six: Any) -> None:
    running = six.running
    six.make_topic()
    down = next(broker for broker in (0, 1, 2) if broker != running.active)
    rest = [broker for broker in (0, 1, 2) if broker != down]
    running.crash_controller(down)
    plan(running, *rest, 3)
    await_there(running, *rest, 3)
    epoch = status(running)["controller"]["epoch"]
    running.start_controller(down)
    await_there(running, *rest, 3)
    eventually(lambda: down not in folders(running), "it has forgotten")
    assert status(running)["controller"]["epoch"] == epoch


def test_a_plan_of_none_of_the_clients_controllers_loses_no_client(six: Any) -> None:
    running = six.running
    six.make_topic()
    with AdminClient(running.address) as admin:
        admin.list_topics()
        admin.plan_controllers([3, 4, 5])
        await_there(running, 3, 4, 5)
        admin.create_topics([NewTopic("u", 1, 3)])
        assert sorted(admin.list_topics()) == ["t", "u"]
    with AdminClient(running.address) as admin:
        assert sorted(admin.list_topics()) == ["t", "u"], "a new handle of the same address"
