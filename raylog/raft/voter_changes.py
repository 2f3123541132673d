"""When the voters of a quorum may be replaced: one at a time, by somebody who has caught up. For
``Quorum.propose_voters``.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from raylog.raft.messages import VoterChangeRefused, Voters
from raylog.raft.progress import Progress

if TYPE_CHECKING:
    from raylog.raft.quorum import Quorum


def check_voter_change(quorum: Quorum, wanted: Voters, progress_of: Mapping[uuid.UUID, Progress]) -> None:
    """Raises VoterChangeRefused where the leader may not make these the voters now.
    ``progress_of``: whom it sends to.
    """
    changed = sorted(set(wanted) ^ set(quorum.voters))
    if len(changed) != 1 or not wanted:
        raise VoterChangeRefused(
            f"voters change one at a time; this would change {len(changed)} and leave {len(wanted)}"
        )
    if not quorum.has_committed_in_term:
        raise VoterChangeRefused(f"the leader has not committed in its term {quorum.term} yet")
    voters_index = quorum.log.voters_index
    if voters_index > quorum.commit_index:
        raise VoterChangeRefused(f"the change of voters at index {voters_index} is not committed yet")
    newcomer = changed[0]
    for voter in quorum.recovering():
        if voter in wanted and voter != newcomer:  # the fewer the others are, the sooner nobody can be elected
            raise VoterChangeRefused(f"{voter} has to catch up first: its disk has lost entries")
    if newcomer in wanted and newcomer != quorum.identity:
        progress = progress_of.get(newcomer)
        if progress is None:
            raise VoterChangeRefused(f"{newcomer} has to catch up first: it is not connected")
        if progress.match_index < quorum.commit_index:
            has = f"has {progress.match_index} of {quorum.commit_index} entries"
            raise VoterChangeRefused(f"{newcomer} has to catch up first: it {has}")
