from __future__ import annotations

from raylog.metadata.requests import AllocateProducerIds, InitProducerId


def test_producer_ids_are_never_given_twice_and_blocks_are_of_a_thousand(world):
    first = [world.ask(InitProducerId()) for _ in range(1_001)]
    assert [reply.producer_id for reply in first] == list(range(1_001))
    assert {(reply.error, reply.producer_epoch) for reply in first} == {(0, 0)}
    assert world.image.next_producer_id == 2_000


def test_a_block_is_committed_before_its_first_id_is_given(world):
    world.persists = False
    token = world.ask(InitProducerId(), wait=False)
    assert token not in world.replies
    world.persists = True
    world.persist()
    assert world.image.next_producer_id == 1_000 and world.replies[token].producer_id == 0


def test_a_new_active_controller_starts_a_new_block(world):
    assert world.ask(InitProducerId()).producer_id == 0
    world.restart_controller()
    assert world.ask(InitProducerId()).producer_id == 1_000


def test_a_block_for_somebody_else_is_nobodys_any_more(world):
    assert world.ask(InitProducerId()).producer_id == 0
    blocks = [world.ask(AllocateProducerIds()) for _ in range(2)]
    assert [(each.error, each.first, each.count) for each in blocks] == [(0, 1_000, 1_000), (0, 2_000, 1_000)]
    assert [world.ask(InitProducerId()).producer_id for _ in range(1_000)][-2:] == [999, 3_000]
    world.restart_controller()
    assert world.ask(AllocateProducerIds()).first == 4_000
