"""Who may lead, rule by rule."""

from __future__ import annotations

import uuid

import pytest

from raylog.control.session import ReplicaStatus
from raylog.metadata.partitions import elections
from raylog.metadata.partitions.elections import Candidate, Standing
from raylog.metadata.records import PartitionState, ReplicaSlot
from raylog.types import Condition

LIVE, ABSENT, DEAD = Standing.LIVE, Standing.ABSENT, Standing.DEAD
T = uuid.UUID(int=1)


def state(replicas=(0, 1, 2), isr=None, leader=None, epoch=4, elr=(), last=-1, admitted=1):
    isr = tuple(replicas) if isr is None else tuple(isr)
    leader = (isr[0] if isr else -1) if leader is None else leader
    return PartitionState(
        tuple(ReplicaSlot(broker, broker << 16 | 2, uuid.UUID(int=broker), admitted) for broker in replicas),
        isr,
        leader,
        100 + leader if leader >= 0 else 0,
        epoch,
        10,
        tuple(elr),
        last,
    )


def candidates(*standings, **of_log):
    return {
        broker: Candidate(standing, 100 + broker, *of_log.get(f"log{broker}", ()))
        for broker, standing in enumerate(standings)
    }


def settled(before, who, min_isr=2, **options):
    after = elections.settled(before, who, min_isr=min_isr, **options)
    after.check()
    return after


def status(condition, broker=0):
    return ReplicaStatus(T, 0, condition, 0, 9, 9, 3, -1, -1)


def test_nothing_changes_while_the_leader_lives():
    before = state()
    assert settled(before, candidates(LIVE, LIVE, LIVE)) is before
    assert settled(before, candidates(LIVE, ABSENT, LIVE)) is before, "who is being dialled is not dead"


def test_leadership_goes_to_the_first_live_isr_member_in_assignment_order():
    after = settled(state((2, 0, 1), isr=(1, 2, 0), leader=2), candidates(LIVE, LIVE, DEAD))
    assert (after.leader, after.leader_incarnation) == (0, 100)
    assert (after.leader_epoch, after.partition_epoch) == (5, 11)
    assert after.isr == (1, 0), "the ISR keeps its order"


def test_a_replica_outside_the_isr_is_not_elected():
    after = settled(state(isr=(0, 2)), candidates(DEAD, LIVE, DEAD))
    assert after.leader == -1 and after.leader_epoch == 5


def test_a_leader_without_a_session_serves_on_and_its_isr_cannot_change():
    before = state()
    assert settled(before, candidates(ABSENT, LIVE, DEAD)) is before


def test_the_dead_leave_the_isr_of_a_live_leader():
    after = settled(state(), candidates(LIVE, LIVE, DEAD))
    assert after.isr == (0, 1) and after.elr == ()
    assert (after.leader_epoch, after.partition_epoch) == (4, 11), "a follower's death raises no leader epoch"


def test_a_leader_of_another_incarnation_does_not_lead_on():
    who = candidates(LIVE, LIVE, LIVE) | {0: Candidate(LIVE, 777)}
    after = settled(state(), who)
    assert (after.leader, after.leader_incarnation, after.leader_epoch) == (0, 777, 5)
    who = candidates(LIVE, LIVE, LIVE) | {0: Candidate(ABSENT, 777)}
    after = settled(state(), who)
    assert after.leader == 1 and after.isr == (0, 1, 2), "it has restarted: it stays in the ISR"


def test_a_death_never_empties_the_isr():
    before = state(isr=(0,))
    after = settled(before, candidates(DEAD, LIVE, LIVE), min_isr=1)
    assert (after.leader, after.isr, after.last_known_leader) == (-1, (0,), 0)
    again = settled(after, candidates(DEAD, DEAD, DEAD), min_isr=1)
    assert again is after
    back = settled(after, candidates(LIVE, LIVE, LIVE), min_isr=1)
    assert (back.leader, back.isr, back.leader_epoch) == (0, (0,), 6)


