"""``make soak MINUTES=n``: every kind of fault there is, in random order, one every five seconds, under a load that can be accounted for.

A fault starts every ``EVERY_S`` whether the one before has healed or not, as long as no other of its kind lasts; how long each lasts is
random. Two rules keep the cluster able to serve now and then: a node, a disk or the network fails only while no other of these
three does, and a process is stopped only while no other is. Each kind comes at least once before any comes often.

After each fault, once it is mended, everything newly acknowledged is read back and held against the ledger. At the end the faults
stop, the ISR has to be whole again within ``HEAL_S``, everything is read once more from the first record on, and all replicas
are compared byte for byte. The report is a table: kind, times, worst pause (the longest time in which a partition acknowledged
nothing while a fault of that kind lasted, or before the next one came; faults overlap, so one pause may count for several), and
acknowledged records lost. It goes to ``build/soak/`` as text and JSON. Exit code 1: something was lost, differs, or did not heal.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from process_faults import KINDS, MEMORY_HEADROOM_BYTES, Condition, Target  # noqa: E402
from ray_clusters import eventually  # noqa: E402
from ray_nodes import ray_nodes  # noqa: E402
from server_faults import ServerFaults  # noqa: E402

from raylog import NewTopic  # noqa: E402
from raylog.testing.ledger import Findings  # noqa: E402
from raylog.testing.verifiable_load import LoadAudit, VerifiableLoad  # noqa: E402

BY_NAME_ONLY = frozenset({"memory eaten"})  # wants a machine whose memory nobody else uses: monitors look at all of it
EVERY_S = 5.0
LASTS_S = (1.0, 14.0)  # a silence longer than broker.session.timeout.ms (9 s) and shorter ones
HEAL_S = 180.0
PARTITIONS = 3
RECORDS_PER_SECOND = 6_000
ONE_AT_A_TIME = {
    **dict.fromkeys(
        ("node away", "disk full", "disk write error", "network cut", "network cut of controller", "memory eaten"),
        "machine",
    ),
    **dict.fromkeys(("stop leader", "stop follower", "stop controller"), "silence"),
}


@dataclass(slots=True)
class Strike:
    """One fault. Times are seconds of the monotonic clock; ``mended_at`` 0 while it lasts."""

    kind: str
    started_at: float
    mended_at: float = 0.0
    lost: int = 0
    error: str | None = None


@dataclass(slots=True)
class Row:
    """One line of the report."""

    kind: str
    times: int = 0
    worst_pause_ms: float = 0.0
    acknowledged_lost: int = 0
    errors: list[str] = field(default_factory=list)


class Soak:
    """The faults of one run. Every strike has a thread of its own; audits run one at a time."""

    def __init__(self, target: Target, load: VerifiableLoad, kinds: list[str]) -> None:
        self._target = target
        self._load = load
        self._kinds = kinds
        self._audit = LoadAudit(load, target.nodes.cluster.address)
        self._auditing = threading.Lock()
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.strikes: list[Strike] = []

    def run(self, seconds: float) -> None:
        """Strike every ``EVERY_S`` until the time is over, then wait until every fault is mended."""
        next_at = time.monotonic()
        ends_at = next_at + seconds
        while next_at < ends_at:
            self._strike()
            next_at += EVERY_S
            self._obey(partial(_is_past, next_at))
        self._obey(lambda: not any(thread.is_alive() for thread in self._threads))

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

    def _strike(self) -> None:
        busy = {strike.kind for strike in self.strikes if not strike.mended_at}
        taken = {ONE_AT_A_TIME[kind] for kind in busy if kind in ONE_AT_A_TIME}
        free = [kind for kind in self._kinds if kind not in busy and ONE_AT_A_TIME.get(kind) not in taken]
        if not free:
            return
        counts = {kind: sum(strike.kind == kind for strike in self.strikes) for kind in free}
        rarest = min(counts.values())
        kind = self._target.dice.choice([kind for kind in free if counts[kind] <= rarest + 1])
        strike = Strike(kind, time.monotonic())
        self.strikes.append(strike)
        lasts_s = self._target.dice.uniform(*LASTS_S)
        # A thread has dice of its own, so that the order in which threads run does not change what the others draw.
        target = replace(
            self._target, dice=random.Random(self._target.dice.random()), in_main_thread=self._in_main_thread
        )
        thread = threading.Thread(target=self._carry_out, args=(strike, target, lasts_s), name=kind)
        self._threads.append(thread)
        print(f"{strike.started_at - self._load.started_at:7.1f} s  {kind}, for {lasts_s:.1f} s", flush=True)
        thread.start()

    def _carry_out(self, strike: Strike, target: Target, lasts_s: float) -> None:
        def hold(_: Condition) -> None:
            time.sleep(lasts_s)

        try:
            KINDS[strike.kind](target, hold)
        except Exception as error:
            strike.error = "".join(traceback.format_exception_only(error)).strip()
            traceback.print_exc()
        strike.mended_at = time.monotonic()
        try:
            with self._auditing:
                strike.lost = self._audit.catch_up()
        except Exception as error:
            print(f"the audit after {strike.kind!r} waits for the next one: {error}", flush=True)

    def finish(self) -> Findings:
        """Read the whole topic once more, from the first record of the load on."""
        return LoadAudit(self._load, self._target.nodes.cluster.address).finish()

    def rows(self) -> list[Row]:
        starts = sorted(strike.started_at for strike in self.strikes)
        rows = {kind: Row(kind) for kind in self._kinds}
        for strike in self.strikes:
            row = rows[strike.kind]
            row.times += 1
            row.acknowledged_lost += strike.lost
            if strike.error:
                row.errors.append(strike.error)
            following = [start for start in starts if start >= strike.mended_at] or [self._load.stopped_at]
            pause_s = self._load.ledger.longest_pause(strike.started_at, min(following[0], self._load.stopped_at))
            row.worst_pause_ms = max(row.worst_pause_ms, 1000 * pause_s)
        return list(rows.values())


def _is_past(at: float) -> bool:
    return time.monotonic() >= at


def table(rows: list[Row]) -> str:
    lines = [f"{'kind':<28}{'times':>6}{'worst pause':>14}{'acked lost':>12}"]
    lines += [
        f"{row.kind:<28}{row.times:>6}{row.worst_pause_ms:>11,.0f} ms{row.acknowledged_lost:>12,}" for row in rows
    ]
    return "\n".join(lines)


def report(folder: Path, text: str, document: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.txt").write_text(text + "\n")
    (folder / "report.json").write_text(json.dumps(document, indent=2) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument(
        "--kind",
        action="append",
        choices=sorted(KINDS),
        help="only this kind; may be repeated; without it all but 'memory eaten'",
    )
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "soak")
    options = parser.parse_args()
    kinds = options.kind or [kind for kind in KINDS if kind not in BY_NAME_ONLY]
    print(f"soak: {options.minutes:g} minutes, seed {options.seed}, kinds: {', '.join(kinds)}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="rl"))
    os.environ["RAY_TMPDIR"] = str(folder)
    try:
        faults = ServerFaults(folder / "faults.json")
        headroom = MEMORY_HEADROOM_BYTES if "memory eaten" in kinds else None
        with ray_nodes(folder / "data", faults=faults.path, memory_headroom_bytes=headroom) as nodes:
            configs = {"min.insync.replicas": "2", "retention.ms": "-1"}
            with nodes.cluster.admin() as admin:
                admin.create_topics([NewTopic("soak", PARTITIONS, 3, configs=configs)])
            target = Target(nodes, "soak", random.Random(options.seed), faults)
            eventually(target.is_whole, "all replicas in sync")
            return soak(target, kinds, options.minutes * 60, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def soak(target: Target, kinds: list[str], seconds: float, options: argparse.Namespace) -> int:
    address = target.nodes.cluster.address
    healed = True
    with VerifiableLoad(address, target.topic, partitions=PARTITIONS, records_per_second=RECORDS_PER_SECOND) as load:
        run = Soak(target, load, kinds)
        run.run(seconds)
        print("no more faults: the cluster heals", flush=True)
        try:
            eventually(target.is_whole, "all replicas in sync again", timeout_s=HEAL_S)
        except AssertionError as error:
            healed = False
            print(f"NOT HEALED: {error}; {target.parts()}", flush=True)
    findings = run.finish()
    with target.nodes.cluster.admin() as admin:
        verification = admin.verify_replicas([target.topic])
    rows = run.rows()
    holds = healed and findings.holds and verification.holds and not any(row.acknowledged_lost for row in rows)
    holds = holds and not any(row.errors for row in rows) and not load.ledger.failed
    errors = [f"{row.kind}: {error}" for row in rows for error in row.errors]
    text = "\n".join(
        [
            f"{seconds / 60:g} minutes, seed {options.seed}, {len(run.strikes)} faults",
            table(rows),
            load.words(),
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
            "clean": holds,
            "healed": healed,
            "kinds": [asdict(row) for row in rows],
            "acknowledged": load.ledger.acknowledged,
            "acknowledged_per_second": load.rate,
            "given_up": load.ledger.failed,
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
