"""What a leader makes of a follower's refusals."""

from __future__ import annotations

from raylog.raft.progress import Progress, ProgressState


def test_a_follower_that_refuses_what_it_had_is_not_asked_again_at_once() -> None:
    progress = Progress(next_index=75, heard_ms=0, match_index=74, paused=True)
    assert not progress.rejected(74, 0)
    assert progress.paused, (
        "the next heartbeat asks, not this answer: else both would go on as fast as the network does"
    )
    assert progress.next_index == 75


def test_a_refusal_of_what_was_never_matched_moves_back_and_asks_at_once() -> None:
    progress = Progress(next_index=75, heard_ms=0, match_index=10, paused=True)
    assert progress.rejected(74, 30)
    assert (progress.state, progress.paused, progress.next_index) == (ProgressState.PROBE, False, 31)