def test_all_who_die_at_once_stay_as_good_as_each_other():
    after = settled(state(), candidates(DEAD, DEAD, DEAD))
    assert (after.leader, after.isr) == (-1, (0, 1, 2))
    back = settled(after, candidates(DEAD, LIVE, DEAD))
    assert (back.leader, back.isr, back.elr) == (1, (1,), (0, 2)), "and below the minimum the others stay eligible"


def test_a_member_whose_going_leaves_the_isr_below_the_minimum_stays_eligible():
    first = settled(state(), candidates(LIVE, LIVE, DEAD))
    assert first.elr == (), "two are left, and two are the minimum"
    second = settled(first, candidates(LIVE, DEAD, DEAD))
    assert (second.isr, second.elr) == ((0,), (1,))
    grown = elections.with_isr(second, (0, 2), min_isr=2)
    assert (grown.isr, grown.elr) == ((0, 2), ()), "large again: the promise is void"


def test_members_that_a_leader_removes_become_eligible_alike():
    after = elections.with_isr(state(), (0,), min_isr=2)
    assert after.elr == (1, 2) and after.partition_epoch == 11


def test_an_eligible_leader_becomes_the_whole_isr_and_the_former_isr_joins_the_elr():
    before = state(isr=(0,), leader=-1, elr=(1,), last=0)
    after = settled(before, candidates(DEAD, LIVE, LIVE))
    assert (after.leader, after.isr, after.elr) == (1, (1,), (0,))
    assert after.unclean_elections == 0 and after.last_known_leader == -1


def test_an_isr_member_goes_before_an_eligible_leader():
    before = state((1, 0, 2), isr=(0,), leader=-1, elr=(1,))
    assert settled(before, candidates(LIVE, LIVE, LIVE)).leader == 0


def test_a_minimum_that_the_isr_reaches_empties_the_elr_and_raises_the_partition_epoch():
    after = elections.with_other_minimum(state(isr=(0,), elr=(1,)), min_isr=1)
    assert (after.elr, after.partition_epoch, after.leader_epoch) == ((), 11, 4)


@pytest.mark.parametrize(("leader", "min_isr"), [(0, 2), (0, 3), (-1, 3), (-1, 1)])
def test_a_minimum_below_which_nothing_can_be_committed_leaves_the_elr(leader, min_isr):
    after = elections.with_other_minimum(state(isr=(0,), leader=leader, elr=(1,)), min_isr=min_isr)
    assert (after.elr, after.partition_epoch) == ((1,), 11)


def test_with_both_sets_empty_the_last_known_leader_serves_again_and_it_counts_as_unclean():
    before = state(isr=(), leader=-1, last=1)
    after = settled(before, candidates(LIVE, LIVE, LIVE, log1=(Condition.SUSPECT,)))
    assert (after.leader, after.isr, after.unclean_elections) == (1, (1,), 1)


def test_with_its_log_missing_the_partition_waits_for_an_unclean_election():
    before = state(isr=(), leader=-1, last=1)
    who = candidates(
        LIVE, LIVE, LIVE, log1=(Condition.MISSING,), log0=(Condition.CLEAN, 3, 5), log2=(Condition.CLEAN, 3, 6)
    )
    assert settled(before, who) is before
    after = settled(before, who, unclean_allowed=True)
    assert (after.leader, after.isr, after.unclean_elections) == (2, (2,), 1)


@pytest.mark.parametrize(
    ("logs", "winner"),
    [
        ({"log1": (Condition.CLEAN, 3, 5), "log2": (Condition.CLEAN, 2, 50)}, 1),
        ({"log1": (Condition.CLEAN, 3, 5), "log2": (Condition.CLEAN, 3, 6)}, 2),
        ({"log1": (Condition.CLEAN, 3, 5), "log2": (Condition.CLEAN, 3, 5)}, 1),
    ],
)
def test_an_unclean_election_takes_the_latest_epoch_then_the_longest_log(logs, winner):
    before = state(isr=(0,))
    after = settled(before, candidates(DEAD, LIVE, LIVE, **logs), unclean_allowed=True)
    assert after.leader == winner and after.isr == (winner,) and after.elr == ()


