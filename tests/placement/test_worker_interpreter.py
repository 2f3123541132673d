"""In which interpreter a raylet of this machine starts its workers, as its command line says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from raylog.placement import local_ray
from raylog.placement.local_ray import python_of_workers

HERE, ELSEWHERE = "a1", "b2"
RAYS_OWN = "/site-packages/ray/_private/workers/setup_worker.py"


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    python_of_workers.cache_clear()
    yield
    python_of_workers.cache_clear()


def raylet(worker_command: str, node_id: str = HERE, name: str = "raylet") -> SimpleNamespace:
    command = ["raylet", f"--python_worker_command={worker_command}", f"--node_id={node_id}"]
    return SimpleNamespace(info={"name": name, "cmdline": command})


def found(monkeypatch: pytest.MonkeyPatch, *processes: SimpleNamespace) -> str | None:
    monkeypatch.setattr(local_ray.psutil, "process_iter", lambda _: iter(processes))
    return python_of_workers(HERE)


def test_it_is_the_one_that_runs_rays_own_script(monkeypatch: pytest.MonkeyPatch) -> None:
    others = raylet(f"/bin/sh {RAYS_OWN}", ELSEWHERE), raylet(f"/bin/sh {RAYS_OWN}", name="gcs_server")
    own = raylet(f"{sys.executable} {RAYS_OWN} /default_worker.py --webui=")
    assert found(monkeypatch, *others, own) == sys.executable


@pytest.mark.parametrize(
    "commands",
    [
        (),
        ("",),
        (f"{sys.executable} /site-packages/raylog/placement/worker_setup.py /default_worker.py",),
        (f"/nowhere/python {RAYS_OWN}",),
        (f"/a folder/python {RAYS_OWN}",),
    ],
    ids=["no raylet", "another command", "raylog's script", "no such file", "a path with a blank"],
)
def test_where_that_is_not_clear_there_is_none(monkeypatch: pytest.MonkeyPatch, commands: tuple[str, ...]) -> None:
    assert found(monkeypatch, *map(raylet, commands)) is None
