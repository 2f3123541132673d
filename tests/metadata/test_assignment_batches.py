"""Many Assignments in one frame."""

from __future__ import annotations

import uuid
from dataclasses import replace

from raylog.control.session import AssignedReplica, Assignment, Assignments
from raylog.control.session_frames import from_controller, to_frame
from raylog.metadata.events import Effect, SendControllerReply, SendFrame
from raylog.metadata.partitions.assignment_batches import TOGETHER_MAX, apart, gathered, together
from raylog.metadata.requests import ProducerIdAssigned
from raylog.types import Endpoint

REPLICAS = tuple(
    AssignedReplica(broker, broker << 16 | 2, uuid.UUID(int=broker), 7, Endpoint("127.0.0.1", 4000 + broker))
    for broker in range(3)
)
CONFIG = tuple((f"a.topic.config.{number}", "604800000") for number in range(30))
FIRST = Assignment(5, uuid.UUID(int=99), "t", 0, 1, 3, 8, REPLICAS, (1, 2), (), (), 2, CONFIG, (0,))
OTHERS = [
    replace(FIRST, partition=1, leader=2, replicas=REPLICAS[::-1]),
    replace(FIRST, topic_id=uuid.UUID(int=98), topic="u", config=CONFIG[:3], elr=()),
    replace(FIRST, partition=2, leader=-1, adding=(2,), removing=(0,), replicas=(replace(REPLICAS[0], incarnation=0),)),
]
ASK = SendControllerReply(1, ProducerIdAssigned(0, 1, 0))


def test_what_was_put_together_comes_apart_as_it_was():
    frame = from_controller(to_frame(together([FIRST, *OTHERS])))
    assert isinstance(frame, Assignments)
    assert list(apart(frame)) == [FIRST, *OTHERS]


def test_a_frame_says_once_what_its_assignments_have_in_common():
    many = [replace(FIRST, partition=partition) for partition in range(300)]
    assert len(to_frame(together(many))) < 20 * len(to_frame(FIRST))


def test_a_run_of_assignments_is_one_frame_for_each_session():
    effects: list[Effect] = [SendFrame(session, each) for each in (FIRST, *OTHERS) for session in (7, 8)]
    found = list(gathered([*effects, ASK, SendFrame(8, FIRST)]))
    assert found == [
        SendFrame(7, together([FIRST, *OTHERS])),
        SendFrame(8, together([FIRST, *OTHERS])),
        ASK,
        SendFrame(8, FIRST),
    ]


def test_no_frame_takes_long_to_obey():
    many = [SendFrame(7, replace(FIRST, partition=partition)) for partition in range(TOGETHER_MAX + 1)]
    first, second = gathered(many)
    assert isinstance(first, SendFrame) and isinstance(first.frame, Assignments)
    assert len(first.frame.partitions) == TOGETHER_MAX and second == many[-1]
