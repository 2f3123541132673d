"""Deletion through the real servers: a deleted topic leaves no folder and no process."""

from __future__ import annotations

import os

import pytest
from raw_requests import eventually

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.testing.in_process import cluster

pytestmark = pytest.mark.core

OWN_PROCESSES = {"replicas.per.actor": "1"}


def folders(running, name):
    return sorted(
        each for broker in range(3) for each in os.listdir(running.folder / f"broker-{broker}") if each.startswith(name)
    )


def test_a_deleted_topics_folders_and_processes_go(tmp_path):
    with cluster(brokers=3, folder=tmp_path) as running, AdminClient(running.address) as admin:
        admin.create_topics(
            [NewTopic("gone", 2, 3, configs=OWN_PROCESSES), NewTopic("kept", 1, 3, configs=OWN_PROCESSES)]
        )
        eventually(
            lambda: len(folders(running, "gone-")) == 6 and len(folders(running, "kept-")) == 3, "the folders of both"
        )
        eventually(lambda: all(p.leader >= 0 for p in admin.describe_topics(["gone"])["gone"].partitions), "leaders")
        admin.delete_topics(["gone"])
        eventually(lambda: not folders(running, "gone-"), "the folders gone")
        eventually(
            lambda: len(running.controller._controller.image.actors) == 3 + 2 * 3 + 3,
            "no process left but Brokers, their disks' hosts, and what holds the other topic",
        )
        assert len(folders(running, "kept-")) == 3
