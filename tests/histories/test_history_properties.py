"""The checker on histories of a correct log, which have nothing wrong, and on the same with one fault, which it names."""

from __future__ import annotations

import random

import pytest
from history_faults import FAULTS, PlantedFault
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from transactional_log_model import STEPS, LogModel, Plan

from raylog.histories import AnomalyKind, IsolationModel, check

steps = st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 5), st.integers(0, 1))
plans = st.lists(steps, max_size=80)


@settings(max_examples=300)
@given(plans)
def test_the_histories_of_a_correct_log_hold(plan: Plan) -> None:
    history = LogModel().run(plan)
    verdict = check(history)
    assert verdict.holds, verdict.words()
    assert {anomaly.kind for anomaly in verdict.allowed} <= {AnomalyKind.G0, AnomalyKind.G1C_WW}
    event("with polls" if verdict.polled else "without polls")
    assert check(history, model=IsolationModel.READ_UNCOMMITTED).holds


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@given(data=st.data())
def test_one_fault_is_found_and_named(fault: PlantedFault, data: st.DataObject) -> None:
    # Short plans find few places for some faults, and hypothesis gives up; so a seed draws a long one.
    seed = data.draw(st.integers(0, 2**32))
    planned = random.Random(seed)
    plan = [(planned.randrange(len(STEPS)), planned.randrange(6), planned.randrange(2)) for _ in range(80)]
    history = fault.planter(LogModel().run(plan), data.draw(st.integers(0, 1000)))
    assume(history is not None)
    assert history is not None
    assert check(history).kinds & fault.kinds, check(history).words()


def test_every_kind_that_kafka_forbids_is_planted() -> None:
    planted = {kind for fault in FAULTS.values() for kind in fault.kinds}
    assert planted == set(AnomalyKind) - IsolationModel.READ_COMMITTED.allowed


def test_equal_histories_have_equal_verdicts() -> None:
    planned = random.Random(7)
    plan = [(planned.randrange(len(STEPS)), planned.randrange(6), planned.randrange(2)) for _ in range(400)]
    words = [check(LogModel().run(plan), model=IsolationModel.ADYA_PL_2).words() for _ in range(2)]
    assert words[0] == words[1] and "G0" in words[0]
