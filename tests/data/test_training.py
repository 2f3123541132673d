"""Ray Train on a stream: workers are killed, all or one of them, others go on, and the model has seen each record once.

The "model" is the list of the records it was trained on: rank 0's begins with what the checkpoint holds of all workers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from driver_scripts import PROLOGUE, facts_of
from ray_clusters import eventually

import raylog

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

RECORDS = 2000
PATIENCE_S = 240
UNHURRIED = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "240", "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2"}
"""For Ray Train on a machine that is busy: a group that is not there after its 60 s would be begun anew, again and again."""

TRAINER = """
import tempfile
from pathlib import Path
import ray
import ray.train
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

def train(config):
    rank = ray.train.get_context().get_world_rank()
    checkpoint = ray.train.get_checkpoint()
    model = []
    if checkpoint is not None and rank == 0:
        with checkpoint.as_directory() as folder:
            for part in sorted(Path(folder).glob("model-*.json")):
                model += json.loads(part.read_text())
    if rank == 0:
        with Path(config["folder"], "groups").open("a") as groups:
            print(ray.train.get_context().get_world_size(), len(model), file=groups)
    for step, batch in enumerate(config["stream"].batches(checkpoint)):
        seen = [int(value) for value in batch.table.column("value").to_pylist()]
        model += seen[:20]
        if config["fault"] == "one dies" and step == 7 and rank == 1 and checkpoint is None:
            while not Path(config["folder"], "run", "checkpoint_manager_snapshot.json").exists():
                time.sleep(0.1)  # else the run would begin anew, and die here again
            os.kill(os.getpid(), signal.SIGKILL)
        model += seen[20:]
        is_done = batch.state.is_done
        if step % 3 == 2 or is_done:
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, f"model-{rank}.json").write_text(json.dumps(model))
                batch.save(folder)
                ray.train.report({"done": is_done}, checkpoint=ray.train.Checkpoint.from_directory(folder))
        if config["fault"] == "all stop" and step == 7:
            Path(config["folder"], f"reached-{rank}").touch()
            time.sleep(600)

def main():
    address, workers, folder, fault = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    cluster = raylog.connect(ray_address=address)
    stream = raylog.data.stream_topic("training", cluster=cluster, batch_size=40, columns=["value"])
    trainer = DataParallelTrainer(
        train,
        train_loop_config={"stream": stream, "folder": folder, "fault": fault},
        scaling_config=ray.train.ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 0.1}),
        run_config=ray.train.RunConfig(
            name="run", storage_path=folder, failure_config=ray.train.FailureConfig(max_failures=int(fault == "one dies"))
        ),
    )
    result = trainer.fit()
    note(done=result.metrics["done"], checkpoint=result.checkpoint.path)

main()
"""


@contextmanager
def trainer(folder: Path, address: str, workers: int, fault: str) -> Iterator[subprocess.Popen[str]]:
    """Killed at the end, and its workers with it: Ray ends what its driver had."""
    script = folder / "trainer.py"
    script.write_text(PROLOGUE + TRAINER)
    arguments = [address, str(workers), str(folder), fault]
    process = subprocess.Popen(
        [sys.executable, str(script), *arguments],
        cwd=folder,
        env={**os.environ, **UNHURRIED},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def trained(folder: Path, address: str, workers: int, fault: str) -> dict[str, Any]:
    """What a trainer says that comes to its end."""
    with trainer(folder, address, workers, fault) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, out + err[-4000:]
    return facts_of(out)


def kept(run: Path) -> int:
    """How many checkpoints Ray Train has taken note of."""
    try:
        return len(json.loads((run / "checkpoint_manager_snapshot.json").read_text())["checkpoint_results"])
    except (FileNotFoundError, ValueError):  # which is being written
        return 0


def models(checkpoint: Path) -> list[int]:
    return sorted(each for part in checkpoint.glob("model-*.json") for each in json.loads(part.read_text()))


@pytest.fixture(scope="module")
def address(cluster: raylog.Cluster) -> str:
    """Of a Ray whose cluster has the topic to train on, of two partitions."""
    import ray

    cluster.admin().create_topics([raylog.NewTopic("training", 2, 1)])
    with cluster.producer() as producer:
        for at in range(0, RECORDS, 100):
            numbers = range(at, at + 100)
            producer.send_batch("training", [b"%d" % n for n in numbers], partition=at // 100 % 5 // 4).result()
    return ray.get_runtime_context().gcs_address  # type: ignore[no-any-return]


def groups(folder: Path) -> list[tuple[int, int]]:
    """Of each group of workers that began: how many there were, and how many records the model had seen."""
    return [(int(workers), int(seen)) for workers, seen in map(str.split, (folder / "groups").read_text().splitlines())]


def test_training_that_was_killed_goes_on_at_the_exact_record_with_fewer_workers(address: str, tmp_path: Path) -> None:
    with trainer(tmp_path, address, 3, "all stop") as first:
        eventually(
            lambda: (
                first.poll() is not None
                or (all((tmp_path / f"reached-{rank}").exists() for rank in range(3)) and kept(tmp_path / "run") == 2)
            ),
            "three workers have saved two checkpoints and gone on",
            PATIENCE_S,
        )
        assert first.poll() is None, first.communicate()[1][-4000:]

    facts = trained(tmp_path, address, 2, "")
    assert facts["done"]
    saved = [models(path) for path in sorted((tmp_path / "run").glob("checkpoint_2*"))]
    assert [len(model) for model in saved[:3]] == [
        360,
        720,
        720 + 240,
    ]  # three workers, three steps each, twice; then two
    assert models(Path(facts["checkpoint"])) == list(range(RECORDS))
    assert groups(tmp_path) == [(3, 0), (2, 720)]


@pytest.mark.slow
def test_one_worker_that_is_killed_amid_a_step_costs_and_repeats_no_record(address: str, tmp_path: Path) -> None:
    facts = trained(tmp_path, address, 3, "one dies")
    assert facts["done"]
    assert models(Path(facts["checkpoint"])) == list(range(RECORDS))
    whole, again = groups(tmp_path)
    assert whole == (3, 0)
    assert again in ((3, 360), (3, 720)), "Ray Train has taken up the last checkpoint that it had been told of"
