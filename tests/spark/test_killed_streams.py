"""Streams whose tasks and drivers are killed: every row once, or a table that is exact if they write at least once."""

from __future__ import annotations

import pytest
from killed_streams import KEYS, KILLS, KILLS_OF_TRANSACTIONS, StreamUnderFire

pytestmark = pytest.mark.spark


@pytest.mark.slow  # the default, exactly once, is killed at the same points and more, in the lane
def test_the_table_equals_a_batch_recomputation_after_a_kill_at_every_point() -> None:
    with StreamUnderFire(threads=1) as stream:
        for kill in KILLS:
            getattr(stream, kill)()
        said = stream.finish()
    assert said["is_exact"] and said["keys"] == KEYS, said


def test_every_record_is_copied_once_after_a_kill_at_every_point() -> None:
    with StreamUnderFire(threads=1, exactly_once=True) as stream:
        for kill in KILLS_OF_TRANSACTIONS:
            getattr(stream, kill)()
        said = stream.finish()
    assert said["is_exact"] and said["records"] == (1 + len(KILLS_OF_TRANSACTIONS)) * 2 * KEYS, said
