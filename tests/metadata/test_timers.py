from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raylog.timers import Timers

orders = st.lists(
    st.tuples(st.sampled_from(["set", "cancel", "pass"]), st.integers(0, 5), st.integers(0, 50)), max_size=60
)


@given(orders)
def test_deadlines_fire_like_a_dictionary_that_is_searched(orders):
    timers, model, now = Timers(), {}, 0
    for order, which, amount in orders:
        name = ("t", which)
        if order == "set":
            timers.set(name, now + amount)
            model[name] = now + amount
        elif order == "cancel":
            timers.cancel(name)
            model.pop(name, None)
        else:
            now += amount
            due = sorted((deadline, name) for name, deadline in model.items() if deadline <= now)
            assert sorted(timers.due(now)) == due
            for _, name in due:
                del model[name]
        timers.check()
        nearest = timers.next_ms()
        assert not model or (nearest is not None and nearest <= min(model.values()))


def test_moving_a_deadline_later_leaves_one_entry():
    timers = Timers()
    for at in range(1_000):
        timers.set(("session", 1), at)
    assert timers.next_ms() == 0 and timers.due(500) == []
    assert timers.next_ms() == 999 and timers.due(999) == [(999, ("session", 1))]
    assert timers.next_ms() is None
