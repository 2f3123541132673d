"""A keyed topic that a stream writes is exact as a table, whenever tasks and drivers of the stream are killed."""

from __future__ import annotations

import pytest
from killed_streams import KEYS, KILLS, StreamUnderFire

pytestmark = pytest.mark.spark


def test_the_table_equals_a_batch_recomputation_after_a_kill_at_every_point() -> None:
    with StreamUnderFire(threads=1) as stream:
        for kill in KILLS:
            getattr(stream, kill)()
        said = stream.finish()
    assert said["is_exact"] and said["keys"] == KEYS, said
