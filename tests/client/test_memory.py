"""buffer.memory."""

from __future__ import annotations

from raylog.client.producer.memory import BufferMemory


def test_bytes_are_taken_up_to_the_limit_and_given_back() -> None:
    memory = BufferMemory(100)
    assert memory.try_take(60) and not memory.try_take(41) and memory.try_take(40)
    memory.give_back(60)
    assert memory.used_bytes == 40


def test_one_request_larger_than_everything_is_let_in_alone() -> None:
    memory = BufferMemory(100)
    assert memory.try_take(500) and not memory.try_take(1)


def test_waiters_are_served_in_order_even_if_a_later_one_would_fit() -> None:
    memory = BufferMemory(100)
    assert memory.try_take(100)
    woken: list[str] = []
    large = memory.wait(80, lambda: woken.append("large"))
    memory.wait(10, lambda: woken.append("small"))
    memory.give_back(50)
    assert woken == [] and not memory.try_take(1)
    memory.give_back(50)
    assert woken == ["large", "small"] and large.granted and memory.used_bytes == 90


def test_a_waiter_that_leaves_lets_the_next_one_in() -> None:
    memory = BufferMemory(100)
    assert memory.try_take(90)
    woken: list[str] = []
    large = memory.wait(80, lambda: woken.append("large"))
    memory.wait(10, lambda: woken.append("small"))
    assert memory.leave(large) is False
    assert woken == ["small"] and not memory.has_waiters


def test_a_waiter_that_leaves_too_late_learns_that_the_bytes_are_its() -> None:
    memory = BufferMemory(100)
    waiter = memory.wait(80, lambda: None)
    assert memory.leave(waiter) is True
    memory.give_back(80)
    assert memory.used_bytes == 0
