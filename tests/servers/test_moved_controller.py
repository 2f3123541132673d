"""A controller whose port was taken while it was away: who knew it before finds it where it is."""

from __future__ import annotations

import dataclasses
import pickle
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from raw_requests import eventually

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient, Producer
from raylog.cluster import Cluster
from raylog.errors import ClusterError
from raylog.testing.in_process import InProcessCluster
from raylog.types import Endpoint

pytestmark = pytest.mark.core


@contextmanager
def moved(running: InProcessCluster) -> Iterator[Endpoint]:
    """The controller comes back on another port, because a stranger listens on its own; the new endpoint."""
    (old,) = running.address.bootstrap
    everybody = running.controller.live_nodes()
    running.stop_controller()
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind((old.host, old.port))
        stranger.listen()
        new = running.start_controller()
    assert new.port != old.port
    running.await_true(lambda: running.controller.live_nodes() == everybody)
    yield new


def test_open_handles_find_a_moved_controller_through_the_servers(faulty: Any) -> None:
    running = faulty.running
    faulty.make_topic()
    with AdminClient(running.address) as admin, Producer(running.address) as producer:
        assert admin.list_topics() == ["t"]
        producer.send("t", b"0").result(60)
        with moved(running):
            admin.create_topics([NewTopic("u", 1, 3)])
            assert producer.send("u", b"0").result(60).offset == 0


def test_handles_made_after_the_move_from_an_old_address_find_it(faulty: Any) -> None:
    running = faulty.running
    cluster = Cluster(running.address)
    eventually(lambda: all(each["live"] for each in cluster.status()["brokers"]), "brokers")  # nothing else was asked
    with moved(running) as new:
        assert cluster.status()["controller"]["endpoint"] == str(new)
        with cluster.admin() as admin:
            assert admin.list_topics() == []
        assert pickle.loads(pickle.dumps(cluster)).address.bootstrap[0] == new


def test_a_server_without_a_session_names_no_controller(faulty: Any) -> None:
    running = faulty.running
    faulty.make_topic()
    with AdminClient(running.address) as admin:
        admin.list_topics()
        everybody = running.controller.live_nodes()
        running.stop_controller()
        patient = admin._client._config
        admin._client._config = patient.model_copy(update={"default_api_timeout_ms": 2_500})
        with pytest.raises(ClusterError, match="no controller of cluster 'test' answers"):
            admin.list_topics()
        admin._client._config = patient
        running.start_controller()
        eventually(lambda: admin.list_topics() == ["t"], "the controller at its old place")
    running.await_true(lambda: running.controller.live_nodes() == everybody)


def test_an_address_nobody_has_used_before_the_move_is_a_clear_error(faulty: Any) -> None:
    running = faulty.running
    unused = dataclasses.replace(running.address, name="unused")
    with (
        moved(running),
        AdminClient(unused, default_api_timeout_ms=2_500) as admin,
        pytest.raises(ClusterError, match="no controller of cluster 'unused' answers"),
    ):
        admin.list_topics()
