"""``raylog groups`` and the admin client's calls about groups, against real coordinators."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from raylog.client.admin.admin import AsyncAdminClient
from raylog.client.groups.offset_commits import OffsetAndMetadata
from raylog.client.sync import Consumer, Producer
from raylog.errors import ConfigError, RaylogError
from raylog.groups.context import GroupConfig
from raylog.server.replica_server import ReplicaServer
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import TopicPartition

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    groups = GroupConfig(group_initial_rebalance_delay_ms=0)
    with cluster(brokers=4, replica_server=lambda spec: ReplicaServer(spec, groups=groups)) as found:
        yield found


@pytest.fixture
def topic(operator) -> str:
    """Of two partitions, with ten records in each."""
    name = operator.new_topic((1, 2), (2, 1))
    with Producer(operator.running.address) as producer:
        for number in range(20):
            producer.send(name, b"x", partition=number % 2, timestamp_ms=1_000 + number)
    return name


def resets(raylog, group, *options):
    """What the plan says, by partition."""
    code, rows = raylog("groups", "reset-offsets", "--group", group, *options, "--json")
    assert code == 0, rows
    return {row["partition"]: row["new_offset"] for row in rows}


def test_a_watched_group_is_shown_as_it_changes(operator, raylog, topic, monkeypatch):
    group = f"watched-{topic}"
    operator.admin.alter_group_offsets(group, {(topic, 0): 1})
    pauses = []

    def read_on(seconds):
        """What happens while the command sleeps; the third time somebody presses Ctrl-C."""
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt
        operator.admin.alter_group_offsets(group, {(topic, 0): 1 + len(pauses)})

    monkeypatch.setattr("raylog.cli.watching.time.sleep", read_on)
    code, shown = raylog("groups", "describe", "--group", group, "--watch", "0.2")
    assert code != 0 and pauses == [0.2] * 3
    lags = [line.split()[5] for line in shown.splitlines() if line.startswith(group)]
    assert lags == ["9", "8", "7"]


def test_a_group_without_members_is_listed_described_reset_and_deleted(operator, raylog, topic, tmp_path):
    admin, group = operator.admin, f"of-{topic}"
    admin.alter_group_offsets(group, {(topic, 0): 5, (topic, 1): (6, "note")})
    offsets = admin.list_group_offsets(group)
    assert offsets[TopicPartition(topic, 1)] == OffsetAndMetadata(6, "note")
    assert group in raylog("groups", "list")[1].splitlines()
    assert {"group": group, "type": "", "state": "Empty"} in raylog("groups", "list", "--state", "empty", "--json")[1]
    assert group not in raylog("groups", "list", "--state", "Stable")[1]
    _, rows = raylog("groups", "describe", "--group", group, "--json")
    assert [(row["current_offset"], row["log_end_offset"], row["lag"]) for row in rows] == [(5, 10, 5), (6, 10, 4)]
    _, (state,) = raylog("groups", "describe", "--group", group, "--state", "--json")
    assert (state["state"], state["members"]) == ("Empty", 0) and state["coordinator"] in range(4)

    assert resets(raylog, group, "--all-topics", "--to-earliest") == {0: 0, 1: 0}
    assert admin.list_group_offsets(group) == offsets, "a dry run changes nothing"
    assert resets(raylog, group, "--topic", f"{topic}:1", "--to-latest") == {1: 10}
    assert resets(raylog, group, "--topic", topic, "--shift-by", "-2") == {0: 3, 1: 4}
    assert resets(raylog, group, "--topic", topic, "--to-offset", "99") == {0: 10, 1: 10}
    assert resets(raylog, group, "--all-topics", "--to-current") == {0: 5, 1: 6}
    assert resets(raylog, group, "--all-topics", "--to-datetime", "1970-01-01T00:00:01.008") == {0: 4, 1: 4}
    assert resets(raylog, group, "--all-topics", "--by-duration", "PT1M") == {0: 10, 1: 10}
    code, text = raylog("groups", "reset-offsets", "--group", group, "--all-topics", "--to-earliest", "--export")
    assert (code, text) == (0, f"{topic},0,0\n{topic},1,0\n")
    (tmp_path / "plan.csv").write_text(f"{topic},0,2\n{topic},1,77\n")
    assert resets(raylog, group, "--from-file", str(tmp_path / "plan.csv"), "--execute") == {0: 2, 1: 10}
    assert {key.partition: each.offset for key, each in admin.list_group_offsets(group).items()} == {0: 2, 1: 10}

    admin.delete_group_offsets(group, [(topic, 0)])
    assert list(admin.list_group_offsets(group)) == [TopicPartition(topic, 1)]
    assert raylog("groups", "delete", "--group", group)[0] == 0
    assert group not in raylog("groups", "list")[1].splitlines()
    with pytest.raises(ConfigError, match="there is no group"):
        raylog("groups", "describe", "--group", group)
    with pytest.raises(RaylogError, match="GROUP_ID_NOT_FOUND"):
        raylog("groups", "delete", "--group", group)


def test_a_group_with_members_is_shown_and_left_alone(operator, raylog, topic):
    group = f"live-{topic}"
    options = {"group_id": group, "auto_offset_reset": "earliest", "client_id": "reader"}
    with Consumer(operator.running.address, **options) as consumer:
        consumer.subscribe(topic)
        read = 0
        while read < 20:
            read += len(consumer.consume(timeout=1))
        consumer.commit()
        _, (member,) = raylog("groups", "describe", "--group", group, "--members", "--json")
        assert (member["client"], member["partitions"], member["assignment"]) == ("reader", 2, f"{topic}(0,1)")
        _, (state,) = raylog("groups", "describe", "--group", group, "--state", "--json")
        assert (state["state"], state["strategy"], state["members"]) == ("Stable", "range", 1)
        _, rows = raylog("groups", "describe", "--group", group, "--json")
        assert [(row["lag"], row["member"]) for row in rows] == [(0, member["member"])] * 2
        assert "CONSUMER-ID" in raylog("groups", "describe", "--group", group)[1]
        for view, column, value in (("--members", "ASSIGNMENT", f"{topic}(0,1)"), ("--offsets", "LEADER-EPOCH", "")):
            brief = raylog("groups", "describe", "--group", group, view)[1]
            assert column not in brief and "CONSUMER-ID" in brief
            whole = raylog("groups", "describe", "--group", group, view, "--verbose")[1]
            assert column in whole and value in whole
        with pytest.raises(ConfigError, match="is inactive, but its state is Stable"):
            resets(raylog, group, "--all-topics", "--to-earliest", "--execute")
        with pytest.raises(RaylogError, match="has members"):
            operator.admin.alter_group_offsets(group, {(topic, 0): 0})
        with pytest.raises(RaylogError, match="NON_EMPTY_GROUP"):
            raylog("groups", "delete", "--group", group)
        with pytest.raises(RaylogError, match="GROUP_SUBSCRIBED_TO_TOPIC"):
            operator.admin.delete_group_offsets(group, [(topic, 0)])
    assert operator.admin.describe_groups(group)[group].state == "Empty", "it left when it was closed"


@pytest.mark.parametrize(
    "options",
    [
        ("--all-topics",),
        ("--to-earliest",),
        ("--all-topics", "--to-earliest", "--to-latest"),
        ("--all-topics", "--topic", "t", "--to-earliest"),
        ("--all-topics", "--to-earliest", "--execute", "--dry-run"),
    ],
)
def test_a_reset_needs_one_scope_and_one_rule(raylog, options):
    assert raylog("groups", "reset-offsets", "--group", "g", *options)[0] == 2


def test_groups_are_named_or_all_of_them_are_meant(raylog):
    assert raylog("groups", "describe")[0] == 2
    assert raylog("groups", "describe", "--group", "g", "--all-groups")[0] == 2
    assert raylog("groups", "describe", "--group", "g", "--members", "--state")[0] == 2


def test_a_group_that_never_was_is_dead(operator):
    async def main():
        async with AsyncAdminClient(operator.running.address) as admin:
            return (await admin.describe_groups(["never"]))["never"]

    found = asyncio.run(main())
    assert (found.state, found.members, found.has_members) == ("Dead", (), False)