def test_no_unclean_election_while_a_clean_leader_may_still_turn_up():
    before = state(isr=(0,), leader=-1, last=0)
    assert settled(before, candidates(ABSENT, LIVE, LIVE), unclean_allowed=True) is before


def test_a_partition_that_nobody_has_led_waits_for_its_preferred_leader():
    before = state(leader=-1, epoch=-1)
    assert settled(before, candidates(ABSENT, LIVE, LIVE), wait_for_preferred=True) is before
    assert settled(before, candidates(ABSENT, LIVE, LIVE)).leader == 1
    assert settled(before, candidates(DEAD, LIVE, LIVE), wait_for_preferred=True).leader == 1
    after = settled(before, candidates(LIVE, LIVE, ABSENT), wait_for_preferred=True)
    assert (after.leader, after.leader_epoch, after.isr) == (0, 0, (0, 1, 2))


def test_the_preferred_leader_takes_over_only_when_it_is_live_and_in_sync():
    before = state(isr=(1, 0), leader=1)
    assert elections.preferred(before, candidates(LIVE, LIVE, LIVE), min_isr=1).leader == 0
    assert elections.preferred(before, candidates(ABSENT, LIVE, LIVE), min_isr=1) is before
    outside = state(isr=(1,), leader=1)
    assert elections.preferred(outside, candidates(LIVE, LIVE, LIVE), min_isr=1) is outside


# ------------------------------------------------------------------ what a log's condition costs


@pytest.mark.parametrize("condition", [Condition.CLEAN, Condition.WHOLE])
def test_membership_survives_a_restart_that_is_not_suspect(condition):
    before = state()
    assert elections.opened(before, 1, 555, status(condition)) is before


@pytest.mark.parametrize("condition", [Condition.SUSPECT, Condition.MISSING])
def test_a_suspect_replica_leaves_isr_and_elr(condition):
    after = elections.opened(state(), 1, 555, status(condition))
    assert after.isr == (0, 2) and after.elr == () and after.partition_epoch == 11
    after = elections.opened(state(isr=(0,), elr=(1, 2)), 1, 555, status(condition))
    assert after.isr == (0,) and after.elr == (2,)


def test_only_a_suspect_log_empties_both_sets():
    after = elections.opened(state(isr=(0,), leader=-1, last=0), 0, 555, status(Condition.SUSPECT))
    assert after.isr == () and after.elr == ()


def test_a_log_is_judged_once_per_process():
    before = state(admitted=555)
    assert elections.opened(before, 1, 555, status(Condition.SUSPECT)) is before


def test_a_replica_that_no_process_has_opened_yet_may_be_missing_but_not_suspect():
    before = state(admitted=0)
    after = elections.opened(before, 1, 555, status(Condition.MISSING))
    assert after.isr == before.isr and after.replicas[1].admitted == 555
    assert after.partition_epoch == before.partition_epoch
    assert elections.opened(before, 1, 555, status(Condition.SUSPECT)).isr == (0, 2)
    assert elections.opened(after, 1, 556, status(Condition.MISSING)).isr == (0, 2), "the second time it is a loss"


def test_no_log_of_a_partition_that_nobody_has_led_can_be_suspect():
    before = state(leader=-1, epoch=-1)
    assert elections.opened(before, 1, 555, status(Condition.SUSPECT)).isr == (0, 1, 2)


def test_the_minimum_isr_is_bounded_by_the_assigned_replicas():
    assert elections.effective_min_isr(state((0, 1)), 3) == 2
    assert elections.effective_min_isr(state(), 2) == 2
