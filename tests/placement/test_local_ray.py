"""What Ray notes of itself for ``address="auto"``, and what becomes of it when that Ray has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raylog.placement import ray_start
from raylog.placement.local_ray import forget_ray
from raylog.placement.ray_start import patient_start, started


@pytest.mark.parametrize("ended", [True, False])
def test_only_the_note_of_the_ray_that_has_ended_is_taken_back(
    ended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    note = tmp_path / "ray" / "ray_current_cluster"
    forget_ray("127.0.0.1:1")  # there is none
    note.parent.mkdir()
    note.write_text("127.0.0.1:1\n" if ended else "127.0.0.1:12\n")
    forget_ray("127.0.0.1:1")
    assert note.exists() is not ended


class SlowHead:
    """Ray's services, whose head knows a node from the third time that it is asked."""

    asked = 0

    def get_node(self, gcs_address: str, node_id: str) -> dict[str, str]:
        self.asked += 1
        if self.asked < 3:
            raise RuntimeError(f"Node with ID {node_id} not found.")
        return {"id": node_id, "of": gcs_address}


def test_a_node_that_comes_up_slowly_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself gives up 30 s after the first question."""
    from ray._private import services

    monkeypatch.setattr(services, "get_node", (head := SlowHead()).get_node)
    monkeypatch.setattr(ray_start, "NODE_POLL_S", 0.0)
    monkeypatch.setattr(ray_start, "_has_raylet", lambda node_id: True)
    with patient_start():
        assert services.get_node("127.0.0.1:1", "a") == {"id": "a", "of": "127.0.0.1:1"}
    assert services.get_node == head.get_node, "other questions are not held up"


@pytest.mark.parametrize(("timeout_s", "lives"), [(0.0, True), (120.0, False)])
def test_a_node_that_does_not_come_up_is_given_up(
    timeout_s: float, lives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray._private import services

    monkeypatch.setattr(services, "get_node", SlowHead().get_node)
    monkeypatch.setattr(ray_start, "NODE_START_TIMEOUT_S", timeout_s)
    if lives:
        monkeypatch.setattr(ray_start, "_has_raylet", lambda node_id: True)
    with patient_start(), pytest.raises(RuntimeError, match="not found"):
        services.get_node("127.0.0.1:1", "a")


@pytest.mark.parametrize(("said", "attempts"), [(ray_start.GAVE_UP, ray_start.ATTEMPTS), ("no such option", 1)])
def test_a_node_that_did_not_come_up_is_started_again_and_leaves_nothing(
    said: str, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray._private.node import Node

    made, ended = [], []

    def init(node: Any, head: bool) -> None:
        made.append(node)
        raise Exception(f"{said}. This could happen")

    monkeypatch.setattr(Node, "__init__", init)
    monkeypatch.setattr(Node, "kill_all_processes", lambda node, **options: ended.append(node))
    node: Any = Node
    with pytest.raises(Exception, match=said):
        started(lambda: node(head=True))
    assert len(made) == attempts and ended == made[:-1]
    assert Node.__init__ is init
