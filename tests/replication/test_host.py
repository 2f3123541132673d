"""The table of replicas: roles and how they answer, fencing of controllers, opening and removal, disks that fail."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from raylog.control.high_watermarks import by_partition
from raylog.control.session import HighWatermarks, Removal, ReplicaFailed
from raylog.replication.context import HostConfig
from raylog.replication.events import (
    Assigned,
    CloseLog,
    ControlSessionChanged,
    DeleteRecordsPartition,
    DeleteRecordsReceived,
    DeleteRecordsReply,
    LogFailed,
    LogOpened,
    OpenLog,
    OwnAppend,
    ProducePartition,
    Removed,
    RemoveFolder,
    Reply,
    SendFetch,
    Tell,
    Ticked,
)
from raylog.replication.replica import Role
from raylog.simulator.replica_hosts import P0, WALL_MS, Hosts, batch, contents
from raylog.types import Condition, TopicIdPartition


def test_tv_25_a_frame_of_a_deposed_controller_is_refused() -> None:
    hosts = Hosts((1,))
    host = hosts.host(1)
    hosts.controller_epoch = 2
    current = hosts.assign(1, (1,))
    stale = replace(current, controller_epoch=1, leader=-1, leader_epoch=9, partition_epoch=9)
    assert hosts.handle(1, Assigned(stale)) == []
    assert hosts.handle(1, Removed(Removal(1, *P0))) == []
    assert (host.controller_epoch, host.refused_frames) == (2, 2)
    assert hosts.replica(1).role is Role.LEADER
    newer = replace(current, controller_epoch=3, leader=-1, leader_epoch=1, partition_epoch=1)
    hosts.handle(1, Assigned(newer))
    assert host.controller_epoch == 3
    assert hosts.replica(1).role is Role.FOLLOWER
    assert not host.admit_controller(2) and host.admit_controller(3)


def test_assignments_that_are_older_than_the_known_one_are_dropped() -> None:
    hosts = Hosts((1, 2))
    old = hosts.assign(1, (1, 2))
    hosts.assign(2, (2,), epoch=1)
    hosts.handle(1, Assigned(old))
    assert hosts.replica(1).role is Role.FOLLOWER
    assert hosts.replica(1).assignment.leader_epoch == 1


def test_only_the_named_incarnation_leads() -> None:
    hosts = Hosts((1, 2))
    hosts.kill(1)
    hosts.start(1)
    assignment = hosts.assign(1, (1,), to=(), run=False)
    other = replace(assignment.replicas[0], incarnation=assignment.replicas[0].incarnation - 1)
    hosts.handle(1, Assigned(replace(assignment, replicas=(other, assignment.replicas[1]))))
    assert hosts.replica(1).role is Role.FOLLOWER
    result = hosts.produced(hosts.produce(1, b"x", timeout_ms=0))
    assert result is not None and result.error == ErrorCode.not_leader_or_follower


def test_a_follower_names_the_leader_and_an_unknown_partition_is_unknown() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2))
    result = hosts.produced(hosts.produce(2, b"x"))
    assert result is not None and result.error == ErrorCode.not_leader_or_follower
    leader = hosts.assigned(1)
    assert result.hint is not None
    assert (result.hint.leader_node, result.hint.leader_epoch, result.hint.endpoint) == (
        leader.node_id,
        0,
        leader.endpoint,
    )
    elsewhere = TopicIdPartition(P0.topic_id, 5)
    unknown = hosts.produced(hosts.produce(1, b"x", id=elsewhere, timeout_ms=0))
    assert unknown is not None and unknown.error == ErrorCode.unknown_topic_or_partition


def test_epochs_of_requests_are_judged() -> None:
    hosts = Hosts((1,))
    hosts.assign(1, (1,), epoch=3)
    for epoch, error in ((2, ErrorCode.fenced_leader_epoch), (3, ErrorCode.none), (4, ErrorCode.unknown_leader_epoch)):
        result = hosts.fetched(hosts.fetch(1, 0, epoch=epoch))
        assert result is not None and result.error == error
        assert hosts.list_offset(1, -1, epoch=epoch).error == error
    fenced = hosts.fetched(hosts.fetch(1, 0, epoch=2))
    assert fenced is not None and fenced.hint is not None and fenced.hint.leader_epoch == 3


def test_a_consumer_may_read_from_a_follower_up_to_what_it_knows() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2))
    hosts.produce(1, b"m0")
    hosts.inform()
    assert hosts.read(2) == [b"m0"]
    hosts.produce(1, b"m1", run=False)
    assert hosts.step()  # m1 arrives, its high watermark not yet
    assert hosts.log(2).log_end_offset == 2
    assert hosts.read(2) == [b"m0"]
    beyond = hosts.fetched(hosts.fetch(2, 3))
    assert beyond is not None and beyond.error == ErrorCode.offset_not_available
    assert hosts.fetched(hosts.fetch(2, 0, replica=(9, 9))) is not None
    follower = hosts.fetched(hosts.fetch(2, 0, replica=(9, 9)))
    assert follower is not None and follower.error == ErrorCode.not_leader_or_follower
    assert hosts.list_offset(2, -1).error == ErrorCode.not_leader_or_follower


def test_a_follower_out_of_sync_sends_consumers_to_the_leader() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1,))
    hosts.produce(1, b"m0")
    refused = hosts.fetched(hosts.fetch(2, 0, epoch=0))
    assert refused is not None and refused.error == ErrorCode.not_leader_or_follower
    assert refused.hint is not None and not refused.records
    hosts.inform()
    assert hosts.read(2) == [b"m0"], "who names no epoch wants that replica, as it is"
    hosts.assign(1, (1, 2))
    found = hosts.fetched(hosts.fetch(2, 0, epoch=0))
    assert found is not None and not found.error and found.records


def test_offsets_by_name_and_by_time() -> None:
    hosts = Hosts((1,))
    hosts.assign(1, (1,))
    for value in (b"0", b"1", b"2"):
        hosts.produce(1, value)
        hosts.advance(10)
    first = hosts.log(1).offset_for_timestamp(0)
    assert first is not None
    start_ms = first[0]
    assert hosts.list_offset(1, -1).offset == 3
    assert hosts.list_offset(1, -2).offset == 0
    assert (hosts.list_offset(1, -3).offset, hosts.list_offset(1, -3).timestamp) == (2, start_ms + 20)
    assert hosts.list_offset(1, start_ms + 1).offset == 1
    assert hosts.list_offset(1, start_ms + 21).offset == -1
    hosts.log(1).advance_log_start(2)
    assert hosts.list_offset(1, -2).offset == 2


def test_a_replica_that_is_opening_answers_nobody_and_takes_the_latest_assignment() -> None:
    hosts = Hosts((1, 2))
    assignment = hosts.assign(1, (1,), to=())
    host = hosts.host(1)
    effects = host.handle(Assigned(assignment), 0, 0)
    assert effects == [OpenLog(assignment)]
    assert host.status() == ()
    result = hosts.produced(hosts.produce(1, b"x", timeout_ms=0))
    assert result is not None and result.error == ErrorCode.not_leader_or_follower
    newer = hosts.assign(2, (2,), epoch=1, to=())
    assert host.handle(Assigned(newer), 0, 0) == []
    hosts._open(hosts.processes[1], assignment)
    assert hosts.replica(1).role is Role.FOLLOWER
    status = hosts.opened(1)[0].status
    assert (status.id, status.condition, status.assigned_leader_epoch) == (P0, Condition.MISSING, 1)
    assert host.status() == (hosts.replica(1).status(),)


def test_a_log_that_cannot_be_opened_is_reported() -> None:
    hosts = Hosts((1,))
    assignment = hosts.assign(1, (1,), to=())
    host = hosts.host(1)
    host.handle(Assigned(assignment), 0, 0)
    effects = host.handle(LogOpened(P0, None, "damaged"), 0, 0)
    assert effects == [Tell(ReplicaFailed(*P0, "damaged"))]
    assert hosts.replica(1).role is Role.OFFLINE
    result = hosts.produced(hosts.produce(1, b"x"))
    assert result is not None and result.error == ErrorCode.kafka_storage_error
    again = hosts.assign(1, (1,))
    assert again.partition_epoch == 1
    assert hosts.told[1][-1] == ReplicaFailed(*P0, "damaged"), "a controller that asks again hears it again"


def test_a_log_whose_folder_another_process_holds_is_tried_again_until_it_is_free() -> None:
    hosts = Hosts((1,))
    assignment = hosts.assign(1, (1,), to=())
    host = hosts.host(1)
    host.handle(Assigned(assignment), 0, 0)
    for now_ms in (0, 1_000, 60_000):
        assert host.handle(LogOpened(P0, None, "locked", locked=True), now_ms, 0) == []
        assert hosts.replica(1).role is Role.OPENING
        due_ms = host.next_deadline_ms()
        assert due_ms is not None and due_ms <= now_ms + 100
        assert host.handle(Ticked(), now_ms + 100, 0) == [OpenLog(assignment)]
    host.handle(LogOpened(P0, None, "locked", locked=True), 61_000, 0)
    removal = Removal(1, *P0)
    assert host.handle(Removed(removal), 61_001, 0) == [RemoveFolder(removal)], "its folder has to be deleted yet"
    assert RemoveFolder(removal) not in host.handle(Ticked(), 61_100, 0), "once is enough"


def test_only_this_process_itself_writes_to_an_internal_topic_and_is_answered_at_once() -> None:
    hosts = Hosts((1, 2))
    current = hosts.assign(1, (1, 2))
    hosts.handle(1, Assigned(replace(current, topic="__consumer_offsets", partition_epoch=9)))
    for acks in (1, -1):
        refused = hosts.produced(hosts.produce(1, b"x", acks=acks))
        assert refused is not None and refused.error == ErrorCode.invalid_topic_exception
    hosts.cut = {2}
    records = ProducePartition(P0, batch(b"x", timestamp_ms=WALL_MS))
    hosts.handle(1, OwnAppend(777, records, current.leader_epoch))
    own = hosts.produced(777)
    assert own is not None and (own.error, own.base_offset) == (0, 0)
    assert hosts.replica(1).open_log().high_watermark == 0, "that it is replicated comes later"
    hosts.handle(2, OwnAppend(778, records, current.leader_epoch))
    refused = hosts.produced(778)
    assert refused is not None and refused.error == ErrorCode.not_leader_or_follower, "a follower writes nothing"
    hosts.handle(1, OwnAppend(779, records, current.leader_epoch - 1))
    refused = hosts.produced(779)
    assert refused is not None and refused.error == ErrorCode.not_leader_or_follower, (
        "nor one that led in another epoch"
    )


def test_a_removed_replica_is_closed_and_deleted() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2))
    hosts.cut = {2}
    produced = hosts.produce(1, b"x")
    fetched = hosts.fetch(1, 0, max_wait_ms=500)
    effects = hosts.handle(1, Removed(Removal(1, *P0)))
    assert [type(effect) for effect in effects] == [Reply, CloseLog, Reply]
    assert hosts.closed[-1].delete
    assert not hosts.disks[1].files().exists(f"/data/topic{P0.topic_id.int}-0")
    result = hosts.produced(produced)
    assert result is not None and result.error == ErrorCode.not_leader_or_follower
    gone = hosts.fetched(fetched)
    assert gone is not None and gone.error == ErrorCode.unknown_topic_or_partition
    assert hosts.host(1).next_deadline_ms() is not None  # the checkpoint's timer only
    hosts.handle(2, Removed(Removal(1, *P0)))
    hosts.cut = set()
    hosts.run()
    assert hosts.wires == []


def test_a_replica_that_is_removed_while_it_opens_is_deleted_when_it_is_open() -> None:
    hosts = Hosts((1,))
    assignment = hosts.assign(1, (1,), to=())
    host = hosts.host(1)
    host.handle(Assigned(assignment), 0, 0)
    assert hosts.handle(1, Removed(Removal(1, *P0))) == []
    hosts._open(hosts.processes[1], assignment)
    assert hosts.closed[-1].delete and P0 not in host.replicas
    assert hosts.opened(1) == []


def test_an_io_error_takes_the_replica_offline_and_nothing_is_acked() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2))
    hosts.cut = {2}
    waiting = hosts.produce(1, b"m0")
    parked = hosts.fetch(1, 0, max_wait_ms=500)

    def fault(what: str, path: str) -> None:
        if what == "write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    hosts.disks[1].fault = fault
    failed = hosts.produced(hosts.produce(1, b"m1"))
    hosts.disks[1].fault = None
    assert failed is not None and failed.error == ErrorCode.kafka_storage_error
    for result in (hosts.produced(waiting), hosts.fetched(parked)):
        assert result is not None and result.error == ErrorCode.kafka_storage_error
    frame = hosts.told[1][-1]
    assert isinstance(frame, ReplicaFailed) and "No space left" in frame.reason
    assert (hosts.closed[-1].delete, hosts.closed[-1].clean) == (False, False)
    assert hosts.host(1).status() == ()


def test_a_followers_io_error_ends_its_fetching() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2))

    def fault(what: str, path: str) -> None:
        if what == "write":
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    hosts.disks[2].fault = fault
    hosts.produce(1, b"m0")
    assert hosts.replica(2).role is Role.OFFLINE
    hosts.advance(5_000)
    assert not any(message.fetch.replica_id == 2 for message in hosts.wires)


def test_a_failed_housekeeping_takes_the_replica_offline() -> None:
    hosts = Hosts((1,))
    hosts.assign(1, (1,))
    hosts.handle(1, LogFailed(P0, "retention: Input/output error"))
    assert hosts.replica(1).role is Role.OFFLINE
    assert hosts.told[1][-1] == ReplicaFailed(*P0, "retention: Input/output error")


def test_an_illegal_transition_raises_with_its_history() -> None:
    hosts = Hosts((1,))
    hosts.assign(1, (1,))
    replica = hosts.replica(1)
    replica.fail("x")
    with pytest.raises(AssertionError, match=r"offline → leader.*opening → leader in epoch 0"):
        replica._enter(Role.LEADER)


def test_housekeeping_comes_around_and_checkpoints_only_what_moved() -> None:
    hosts = Hosts((1,), HostConfig(log_retention_check_interval_ms=60_000))
    hosts.assign(1, (1,))
    hosts.advance(5_000)
    assert [order.retention for order in hosts.housekept] == [False]
    hosts.advance(20_000)
    assert len(hosts.housekept) == 1
    hosts.produce(1, b"x")
    hosts.advance(10_000)
    assert [order.retention for order in hosts.housekept] == [False, False]
    hosts.advance(25_000)
    assert [order.retention for order in hosts.housekept] == [False, False, True]


def test_checkpoints_of_many_replicas_are_spread_over_the_interval() -> None:
    hosts = Hosts((1,))
    partitions = [TopicIdPartition(P0.topic_id, number) for number in range(50)]
    for id in partitions:
        hosts.assign(1, (1,), id=id)
    hosts.advance(5_000)
    hosts.housekept.clear()
    for _ in range(3):
        for id in partitions:
            hosts.produce(1, b"x", id=id)
        longest = 0
        for _ in range(250):
            before = len(hosts.housekept)
            hosts.advance(20)
            longest = max(longest, len(hosts.housekept) - before)
        assert sorted(order.id for order in hosts.housekept) == partitions  # each once per interval
        assert longest == 1  # they do not come together
        hosts.housekept.clear()


def test_replicas_of_which_nothing_moves_wake_nobody_for_their_checkpoints() -> None:
    hosts = Hosts((1,))
    partitions = [TopicIdPartition(P0.topic_id, number) for number in range(20)]
    for id in partitions:
        hosts.assign(1, (1,), id=id)
    hosts.advance(20_000)

    def ticks_within(ms: int) -> int:
        end_ms, count = hosts.now_ms + ms, 0
        while (due_ms := hosts.host(1).next_deadline_ms()) is not None and due_ms <= end_ms:
            hosts.advance(due_ms - hosts.now_ms)
            count += 1
        hosts.advance(end_ms - hosts.now_ms)
        return count

    assert ticks_within(60_000) <= 10, "the timing wheel's own, of retention and scrubbing"
    hosts.housekept.clear()
    hosts.produce(1, b"x", id=partitions[15])
    ticks_within(5_000)
    assert [order.id for order in hosts.housekept] == [partitions[15]]
    ticks_within(10_000)
    assert ticks_within(60_000) <= 10


def reports(hosts: Hosts, broker: int) -> list[list[tuple[TopicIdPartition, tuple[int, int]]]]:
    """What each report of that broker says."""
    frames = [frame for frame in hosts.told[broker] if isinstance(frame, HighWatermarks)]
    return [[(id, tuple(mark)) for id, mark in by_partition(frame.topics)] for frame in frames]


def test_a_leader_reports_once_per_round_which_high_watermarks_have_moved() -> None:
    hosts = Hosts((1, 2))
    partitions = [TopicIdPartition(P0.topic_id, number) for number in range(50)]
    for id in partitions:
        hosts.assign(1, (1, 2), id=id)
    hosts.advance(10_000)
    assert reports(hosts, 1) == [], "no high watermark has moved"
    for id in partitions[:2]:
        hosts.produce(1, b"x", id=id)
    hosts.advance(10_000)
    assert reports(hosts, 1) == [[(partitions[0], (0, 1)), (partitions[1], (0, 1))]]
    hosts.produce(1, b"y", id=partitions[1])
    hosts.advance(5_000)
    assert reports(hosts, 1)[1:] == [[(partitions[1], (0, 2))]]
    assert reports(hosts, 2) == [], "a follower reports nothing"


def test_a_new_session_and_a_new_epoch_are_told_the_high_watermark_again() -> None:
    hosts = Hosts((1,))
    hosts.assign(1, (1,))
    hosts.produce(1, b"x")
    hosts.advance(5_000)
    hosts.handle(1, ControlSessionChanged(False))
    hosts.advance(10_000)
    assert reports(hosts, 1) == [[(P0, (0, 1))]]
    hosts.handle(1, ControlSessionChanged(True))
    hosts.advance(5_000)
    assert reports(hosts, 1)[1:] == [[(P0, (0, 1))]]
    hosts.assign(1, (1,), epoch=1)
    hosts.advance(10_000)
    assert reports(hosts, 1)[2:] == [[(P0, (1, 1))]]


def test_a_log_that_is_opened_while_nothing_else_moves_is_reported() -> None:
    hosts = Hosts((1,))
    quiet, later = (TopicIdPartition(P0.topic_id, number) for number in range(2))
    hosts.assign(1, (1,), id=later)
    hosts.produce(1, b"x", id=later)
    for effect in hosts.host(1).close():
        assert isinstance(effect, CloseLog)
        effect.log.close(clean=True)
    hosts.processes[1].alive = False
    hosts.start(1)
    hosts.assign(1, (1,), id=quiet)
    hosts.advance(20_000)
    hosts.assign(1, (1,), id=later, epoch=1)
    hosts.advance(10_000)
    assert reports(hosts, 1) == [[(later, (1, 1))]]


def test_a_changed_configuration_reaches_the_log() -> None:
    hosts = Hosts((1,))
    hosts.assign(1, (1,), config={})
    hosts.assign(1, (1,), config={"max.message.bytes": "100"})
    result = hosts.produced(hosts.produce(1, b"x" * 200))
    assert result is not None and result.error == ErrorCode.message_too_large


def test_bad_records_are_refused_with_the_logs_own_error() -> None:
    hosts = Hosts((1,))
    hosts.assign(1, (1,))
    hosts.produce(1, b"x", producer=(8, 0, 0))
    skipped = hosts.produced(hosts.produce(1, b"x", producer=(8, 0, 9)))
    assert skipped is not None and skipped.error == ErrorCode.out_of_order_sequence_number and skipped.message


def test_a_clean_stop_closes_every_log_cleanly() -> None:
    hosts = Hosts((1,))
    hosts.assign(1, (1,))
    hosts.produce(1, b"x")
    for effect in hosts.host(1).close():
        assert isinstance(effect, CloseLog) and effect.clean
        effect.log.close(clean=True)
    hosts.processes[1].alive = False
    hosts.start(1)
    hosts.assign(1, (1,), epoch=1)
    assert hosts.opened(1)[0].status.condition is Condition.CLEAN
    assert hosts.read(1) == [b"x"]


def delete_records(hosts: Hosts, broker: int, offset: int, *, timeout_ms: int = 1_000) -> int:
    token = hosts.token()
    hosts.handle(broker, DeleteRecordsReceived(token, timeout_ms, (DeleteRecordsPartition(P0, offset),)))
    return token


def deleted(hosts: Hosts, token: int) -> tuple[int, int] | None:
    reply = hosts.replies.get(token)
    assert reply is None or isinstance(reply, DeleteRecordsReply)
    return (reply.partitions[0].error, reply.partitions[0].low_watermark) if reply is not None else None


def test_deleted_records_are_gone_on_every_live_replica_before_the_reply() -> None:
    hosts = Hosts((1, 2, 3))
    hosts.assign(1, (1, 2, 3))
    for number in range(4):
        hosts.produce(1, b"%d" % number)
    hosts.cut = {3}
    token = delete_records(hosts, 1, 3)
    hosts.run()
    assert (hosts.log(1).log_start_offset, hosts.log(2).log_start_offset, hosts.log(3).log_start_offset) == (3, 3, 0)
    assert deleted(hosts, token) is None
    hosts.cut = set()
    hosts.run()
    assert deleted(hosts, token) == (0, 3)
    assert hosts.log(3).log_start_offset == 3
    assert [value for _, _, value in contents(hosts.log(3))] == [b"3"]
    everything = delete_records(hosts, 1, -1)
    hosts.run()
    assert deleted(hosts, everything) == (0, 4)


def test_deletion_times_out_while_a_live_replica_is_silent_and_does_not_wait_for_a_dead_one() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2))
    hosts.produce(1, b"x")
    hosts.cut = {2}
    token = delete_records(hosts, 1, 1)
    hosts.advance(1_000)
    assert deleted(hosts, token) == (ErrorCode.request_timed_out, -1)
    token = delete_records(hosts, 1, 1)
    hosts.kill(2)
    hosts.assign(1, (1,))
    assert deleted(hosts, token) == (0, 1)


def test_deletion_waits_for_a_dead_replica_that_may_lead_again() -> None:
    """Kafka acknowledges it; but an eligible leader (KIP-966) takes over with all the records that it has."""
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2), min_isr=2)
    hosts.produce(1, b"x")
    hosts.run()
    hosts.kill(2)
    hosts.assign(1, (1,), min_isr=2, elr=(2,))
    token = delete_records(hosts, 1, 1)
    hosts.run()
    assert deleted(hosts, token) is None
    hosts.start(2)
    hosts.assign(1, (1, 2), min_isr=2)
    hosts.run()
    assert deleted(hosts, token) == (0, 1) and hosts.log(2).log_start_offset == 1


def test_deletion_beyond_the_high_watermark_or_of_a_compacted_topic_is_refused() -> None:
    hosts = Hosts((1,))
    hosts.assign(1, (1,), config={})
    hosts.produce(1, b"x")
    assert deleted(hosts, delete_records(hosts, 1, 2)) == (ErrorCode.offset_out_of_range, -1)
    hosts.assign(1, (1,), config={"cleanup.policy": "compact"})
    assert deleted(hosts, delete_records(hosts, 1, 1)) == (ErrorCode.policy_violation, -1)


def test_a_compacted_log_that_was_cut_below_what_was_compacted_is_copied_anew() -> None:
    """Old records are missing in it whose successors the cut took, and an unclean election may have taken those from the leader."""
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2))
    for number in range(4):
        hosts.produce(1, b"%d" % number)
    hosts.run()
    log = hosts.log(2)
    log.compaction.compacted_end = log.log_end_offset + 1
    hosts.assign(1, (1,), epoch=1)
    hosts.produce(1, b"4")
    hosts.run()
    assert log.compaction.compacted_end == 0
    assert contents(log) == contents(hosts.log(1)) and len(contents(log)) == 5


def test_sent_fetches_name_this_process() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2), to=(2,), run=False)
    sent = hosts.wires[0].fetch
    assert isinstance(sent, SendFetch)
    assert (sent.replica_id, sent.replica_incarnation) == (2, hosts.processes[2].incarnation)
    assert sent.leader_incarnation == hosts.processes[1].incarnation
