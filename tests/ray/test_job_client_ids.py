"""The clients of a Ray job have the job's id for a client id, and a quota of it holds them back."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray

import raylog
from raylog.client.sync import AdminClient
from raylog.cluster import Cluster
from raylog.placement.ray_start import started
from raylog.security.quota_leases import GRACE_MS
from raylog.testing.in_process import InProcessCluster, cluster

pytestmark = pytest.mark.ray

VALUE = b"v" * (23 * 1_024 // 2)
"""Two of them are what a quota of 2 KiB a second allows in 11.5 s; what ten seconds allow may be sent at once."""
SUBMITTED = {"metadata": {"job_submission_id": "raysubmit_Qx7"}, "runtime_env": {}}
"""What `ray job submit` has the driver's environment say, in RAY_JOB_CONFIG_JSON_ENV_VAR."""


@contextmanager
def job(folder: Path, **environment: str) -> Iterator[str]:
    """This process is the driver of a job, on a Ray of its own; the job's id."""
    from ray_clusters import kept_environment  # workers import this module, and have no tests/support

    with kept_environment("RAY_TMPDIR", "RAY_AUTH_MODE", "RAY_JOB_CONFIG_JSON_ENV_VAR"):
        os.environ |= {"RAY_TMPDIR": str(folder)} | environment
        settings = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False, "log_to_driver": False}
        started(lambda: ray.init("local", logging_level="ERROR", **settings))
        try:
            yield ray.get_runtime_context().get_job_id()
        finally:
            ray.shutdown()


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    with cluster(brokers=1) as found:
        with AdminClient(found.address) as admin:
            admin.create_topics([raylog.NewTopic("events", 1, 1)])
        yield found


def client_id_of_member(handle: raylog.Cluster, group: str) -> str:
    """As the group's coordinator shows it."""
    with handle.consumer(group_id=group) as consumer, handle.admin() as admin:
        consumer.subscribe(["events"])
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            consumer.poll(0.1)
            members = admin.describe_groups([group])[group].members
            if members:
                return members[0].client_id
    raise AssertionError(f"{group} has no member")


def seconds_for_a_third_value(handle: raylog.Cluster) -> float:
    """A process that shares a quota may serve its clients for ``GRACE_MS`` until it hears that nothing is left."""
    with handle.producer() as producer:
        for _ in range(2):
            producer.send("events", VALUE).result(60)
        time.sleep(2 * GRACE_MS / 1_000)
        began = time.monotonic()
        producer.send("events", VALUE).result(60)
        return time.monotonic() - began


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("is_submitted", [False, True])
def test_clients_in_a_ray_job_have_its_id_and_its_quota(
    running: InProcessCluster, short_folder: Path, is_submitted: bool
) -> None:
    bootstrap = running.bootstrap_servers()
    environment = {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(SUBMITTED)} if is_submitted else {}
    with job(short_folder, **environment) as job_id:
        expected = "ray-job-raysubmit_Qx7" if is_submitted else f"ray-job-{job_id}"
        outside = raylog.connect(bootstrap_servers=bootstrap)
        member, write = ray.remote(client_id_of_member), ray.remote(seconds_for_a_third_value)
        assert client_id_of_member(outside, f"driver-{is_submitted}") == expected
        assert ray.get(member.remote(outside, f"task-{is_submitted}")) == expected
        named = raylog.connect(bootstrap_servers=bootstrap, client_id="report")
        assert ray.get(member.remote(named, f"named-{is_submitted}")) == "report"
        with AdminClient(running.address) as admin:
            admin.alter_quotas({"client-id": expected}, {"producer_byte_rate": 2 * 1_024})
        assert ray.get(write.remote(outside)) >= 1, "it waits for what the second took too much"
        inside = Cluster(running.address)
        assert ray.get(write.remote(inside)) >= 1, "it holds for who talks to the processes directly, too"


def test_a_client_outside_of_any_job_has_raylogs_name(running: InProcessCluster) -> None:
    handle = raylog.connect(bootstrap_servers=running.bootstrap_servers())
    assert client_id_of_member(handle, "no-job") == "raylog"
