"""When a voter whose disk has lost entries may take part in elections again, and why not before.

Let H be ``recovering_term``: the term of the voter V when the damage was found, read from
``quorum-state``, which is never older than an answer. V recovers until an entry of a term above H
is on its disk. Claim: as in plain Raft, a leader of term U has every entry that was committed in a
term t < U. Take the smallest U, with a leader that lacks such an entry e. Some voter W acknowledged
e in term t and voted for the leader in term U, and it did so in this order, for after a vote in U
it refuses appends of term t. If W did not lose e between the two, this is Raft's own proof. So W is
V, which acknowledged e, so t <= H, lost it, and recovered before it voted in U. (It did not vote
while it recovered, and a vote in U given before the loss would mean U <= H, with e still there.)
When V had recovered, its log had an entry of some term T with t <= H < T. T < U, for nobody leads U
yet when V votes for its leader. The leader of T had e, as U is the smallest; V's log up to that
entry is that leader's log (a snapshot stands for the same); e lies in front of it, since it was
committed in an earlier term. So V had e again, and Raft's proof goes on from there. What V
acknowledges while it recovers is on its disk; if that is lost too, recovery begins anew with a
larger H.

H need not be what V really lost, so it doesn't matter how far the noted end of its log lagged
behind. V begins in term H + 1, durably, and votes for nobody in it: that ends a leadership of term
H, whose entries could not end the recovery. The others elect the next leader without V. If they
can't, nobody leads until somebody helps: V's acknowledgement may have been the one that counted.

This is what protocol-aware recovery (Alagappan et al., FAST 2018) asks for: a voter heals from the
others, and what it lost counts as held until then, for nobody is elected without those that have
it. The rule for the end is another one, as it needs no word of what was lost.
"""

from __future__ import annotations

from raylog.raft.log import QuorumLog


def ends_recovery(log: QuorumLog, recovering_term: int) -> bool:
    """Whether an entry of a later leader is on the disk."""
    term = log.term_at(log.persisted_index)
    return term is not None and term > recovering_term
