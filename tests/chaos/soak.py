"""``make soak MINUTES=n``: every kind of fault there is, in random order, one every five seconds, under a load that can be accounted for.

A fault starts every ``EVERY_S`` whether the one before has healed or not, as long as no other of its kind lasts; how long each lasts is
random. Two rules keep the cluster able to serve now and then: of nodes, disks, networks and memory one fails at a time, and
one process is stopped at a time. The order is random, the number is not (``fault_schedule``): each kind comes at least five times in
ten minutes.

After each fault, once it is mended, everything newly acknowledged is read back and held against the ledger; one reading serves all faults
that were mended before it began, and what it finds lost stands beside the first of them. At the end the faults
stop, the ISR has to be whole again within ``HEAL_S``, everything is read once more from the first record on, and all replicas
are compared byte for byte. Of what is offered, ``ACKNOWLEDGED_SHARE_MIN`` has to be acknowledged over the whole time,
pauses included, no delivery may be given up, and no election be unclean.

A machine that others use, too, starts processes late. There ``PACE=3`` leaves three times as long between two faults, for the cluster
to serve in, and waits three times as long for everything, so that there are a third as many faults; ``RATE=2000`` offers so many records
a second. The report names both. What must hold is the same.

The report is a table: kind, times, median and worst pause, and acknowledged records lost. A pause is the longest time in which a
partition acknowledged nothing; it counts once, for the fault that struck, or began to be mended, last before the pause began, even if
others came upon it and made it longer. The report goes to ``build/soak/`` as text and JSON, and what the servers logged too unless all
of this holds. Exit code 1: it does not.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import queue
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

import ray_clusters  # noqa: E402
from fault_schedule import FaultSchedule  # noqa: E402
from process_faults import KINDS, Condition, Target  # noqa: E402
from ray_clusters import eventually  # noqa: E402
from ray_nodes import ray_nodes  # noqa: E402
from server_faults import ServerFaults  # noqa: E402

from raylog import NewTopic  # noqa: E402
from raylog.testing.ledger import Findings  # noqa: E402
from raylog.testing.verifiable_load import LoadAudit, VerifiableLoad  # noqa: E402

EVERY_S = 5.0
TIMES_IN_TEN_MINUTES = 5
LASTS_S = (1.0, 14.0)  # a silence longer than broker.session.timeout.ms (9 s) and shorter ones
MACHINE_LASTS_S = (1.0, 11.0)
HEAL_S = 180.0
PARTITIONS = 3
CONTROLLERS = 3
RECORDS_PER_SECOND = 6_000
ACKNOWLEDGED_SHARE_MIN = 5 / 6
MACHINE, SILENCE = "machine", "silence"
GROUPS = {
    **dict.fromkeys(
        (
            "node away",
            "node of controller away",
            "disk full",
            "disk write error",
            "network cut",
            "network cut of controller",
            "memory eaten",
        ),
        MACHINE,
    ),
    **dict.fromkeys(("stop leader", "stop follower", "stop controller", "stop standby"), SILENCE),
}


@dataclass(slots=True)
class Strike:
    """One fault. Times are seconds of the monotonic clock; 0: not yet."""

    kind: str
    started_at: float
    held_until: float = 0.0  # then it began to be mended
    mended_at: float = 0.0
    pause_ms: float = 0.0
    lost: int = 0
    error: str | None = None


@dataclass(slots=True)
class Row:
    """One line of the report."""

    kind: str
    times: int = 0
    median_pause_ms: float = 0.0
    worst_pause_ms: float = 0.0
    acknowledged_lost: int = 0
    errors: list[str] = field(default_factory=list)


class Soak:
    """The faults of one run. Every strike has a thread of its own; audits run one at a time. The main thread adds nodes."""

    def __init__(
        self, target: Target, load: VerifiableLoad, kinds: list[str], seconds: float, every_s: float = EVERY_S
    ) -> None:
        self._target = target
        self._load = load
        self._kinds = kinds
        self._seconds = seconds
        self._every_s = every_s
        self.least = math.floor(TIMES_IN_TEN_MINUTES * seconds / 600 * EVERY_S / every_s)
        self._schedule = FaultSchedule(kinds, GROUPS, least=self.least, dice=target.dice)
        self._audit = LoadAudit(load, target.nodes.cluster.address)
        self._auditing = threading.Lock()
        self._audited_at = 0.0  # when the last audit began that came to its end
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()
        self.strikes: list[Strike] = []

    def run(self) -> None:
        """Strike every ``EVERY_S`` until the time is over, then wait until every fault is mended. Interrupted it ends at once."""
        striking = threading.Thread(target=self._strike_on_time, name="schedule", daemon=True)
        striking.start()
        try:
            self._obey(lambda: not striking.is_alive() and not any(thread.is_alive() for thread in self._threads))
        finally:
            self._over.set()  # what is stopped goes on, so that it can be ended

    def _strike_on_time(self) -> None:
        begun_at = next_at = time.monotonic()
        while next_at < begun_at + self._seconds:
            self._strike((next_at - begun_at) / self._seconds)
            next_at += self._every_s
            if self._over.wait(max(0.0, next_at - time.monotonic())):
                return

    def _obey(self, enough: Condition) -> None:
        """Carry out what the threads want done in the main thread, until it is enough."""
        while not enough():
            try:
                self._orders.get(timeout=0.05)()
            except queue.Empty:
                pass

    def _in_main_thread(self, work: Callable[[], None]) -> None:
        done = threading.Event()
        errors: list[Exception] = []

        def obey() -> None:
            try:
                work()
            except Exception as error:
                errors.append(error)
            done.set()

        self._orders.put(obey)
        done.wait()
        if errors:
            raise errors[0]

    def _strike(self, share_gone: float) -> None:
        kind = self._schedule.next(share_gone, {strike.kind for strike in self.strikes if not strike.mended_at})
        if kind is None:
            return
        strike = Strike(kind, time.monotonic())
        self.strikes.append(strike)
        lasts_s = self._target.dice.uniform(*(MACHINE_LASTS_S if GROUPS.get(kind) == MACHINE else LASTS_S))
        # A thread has dice of its own, so that the order in which threads run does not change what the others draw.
        target = replace(
            self._target, dice=random.Random(self._target.dice.random()), in_main_thread=self._in_main_thread
        )
        thread = threading.Thread(target=self._carry_out, args=(strike, target, lasts_s), name=kind, daemon=True)
        self._threads.append(thread)
        print(f"{strike.started_at - self._load.started_at:7.1f} s  {kind}, for {lasts_s:.1f} s", flush=True)
        thread.start()

    def _carry_out(self, strike: Strike, target: Target, lasts_s: float) -> None:
        def hold(_: Condition) -> None:
            self._over.wait(lasts_s)
            strike.held_until = time.monotonic()

        try:
            KINDS[strike.kind](target, hold)
        except Exception as error:
            strike.error = "".join(traceback.format_exception_only(error)).strip()
            traceback.print_exc()
        strike.mended_at = time.monotonic()
        try:
            with self._auditing:
                if self._audited_at < strike.mended_at:
                    began_at = time.monotonic()
                    strike.lost = self._audit.catch_up()
                    self._audited_at = began_at
        except Exception as error:
            print(f"the audit after {strike.kind!r} waits for the next one: {error}", flush=True)

    def finish(self) -> Findings:
        """Read the whole topic once more, from the first record of the load on."""
        return LoadAudit(self._load, self._target.nodes.cluster.address).finish()

    def rows(self) -> list[Row]:
        """The report's lines, once all is over."""
        self._attribute_pauses()
        rows = []
        for kind in self._kinds:
            strikes = [strike for strike in self.strikes if strike.kind == kind]
            pauses_ms = [strike.pause_ms for strike in strikes] or [0.0]
            rows.append(
                Row(
                    kind,
                    len(strikes),
                    statistics.median(pauses_ms),
                    max(pauses_ms),
                    sum(strike.lost for strike in strikes),
                    [strike.error for strike in strikes if strike.error],
                )
            )
        return rows

    def _attribute_pauses(self) -> None:
        moments = sorted(
            [(strike.started_at, number) for number, strike in enumerate(self.strikes)]
            + [(strike.held_until, number) for number, strike in enumerate(self.strikes) if strike.held_until]
        )
        ends = [at for at, _ in moments[1:]] + [self._load.stopped_at]
        for (start, number), end in zip(moments, ends, strict=True):
            strike = self.strikes[number]
            strike.pause_ms = max(strike.pause_ms, 1000 * self._load.ledger.longest_pause_begun(start, end))


