"""Mutations that are left to tests elsewhere: the random simulator did not find them in 60 to 200 seeds, or is not expected to.

Each names the test that finds it, and what the simulator would have to meet.
"""

from __future__ import annotations

from typing import NamedTuple


class UnitTest(NamedTuple):
    """``test`` is what pytest takes, ``why`` a half sentence about the simulator."""

    test: str
    why: str


_LATE_FETCH = "it takes a fetch of two epochs ago that arrives late, at a log that has been cut meanwhile"
_TWO_CRASHES = "it takes a second crash between a recovery and the first fetch behind it"
_POWER_IN_BETWEEN = (
    "it takes a loss of power between a cut and the next flush, and another leader before the log has grown again"
)
_LOOKED_AT = "each five seconds a fetch looks at all partitions of its session, and finds what was missed"
_THREE_CONTROLLERS = "it takes three elections of controllers in a row, each with another majority"

UNIT_TESTS: dict[str, UnitTest] = {
    "accept_an_old_incarnation_into_the_isr": UnitTest(
        "tests/replication/test_high_watermark.py::test_a_fetch_of_an_old_incarnation_does_not_count",
        "it takes a fetch of a new process and a change of the ISR before its leader hears of it; 200 seeds did not",
    ),
    "send_a_batch_in_doubt_again_under_a_new_epoch": UnitTest(
        "tests/client/test_partition_queue.py::test_the_halves_of_a_batch_in_doubt_are_in_doubt",
        "it takes a producer that starts over while a batch in doubt was stored; one seed of 200 did",
    ),
    "forget_news_that_was_not_sent": UnitTest(
        "tests/replication/test_follower_sessions.py::test_what_does_not_fit_into_an_answer_is_sent_in_the_next_ones",
        _LOOKED_AT,
    ),
    "hear_news_while_a_fetch_waits_only": UnitTest(
        "tests/replication/test_follower_sessions.py::test_an_answer_with_many_partitions_is_followed_by_a_fetch_that_names_them",
        _LOOKED_AT,
    ),
    "wake_no_fetch_of_a_session": UnitTest(
        "tests/replication/test_follower_sessions.py::test_a_record_is_fetched_by_name_of_its_own_partition_only",
        "a fetch that sleeps through news is answered when its wait is over",
    ),
    "take_any_fetch_for_the_next": UnitTest(
        "tests/replication/test_follower_sessions.py::test_only_the_next_fetch_belongs_to_a_session_and_only_when_the_one_before_is_answered",
        "followers of ours send no other one",
    ),
    "let_two_sessions_of_a_follower_live": UnitTest(
        "tests/replication/test_follower_sessions.py::test_new_partitions_and_those_that_go_renew_the_session",
        "it costs work and breaks nothing: what is sent in the older one is dropped",
    ),
    "count_a_quiet_follower_as_lagging": UnitTest(
        "tests/replication/test_follower_sessions.py::test_a_follower_was_caught_up_at_the_last_fetch_of_its_session",
        "a follower that is asked out too soon comes back, and breaks nothing",
    ),
    "look_at_all_never": UnitTest(
        "tests/replication/test_follower_sessions.py::test_a_log_start_that_nobody_announces_is_found_by_the_look_at_all",
        "a follower that keeps older records than its leader breaks nothing",
    ),
    "let_a_blank_voter_vote": UnitTest(
        "tests/metadata/test_quorum_random.py::test_voters_whose_disks_rot_forget_nothing",
        "it takes a replaced disk whose vote decides an election; the random runs of the quorum alone meet it",
    ),
    "keep_a_machine_over_a_cut": UnitTest(
        "tests/groups/test_cut_logs.py::test_a_leader_whose_log_is_another_one_reads_it_from_its_start",
        "it takes a coordinator whose log an unclean election cuts while groups change; hosts made that rare",
    ),
    "forget_isr_questions_with_the_session": UnitTest(
        "tests/replication/test_isr.py::test_a_lost_session_leaves_the_question_open_and_the_next_one_asks_again",
        "it takes a session that is lost between a change of an ISR and its answer, and a death before the next change",
    ),
    "release_only_when_a_move_is_committed": UnitTest(
        "tests/metadata/test_moves.py::test_a_move_is_told_again_to_a_process_that_missed_it",
        "it takes a process that is cut off just when its replica is moved away, and comes back with the log open",
    ),
    "leave_the_fetch_epoch_unchecked": UnitTest(
        "tests/replication/test_failover.py::test_a_refused_fetch_is_no_reason_to_trust", _LATE_FETCH
    ),
    "keep_the_epoch_of_a_replica_that_comes_back": UnitTest(
        "tests/metadata/test_reassignments.py"
        "::test_a_replica_that_may_have_been_in_its_process_before_is_followed_in_a_new_epoch",
        _LATE_FETCH,
    ),
    "cut_to_where_the_leader_ends_an_epoch": UnitTest(
        "tests/replication/test_truncation.py::test_any_two_logs_end_identical_and_keep_what_they_share",
        "it takes a follower that ends an epoch before its leader does, and does not know the next one; 200 seeds did not",
    ),
    "serve_batches_of_an_unknown_format": UnitTest(
        "tests/log/test_reading.py"
        "::test_a_batch_whose_magic_byte_has_changed_ends_a_read_and_is_refused_where_it_is_the_first",
        "it takes a client that reads the batch before a scrub finds its magic byte changed; 400 seeds did not",
    ),
    "cut_to_the_high_watermark": UnitTest(
        "tests/replication/test_truncation.py::test_what_both_logs_have_stays_above_a_high_watermark_that_lags",
        "the follower has to lead before it has copied again what it cut",
    ),
    "take_the_answer_to_another_isr_question": UnitTest(
        "tests/replication/test_isr.py::test_a_stale_answer_is_ignored",
        "it takes an answer that is overtaken by the next question, and a death before that one is answered",
    ),
    "take_an_isr_answer_for_that_of_the_known_epoch": UnitTest(
        "tests/replication/test_isr.py::test_after_a_stale_partition_epoch_nothing_is_asked_until_the_assignment_comes",
        "the assignment that ends the question comes right before or behind the answer, on the same connection, but for a "
        "process that another one is about to replace",
    ),
    "trust_a_suspect_log_at_its_first_fetch": UnitTest(
        "tests/replication/test_failover.py::test_a_suspect_log_of_older_records_is_trusted_only_at_the_leaders_end",
        _TWO_CRASHES,
    ),
    "drop_the_suspicion_of_a_log": UnitTest(
        "tests/log/test_recovery.py::test_suspicion_outlives_the_process_until_somebody_trusts_the_log", _TWO_CRASHES
    ),
    "keep_the_high_watermark_over_a_power_loss": UnitTest(
        "tests/log/test_power_loss.py::test_a_suspect_log_forgets_its_high_watermark", _POWER_IN_BETWEEN
    ),
    "flush_over_a_truncation": UnitTest(
        "tests/log/test_reading.py::test_a_truncation_during_a_flush_takes_back_its_promise", _POWER_IN_BETWEEN
    ),
    "compact_without_flushing": UnitTest(
        "tests/log/test_cleaning.py::test_a_loss_of_power_after_any_step_takes_no_key",
        "it takes a loss of power right behind a cleaning, before the next flush, and all copies of the key with it",
    ),
    "cut_without_syncing_the_directory": UnitTest(
        "tests/log/test_power_loss.py::test_a_segment_that_was_cut_off_does_not_come_back_behind_newer_records",
        _POWER_IN_BETWEEN,
    ),
    "roll_before_a_cut_is_flushed": UnitTest(
        "tests/log/test_power_loss.py::test_old_records_never_come_back_in_front_of_newer_segments", _POWER_IN_BETWEEN
    ),
    "keep_snapshots_above_a_truncation": UnitTest(
        "tests/log/test_power_loss.py"
        "::test_the_snapshot_of_records_that_were_cut_off_is_not_believed_when_it_comes_back",
        _POWER_IN_BETWEEN,
    ),
    "keep_the_elr_on_a_changed_minimum": UnitTest(
        "tests/metadata/test_elections.py::test_a_minimum_that_the_isr_reaches_empties_the_elr_and_raises_the_partition_epoch",
        "the minimum has to rise while an ISR is below it, and then everybody in sync has to die before the next change",
    ),
    "keep_the_isr_beside_an_elected_elr_member": UnitTest(
        "tests/metadata/test_elections.py"
        "::test_an_eligible_leader_becomes_the_whole_isr_and_the_former_isr_joins_the_elr",
        "the member that is in sync in name alone is dead then, and has caught up before it may be elected",
    ),
    "let_the_dead_leave_an_isr_that_nobody_leads": UnitTest(
        "tests/metadata/test_elections.py::test_a_death_never_empties_the_isr",
        "an election with both sets empty counts as unclean, which forgives",
    ),
    "ignore_the_record_of_high_watermarks": UnitTest(
        "tests/metadata/test_unclean_stop.py"
        "::test_a_log_below_the_recorded_high_watermark_does_not_lead_after_the_wait_either",
        "an old copy has to come back alone, of the same boot, to a replica that is still in sync",
    ),
    "vote_before_the_vote_is_durable": UnitTest(
        "tests/metadata/test_quorum_scenarios.py::test_scenario", _THREE_CONTROLLERS
    ),
    "commit_entries_of_older_terms_by_counting": UnitTest(
        "tests/metadata/test_quorum_scenarios.py::test_scenario", _THREE_CONTROLLERS
    ),
    "vote_twice_in_a_term": UnitTest("tests/metadata/test_quorum_random.py::test_many_seeds_agree", _THREE_CONTROLLERS),
    "end_a_recovery_when_the_process_ends": UnitTest(
        "tests/metadata/test_quorum_recovery.py::test_a_recovering_voter_stays_one_over_restarts_and_losses_of_power",
        "the voter has to end a second time while it recovers, and then be asked by one that lacks what was committed",
    ),
    "take_a_metadata_log_that_was_cut_at_rest": UnitTest(
        "tests/metadata/test_damaged_metadata_logs.py::test_a_log_that_was_cut_at_rest_is_refused_wherever_it_was_cut",
        "what is cut has to be committed by that voter and one other, and the third has to be elected before it is copied again",
    ),
    "call_a_short_log_whole": UnitTest(
        "tests/log/test_recovery.py::test_appended_garbage_is_cut_and_makes_the_log_suspect",
        "only another program appends garbage; what a crash tears off is above every high watermark",
    ),
    "take_sealed_segments_for_whole": UnitTest(
        "tests/log/test_recovery.py::test_a_sealed_segment_that_was_cut_at_rest_ends_the_log_there_and_makes_it_suspect",
        "rot has to strike the end of a segment of a log that is elected in an unclean election before it was read through",
    ),
    "retain_no_more_than_asked_above_the_high_watermark": UnitTest(
        "tests/log/test_retention.py::test_nothing_at_or_above_the_high_watermark_is_deleted",
        "a segment has to be older than retention while its records wait for their followers",
    ),
    "search_one_index_entry_too_far": UnitTest(
        "tests/log/test_reading.py::test_the_first_record_at_or_after_a_timestamp_is_found",
        "segments of the simulator have few entries, nearer to each other than the mistake",
    ),
    "expire_live_offsets": UnitTest(
        "tests/groups/test_group_offsets.py::test_an_empty_group_expires_a_week_after_it_became_empty",
        "a night in which one member reads a partition for longer than offsets are kept, commits nothing there, and asks for it",
    ),
    "keep_old_values_of_deleted_keys": UnitTest(
        "tests/log/test_cleaning.py::test_a_tombstone_hides_its_key_until_its_horizon_and_then_goes_itself",
        "the segment with the tombstone has to be cleaned a second time, behind its horizon",
    ),
    "clean_away_sequence_shells": UnitTest(
        "tests/log/test_cleaning.py"
        "::test_the_last_batch_of_a_producer_stays_as_an_empty_shell_so_that_a_repeat_is_recognised",
        "a repeat that comes after its batch was cleaned, at a process that was started in between",
    ),
    "remember_one_batch_of_a_producer": UnitTest(
        "tests/log/test_producers.py::test_repeats_are_known_after_a_restart",
        "a repeat of the batch before the last one, at a process that was started behind a roll in between",
    ),
    "open_the_folder_of_another_topic_id": UnitTest(
        "tests/log/test_recovery.py::test_a_folder_of_another_topic_is_set_aside",
        "a broker that is down while a topic is deleted and made again, and gets a replica of the new one",
    ),
    "keep_producers_over_a_truncation": UnitTest(
        "tests/log/test_producers.py::test_truncation_forgets_what_was_cut",
        "a follower that cut a producer's batches and leads before it has copied others of that producer",
    ),
    "take_a_flush_that_failed_for_done": UnitTest(
        "tests/log/test_failed_flush.py::test_no_later_flush_makes_a_failed_one_good",
        "a flush has to fail once, and the cache be dropped or the power go before the next flush of that file, at the "
        "one replica that has what nobody else has",
    ),
    "let_late_records_overtake_each_other": UnitTest(
        "tests/replication/test_awaited.py"
        "::test_records_for_a_partition_without_a_leader_are_appended_when_there_is_one",
        "a producer's first batch goes alone, so one at most waits for a leader",
    ),
    "wait_for_a_leader_without_end": UnitTest(
        "tests/replication/test_awaited.py::test_no_wait_is_longer_than_the_request_allows",
        "it takes a search or a deletion at a partition that stays without a leader for seconds; records have another deadline",
    ),
    "trust_whatever_a_moved_replica_finds": UnitTest(
        "tests/metadata/test_moves.py::test_the_new_process_is_judged_by_what_it_finds",
        "the folder would have to be gone when the new process, which lives, opens it",
    ),
    "forget_the_openings_of_a_former_holder": UnitTest(
        "tests/metadata/test_moves.py::test_an_opening_under_way_at_a_former_holder_is_ended_by_its_next_hello",
        "what it opens later it reports, and is told then; until then it waits for a lock that another one holds",
    ),
    "open_what_was_released_meanwhile": UnitTest(
        "tests/replication/test_releases.py::test_an_opening_under_way_is_closed_when_it_ends",
        "the same: the report of the opening is answered by another Release",
    ),
    "dismiss_an_actor_before_it_has_let_go": UnitTest(
        "tests/metadata/test_moves.py::test_an_actor_that_is_left_with_nothing_exits_when_it_has_let_go",
        "a process that is told to exit closes its logs, too",
    ),
    "keep_the_epoch_of_a_replica_that_moves": UnitTest(
        "tests/metadata/test_moves.py::test_a_followers_move_ends_the_epoch_so_that_its_late_fetches_count_no_more",
        _LATE_FETCH,
    ),
    "take_in_another_process_than_the_one_that_caught_up": UnitTest(
        "tests/metadata/test_disk_moves.py::test_only_the_process_that_was_seen_to_catch_up_takes_the_place",
        "the machine of a copy has to lose power between its last fetch and the answer to the leader, and the copy with it "
        "what was committed meanwhile",
    ),
    "keep_the_epoch_of_a_copy_in_a_process_that_runs": UnitTest(
        "tests/metadata/test_disk_moves.py::test_a_copy_in_a_process_that_runs_already_begins_another_epoch",
        _LATE_FETCH,
    ),
    "let_go_of_what_is_held_with_the_session": UnitTest(
        "tests/replication/test_arrivals.py::test_nothing_is_appended_while_it_is_not_known_what_was_decided",
        "the session has to be lost between the decision and its arrival, and somebody to write with acks=1 just then",
    ),
    "give_a_copy_up_that_is_out_of_sight": UnitTest(
        "tests/metadata/test_disk_moves.py::test_a_new_controller_goes_on_with_the_copy",
        "a replica that stays where it is breaks nothing",
    ),
    "never_give_a_lost_copy_up": UnitTest(
        "tests/metadata/test_disk_moves.py::test_a_copy_that_fails_is_given_up_and_the_replica_stays",
        "whose disk failed is restarted in the healing, and the copy goes on",
    ),
    "copy_between_disks_without_a_throttle": UnitTest(
        "tests/replication/test_disk_moves.py::test_a_copy_pays_for_what_it_copies_and_the_replica_does_not",
        "a copy that is made too fast is whole, too",
    ),
    "call_a_copy_the_replica": UnitTest(
        "tests/listener/test_disk_moves.py"
        "::test_the_throttle_of_a_plan_holds_its_moves_back_and_goes_when_they_are_complete",
        "nobody there asks which folders a process has",
    ),
    "move_the_next_replica_before_the_last_has_arrived": UnitTest(
        "tests/metadata/test_scaling.py::test_one_replica_moves_at_a_time",
        "several moves of one disk at once are slow, and break nothing",
    ),
    "move_a_replica_while_another_one_is_out_of_sync": UnitTest(
        "tests/metadata/test_scaling.py::test_a_replica_stays_while_another_one_of_its_partition_is_out_of_sync",
        "it costs acknowledgements some time, and breaks nothing",
    ),
    "move_for_no_gain": UnitTest(
        "tests/metadata/test_scaling.py::test_what_gains_too_little_is_not_moved",
        "what is moved for nothing is in a valid place, too",
    ),
    "forget_that_a_host_was_added": UnitTest(
        "tests/metadata/test_scaling.py::test_an_idle_host_that_was_added_gives_its_replicas_back_and_ends",
        "a host that stays breaks nothing",
    ),
    "send_no_second_heartbeat": UnitTest(
        "tests/control/test_control_session.py::test_heartbeats_follow_each_other_by_the_interval_of_the_welcome",
        "a process that is silent is dialed, answers, and counts as alive",
    ),
    "take_a_step_amid_the_effects_of_another": UnitTest(
        "tests/servers/test_driver.py::test_an_event_that_an_effect_causes_waits_for_the_effects_behind_it",
        "what causes another step is the last effect of its own, as long as the disk obeys",
    ),
    "take_the_events_that_wait_last_first": UnitTest(
        "tests/servers/test_driver.py::test_a_step_is_decided_when_its_turn_has_come",
        "hardly ever do two events wait whose order counts",
    ),
    "judge_a_deadline_at_once": UnitTest(
        "tests/servers/test_driver.py::test_a_deadline_is_judged_in_the_next_turn_of_the_loop",
        "who takes a living process for silent breaks nothing but the peace",
    ),
}
