"""Ray Train on a stream: a trainer is killed with its workers, another number of them goes on, and the model has seen each record once.

The "model" is the list of the records it was trained on: rank 0's begins with what the checkpoint holds of all workers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from driver_scripts import PROLOGUE, facts_of
from ray_clusters import eventually

import raylog

pytestmark = [pytest.mark.spark, pytest.mark.timeout(280)]

RECORDS = 2000

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
    for step, batch in enumerate(config["stream"].batches(checkpoint)):
        model += [int(value) for value in batch.table.column("value").to_pylist()]
        is_done = batch.state.is_done
        if step % 3 == 2 or is_done:
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, f"model-{rank}.json").write_text(json.dumps(model))
                batch.save(folder)
                ray.train.report({"done": is_done}, checkpoint=ray.train.Checkpoint.from_directory(folder))
        if config["stops"] and step == 7:
            Path(config["folder"], f"reached-{rank}").touch()
            time.sleep(600)

def main():
    address, workers, folder, stops = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4] == "stops"
    cluster = raylog.connect(ray_address=address)
    stream = raylog.data.stream_topic("training", cluster=cluster, batch_size=40, columns=["value"])
    trainer = DataParallelTrainer(
        train,
        train_loop_config={"stream": stream, "folder": folder, "stops": stops},
        scaling_config=ray.train.ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 0.1}),
        run_config=ray.train.RunConfig(name="run", storage_path=folder),
    )
    result = trainer.fit()
    note(done=result.metrics["done"], checkpoint=result.checkpoint.path)

main()
"""


def trainer(folder: Path, address: str, workers: int, faults: str) -> subprocess.Popen[str]:
    script = folder / "trainer.py"
    script.write_text(PROLOGUE + TRAINER)
    arguments = [address, str(workers), str(folder), faults]
    return subprocess.Popen(
        [sys.executable, str(script), *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def models(checkpoint: Path) -> list[int]:
    return sorted(each for part in checkpoint.glob("model-*.json") for each in json.loads(part.read_text()))


def test_training_that_was_killed_goes_on_at_the_exact_record_with_fewer_workers(
    cluster: raylog.Cluster, tmp_path: Path
) -> None:
    import ray

    cluster.admin().create_topics([raylog.NewTopic("training", 2, 1)])
    with cluster.producer() as producer:
        for at in range(0, RECORDS, 100):
            numbers = range(at, at + 100)
            producer.send_batch("training", [b"%d" % n for n in numbers], partition=at // 100 % 5 // 4).result()
    address = ray.get_runtime_context().gcs_address

    first = trainer(tmp_path, address, 3, "stops")
    try:
        kept = tmp_path / "run" / "checkpoint_manager_snapshot.json"
        eventually(
            lambda: (
                first.poll() is not None
                or (
                    all((tmp_path / f"reached-{rank}").exists() for rank in range(3))
                    and len(json.loads(kept.read_text())["checkpoint_results"]) == 2
                )
            ),
            "three workers have saved two checkpoints and gone on",
        )
        assert first.poll() is None, first.communicate()[1][-4000:]
    finally:
        first.kill()  # and its workers with it: Ray ends what its driver had
        first.communicate()

    second = trainer(tmp_path, address, 2, "")
    out, err = second.communicate(timeout=200)
    assert second.returncode == 0, out + err[-4000:]
    facts: dict[str, Any] = facts_of(out)
    assert facts["done"]
    trained = [models(path) for path in sorted((tmp_path / "run").glob("checkpoint_2*"))]
    assert [len(model) for model in trained[:3]] == [
        360,
        720,
        720 + 240,
    ]  # three workers, three steps each, twice; then two
    assert models(Path(facts["checkpoint"])) == list(range(RECORDS))
