"""What lasts is left out of garbage collections, and nothing is lost by that."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.core

BEGINNING = """
import gc, weakref
from raylog.actors.survivors import Survivors

class Thing:
    pass

def cycle():
    one, other = Thing(), Thing()
    one.other, other.one = other, one
    return one

def is_looked_at(thing):
    return any(each is thing for each in gc.get_objects())

gc.collect()
"""


def _run(program: str) -> None:
    """In a process of its own: there is one garbage collector."""
    subprocess.run([sys.executable, "-c", BEGINNING + program], check=True, timeout=60)


def test_what_was_there_and_what_survives_a_slow_full_collection_is_looked_at_no_more() -> None:
    _run("""
imported = Thing()
Survivors(slow_s=0).watch()
later = Thing()
assert not is_looked_at(imported) and is_looked_at(later)
gc.collect(1)
assert is_looked_at(later)
gc.collect()
assert not is_looked_at(later)
""")


def test_collections_are_rarer() -> None:
    _run("""
Survivors().watch()
before = gc.get_stats()[0]["collections"]
kept = [Thing() for _ in range(2_000)]
assert gc.get_stats()[0]["collections"] == before
kept += [Thing() for _ in range(5_000)]
assert gc.get_stats()[0]["collections"] > before
""")


def test_quick_collections_freeze_nothing() -> None:
    _run("""
Survivors(slow_s=60).watch()
later = Thing()
gc.collect()
assert is_looked_at(later)
""")


def test_a_frozen_object_is_freed_by_its_last_reference() -> None:
    _run("""
Survivors(slow_s=0).watch()
later = Thing()
gc.collect()
gone = weakref.ref(later)
assert not is_looked_at(later)
del later
assert gone() is None
""")


def test_frozen_cycles_that_nobody_holds_are_never_more_than_what_lasts() -> None:
    """Such as closed logs: each was there, and in use, when its surroundings were frozen."""
    _run("""
Survivors(slow_s=0, lasting_count=5_000).watch()
leaked, most, thawings = [], 0, 0
for _ in range(300):
    held = [cycle() for _ in range(100)]
    gc.collect()
    thawings += gc.get_freeze_count() == 0
    leaked = [each for each in leaked if each() is not None]
    leaked += map(weakref.ref, held)
    del held
    most = max(most, len(leaked))
lasting = gc.get_freeze_count() - 2 * len(leaked)
assert 500 < most and 2 * most < lasting and thawings < 30, (most, lasting, thawings)
""")


def test_a_process_that_has_grown_is_looked_through_once_for_that() -> None:
    _run("""
Survivors(slow_s=0, lasting_count=1_000).watch()
grown = [cycle() for _ in range(20_000)]
gc.collect()
assert is_looked_at(grown[0])
gc.collect()
assert not is_looked_at(grown[0])
for _ in range(20):
    more = [cycle() for _ in range(100)]
    gc.collect()
    assert not is_looked_at(grown[0]) and not is_looked_at(more[0])
""")


def test_a_started_server_watches_over_its_process() -> None:
    _run("""
import asyncio, uuid
from raylog.actors.ray_actors import ServerActor
from raylog.server.spec import ServerSpec

class StandInServer:
    async def start(self):
        return "somewhere"

    async def ended(self):
        await asyncio.Event().wait()

class Actor(ServerActor):
    def _build(self, spec):
        return StandInServer()

async def live():
    await Actor(ServerSpec(2, uuid.UUID(int=1), "nowhere", "127.0.0.1", 1)).start()
    assert [each for each in gc.callbacks if isinstance(getattr(each, "__self__", None), Survivors)]

asyncio.run(live())
""")
