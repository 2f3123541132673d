"""``read_committed`` on handwritten transactions, from the snapshot to the last row: what was aborted is left out, whoever asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from scripted_cluster import ScriptedCluster, transactions

import raylog.data
from raylog.client.background import background
from raylog.ranges.places import bound
from raylog.ranges.snapshot import take
from raylog.ranges.watch import TopicWatch

pytestmark = pytest.mark.spark

Scripted = Callable[..., ScriptedCluster]


def levels(cluster: ScriptedCluster, name: str) -> set[int]:
    """The isolation levels of the requests that have this field, since the last look."""
    found = {request.isolation_level for request in cluster.requests if hasattr(request, name)}
    cluster.requests.clear()
    return found


def test_a_cut_and_a_watch_ask_for_the_ends_of_what_is_decided(scripted: Scripted) -> None:
    cluster = scripted()

    async def looked(committed: bool) -> Any:
        watch = TopicWatch(cluster.address, "t", read_committed=committed)
        try:
            return await watch.look()
        finally:
            await watch.close()

    for committed in (True, False):
        take(cluster.address, "t", bound("starting"), bound("ending"), read_committed=committed)
        assert levels(cluster, "replica_id") == {int(committed)}
        background().run(looked(committed))
        assert levels(cluster, "replica_id") == {int(committed)}


@pytest.mark.parametrize("endless", [False, True])
def test_training_sees_no_record_of_an_aborted_transaction(scripted: Scripted, endless: bool) -> None:
    cluster = scripted()
    transactions(cluster)
    options: dict[str, Any] = {"endless": True, "idle_timeout_s": 0.1, "short_after_s": 0.0} if endless else {}

    def values(**more: Any) -> list[bytes]:
        stream = raylog.data.stream_topic("t", cluster=cluster.address, columns=["value"], **options, **more)
        return [value for batch in stream for value in batch.table.column("value").to_pylist()]

    assert values(read_committed=True) == [b"kept"]
    assert levels(cluster, "max_wait") == {1}
    assert values() == [b"gone", b"kept"]
    assert levels(cluster, "max_wait") == {0}
