"""What Ray notes of itself for ``address="auto"``, and what becomes of it when that Ray has ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from raylog.placement.local_ray import forget_ray


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