def table(rows: list[Row]) -> str:
    lines = [f"{'kind':<28}{'times':>6}{'median pause':>15}{'worst pause':>14}{'acked lost':>12}"]
    lines += [
        f"{row.kind:<28}{row.times:>6}{row.median_pause_ms:>12,.0f} ms{row.worst_pause_ms:>11,.0f} ms"
        f"{row.acknowledged_lost:>12,}"
        for row in rows
    ]
    return "\n".join(lines)


def report(folder: Path, text: str, document: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.txt").write_text(text + "\n")
    (folder / "report.json").write_text(json.dumps(document, indent=2) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--pace", type=float, default=1.0, help="times as long between faults, and for what is awaited")
    parser.add_argument("--rate", type=int, default=RECORDS_PER_SECOND, help="records a second that are offered")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument(
        "--kind",
        action="append",
        choices=sorted(KINDS),
        help="only this kind; may be repeated",
    )
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "soak")
    options = parser.parse_args()
    kinds = options.kind or list(KINDS)
    print(
        f"soak: {options.minutes:g} minutes, pace {options.pace:g}, seed {options.seed}, kinds: {', '.join(kinds)}",
        flush=True,
    )
    ray_clusters.PATIENCE_S *= options.pace
    folder = Path(tempfile.mkdtemp(prefix="rl"))
    os.environ["RAY_TMPDIR"] = str(folder)
    try:
        faults = ServerFaults(folder / "faults.json")
        with ray_nodes(folder / "data", controllers=CONTROLLERS, faults=faults.path) as nodes:
            configs = {"min.insync.replicas": "2", "retention.ms": "-1"}
            with nodes.cluster.admin() as admin:
                admin.create_topics([NewTopic("soak", PARTITIONS, 3, configs=configs)])
            target = Target(nodes, "soak", random.Random(options.seed), faults)
            eventually(target.is_whole, "all replicas in sync")
            code = soak(target, kinds, options.minutes * 60, options)
            if code:
                logs = folder / "ray" / "session_latest" / "logs"
                shutil.copytree(logs, options.output / "logs", dirs_exist_ok=True)
            return code
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def soak(target: Target, kinds: list[str], seconds: float, options: argparse.Namespace) -> int:
    address = target.nodes.cluster.address
    healed = True
    with VerifiableLoad(address, target.topic, partitions=PARTITIONS, records_per_second=options.rate) as load:
        run = Soak(target, load, kinds, seconds, EVERY_S * options.pace)
        run.run()
        print("no more faults: the cluster heals", flush=True)
        try:
            eventually(target.is_whole, "all replicas in sync again", timeout_s=HEAL_S * options.pace)
        except AssertionError as error:
            healed = False
            print(f"NOT HEALED: {error}; {target.parts()}", flush=True)
    findings = run.finish()
    with target.nodes.cluster.admin() as admin:
        verification = admin.verify_replicas([target.topic])
    unclean_elections = target.status()["unclean_elections"]
    rows = run.rows()
    holds = (
        healed
        and findings.holds
        and verification.holds
        and not any(row.acknowledged_lost or row.errors for row in rows)
        and not load.ledger.failed
        and not unclean_elections
        and load.rate >= ACKNOWLEDGED_SHARE_MIN * options.rate
        and min(row.times for row in rows) >= run.least
    )
    errors = [f"{row.kind}: {error}" for row in rows for error in row.errors]
    text = "\n".join(
        [
            f"{seconds / 60:g} minutes on {os.cpu_count()} cores, pace {options.pace:g}, {options.rate:,} records a second offered, "
            f"seed {options.seed}, {len(run.strikes)} faults",
            table(rows),
            load.words(),
            f"Unclean elections: {unclean_elections}. ISR whole again at the end: {'yes' if healed else 'no'}.",
            findings.words(),
            verification.words(),
            *errors,
            "CLEAN" if holds else "NOT CLEAN",
        ]
    )
    print(text, flush=True)
    report(
        options.output,
        text,
        {
            "seed": options.seed,
            "minutes": seconds / 60,
            "pace": options.pace,
            "offered_per_second": options.rate,
            "clean": holds,
            "healed": healed,
            "kinds": [asdict(row) for row in rows],
            "acknowledged": load.ledger.acknowledged,
            "acknowledged_per_second": load.rate,
            "given_up": load.ledger.failed,
            "unclean_elections": unclean_elections,
            "findings": asdict(findings),
            "replicas_identical": verification.holds,
            "strikes": [
                {**asdict(strike), "started_at": strike.started_at - load.started_at} for strike in run.strikes
            ],
        },
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
