"""What the checkers of clients' answers take for right, and what they refuse."""

from __future__ import annotations

import uuid

import pytest

from raylog.simulator.answer_checks import Asked, out_of_range, searched
from raylog.simulator.checkers import History, Violation
from raylog.types import TopicIdPartition

ID = TopicIdPartition(uuid.UUID(int=1), 0)


def compacted(generation: int) -> History:
    """The first replica to lead had compacted away what lay at offset 1."""
    history = History(ID, "t-0", generation=generation, end=3, compacts=True)
    history.records = {0: (b"a", b"x", 1_000), 2: (b"b", b"x", 3_000)}
    return history


def search(history: History, timestamp: int, found: tuple[int, int]) -> None:
    searched(history, history.generation, timestamp, found, known_end=3, is_current=True)


def test_after_an_unclean_election_a_search_may_find_what_its_leader_had_compacted_away() -> None:
    """Another replica, which has compacted less, leads by now."""
    search(compacted(1), 2_000, (2_000, 1))
    with pytest.raises(Violation, match="it has None"):
        search(compacted(0), 2_000, (2_000, 1))


@pytest.mark.parametrize("found", [(1_999, 1), (3_001, 2), (3_000, 3)])
def test_a_search_after_an_unclean_election_still_has_to_find_the_first_record_as_it_is(found: tuple[int, int]) -> None:
    with pytest.raises(Violation):
        search(compacted(1), 2_000, found)


@pytest.mark.parametrize("end_when_asked, is_refused", [(4, False), (5, True), (6, True)])
def test_an_offset_is_out_of_range_where_the_log_had_not_come_as_far_yet_when_its_leader_was_asked(
    end_when_asked: int, is_refused: bool
) -> None:
    """A reader of a longer, former history asks; until its answer is there, the log has grown."""
    history = History(ID, "t-0", generation=1, end=9)
    asked = Asked(1, offset=5, end=end_when_asked)
    if is_refused:
        with pytest.raises(Violation, match="offset 5 is said to be out of range"):
            out_of_range(history, asked, is_current=True)
    else:
        out_of_range(history, asked, is_current=True)
