"""A replica whose log could not be opened is told nothing, until it can be."""

from __future__ import annotations

from raylog.types import TopicIdPartition


def test_a_replica_that_is_opened_after_all_hears_what_it_has_missed(world):
    id = TopicIdPartition(world.create("t", (0, 1, 2)), 0)
    process = world.process(id, 0)
    process.fail(id, "Too many open files")
    world.run_later()
    assert world.state(id).leader == 1
    known = process.told[id]
    world.configure("t", "retention.ms", "1000")
    assert process.told[id] == known
    process.open(id)
    world.run_later()
    told = process.told[id]
    assert (told.leader, told.leader_epoch) == (1, world.state(id).leader_epoch)
    assert told.partition_epoch == world.state(id).partition_epoch and ("retention.ms", "1000") in told.config
