"""How a replica gets from one server actor to another of its disk: a pure function over the
partition's state.

The folder stays where it is, and so do the log and the broker's place among the replicas; only the
actor in the slot changes. One decision does it all:

- **Leadership** leaves first. If the replica leads, another LIVE, proven member of the ISR takes
  over, in a new epoch; where there is none, nobody leads until the new process has opened the log.
  The new process is never given leadership before it has reported how it found the log.
- **The leader epoch** rises if another replica leads, too. The new process may have held the
  replica before, and a fetch of that time may still be on its way; the older epoch fences it (as in
  ``reassignments``).
- **The slot** names the new actor. Whose log was judged before is void: what the new process finds
  is judged by the usual rules (``elections.opened``). A log that was closed cleanly keeps its
  places in ISR and ELR; one whose old process was killed is whole or suspect.
- **The ISR** is left at once where the rest is no smaller than the minimum and somebody leads.
  Otherwise acknowledgements would wait for the opening of the log, and for as long as the new
  process is slow or dies. The replica joins again when it has caught up.

No two processes ever have the log open: each locks the folder. The old process is told to let go
(``Release``), the new one waits for the lock. Who holds a replica without being assigned it is told
again in each session, so a crash of anybody at any point ends with the replica at the new actor.
"""

from __future__ import annotations

from dataclasses import replace

from raylog.metadata.partitions.elections import Candidates, handed_over, with_isr
from raylog.metadata.records import ADMITTED_ELSEWHERE, PartitionState
from raylog.types import NO_LEADER


def moved(
    state: PartitionState,
    broker_id: int,
    node_id: int,
    candidates: Candidates,
    *,
    has_run: bool,
    min_isr: int,
) -> PartitionState:
    """The state with another actor of that broker in its slot; ``settled`` has to follow.

    ``has_run``: a process of the former actor has said hello, hence may have opened the log.
    """
    slot = state.slot(broker_id)
    assert slot is not None and slot.node_id != node_id, f"{slot} cannot move to {node_id}"
    if state.leader == broker_id:
        after = handed_over(state, candidates, min_isr=min_isr)
    else:
        after = replace(
            state,
            leader_epoch=state.leader_epoch + (state.leader != NO_LEADER),
            partition_epoch=state.partition_epoch + 1,
        )
    slots = tuple(
        replace(each, node_id=node_id, admitted=ADMITTED_ELSEWHERE if has_run or each.admitted else 0)
        if each.broker_id == broker_id
        else each
        for each in after.replicas
    )
    after = replace(after, replicas=slots)
    rest = tuple(member for member in after.isr if member != broker_id)
    if after.leader == NO_LEADER or rest == after.isr or len(rest) < min_isr:
        return after
    return with_isr(after, rest, min_isr=min_isr)
