"""Runs with nights: they span the time that was asked for, in which timers fire, and a hunt of many hours keeps its tally."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from raylog.simulator.replay import run_seed
from raylog.simulator.rhythm import SLOWNESS, Rhythm
from raylog.simulator.scheduler import Scheduler
from raylog.simulator.simulation import Simulation

pytestmark = pytest.mark.sim


def test_a_night_lasts_as_long_as_it_was_told_and_the_machines_go_on_through_it() -> None:
    simulation = Simulation(7, events=1_000, night_minutes=10)
    simulation.run()
    outcome = run_seed(7, events=1_000, night_minutes=10)
    assert outcome.failure is None
    assert simulation.scheduler.now_ms > 10 * 60 * 1_000
    assert outcome.hours == simulation.scheduler.now_us / 3.6e9
    beats = 10 * 60 * 1_000 // simulation.controller_config.heartbeat_interval_ms
    assert outcome.counts["events"] > 1_000 + 3 * beats


def test_who_sleeps_acts_rarely_and_is_woken_when_the_day_breaks() -> None:
    scheduler = Scheduler(1)
    rhythm = Rhythm(scheduler)
    acted: list[int] = []

    def act() -> None:
        acted.append(scheduler.now_us)
        rhythm.later(scheduler.after_us, 1_000, act, "act")

    rhythm.fall_asleep()
    act()
    for _ in range(10):
        scheduler.run_next()
    assert acted[-1] > 10 * 1_000 * SLOWNESS / 20
    dawn = scheduler.now_us
    rhythm.wake_up()
    scheduler.run_next()
    assert acted[-1] - dawn <= 2 * 1_000 * 100 and len(acted) == 12


def test_a_hunt_of_hours_goes_on_from_its_tally(tmp_path: Path) -> None:
    tally = tmp_path / "tally.json"
    options = ["--processes", "1", "--night-minutes", "3", "--tally", str(tally), "--hours"]
    command = [sys.executable, "-m", "raylog.simulator", *options]
    first = subprocess.run([*command, "0.04"], capture_output=True, text=True, check=True)
    known = json.loads(tally.read_text())
    assert known["hours"] >= 0.05 and known["failed"] == 0 and known["counts"]["nights"] > 0, first.stdout
    again = subprocess.run([*command, "0.04"], capture_output=True, text=True, check=True)
    assert json.loads(tally.read_text()) == known
    assert f"in {known['seeds']} seeds" in again.stdout
