"""Sessions that a coverage-guided fuzzer chooses, fed to a Broker's connections; ``fuzz.py --guided`` starts this program.

It runs where Atheris is (``.venv-fuzz``), which counts the branches of ``PARTS`` that a session takes, and keeps the sessions that took
new ones. The first are requests of every API and version. How sessions are fed, and what counts as a finding: ``fed_frames``. A
session with a finding is written beside the report.

    python guided_fuzz.py '{"frames": 100000, "seconds": 600, "seed": 1, "report": "report.json", "corpus": "folder"}'
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import atheris

HERE: Final = Path(__file__).resolve().parent
SUPPORT: Final = HERE.parent / "support"
sys.path[:0] = [str(HERE), str(SUPPORT), str(SUPPORT.parents[1])]

PARTS: Final = [
    "wire",
    "listener",
    "kafka",
    "security",
    "server",
    "coordination",
    "groups",
    "transactions",
    "metadata",
    "replication",
]
"""Of raylog, whose branches are counted."""

with atheris.instrument_imports(include=[f"raylog.{part}" for part in PARTS]):
    from fed_frames import SESSION_BYTES_MAX, Feeder, mixed, seeds
    from fuzz import FIRST_PART, fuzzed_cluster
    from fuzz_report import Report, resident_bytes
    from hostile_frames import TOKENS, real_frames, sasl_frames
    from raw_requests import eventually

SAVED_MAX: Final = 20


class Hunt:
    """``told`` is what the program was asked for."""

    def __init__(self, told: dict[str, Any], stack: ExitStack) -> None:
        self._told = told
        self._stack = stack
        self._report = Report()
        clients = stack.enter_context(fuzzed_cluster(self._report))
        self._server = clients.running.launcher.servers[0].router.server
        self.frames = [*real_frames(clients.topic_id), *sasl_frames(TOKENS)]
        self._feeder = Feeder(self._server, self._report.findings)
        self._corpus = Path(told["corpus"])
        for number, data in enumerate(seeds(clients.topic_id)):
            (self._corpus / f"seed-{number:05}").write_bytes(data)
        self._began = time.monotonic()
        self._warm_bytes = 0
        self._saved = 0

    def one_session(self, data: bytes) -> None:
        known = sum(self._report.findings.values())
        self._feeder.feed(data)
        if sum(self._report.findings.values()) > known and self._saved < SAVED_MAX:
            self._saved += 1
            Path(self._told["report"]).with_name(f"finding-{self._saved}.bin").write_bytes(data)
        spent_s, fed = time.monotonic() - self._began, sum(self._feeder.frames.values())
        part = max(spent_s / self._told["seconds"], fed / self._told["frames"])
        if not self._warm_bytes and part >= 1 / FIRST_PART:
            self._warm_bytes = resident_bytes()
        if part >= 1:
            self._end(spent_s)

    def mutate(self, data: bytes, max_size: int, seed: int) -> bytes:
        return mixed(random.Random(seed), data, self.frames, atheris.Mutate)[:max_size]

    def _end(self, spent_s: float) -> None:
        report, server = self._report, self._server
        self._feeder.close()
        eventually(lambda: not server.in_flight_bytes and len(server.connections) <= 1, "nothing is held for ever")
        report.seconds = spent_s
        report.grown_bytes = resident_bytes() - self._warm_bytes
        report.peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024
        report.frames, report.outcomes = self._feeder.frames, self._feeder.outcomes
        report.slowest_cpu_s = self._feeder.slowest_cpu_s
        report.judge()
        Path(self._told["report"]).write_text(report.as_json())
        self._stack.close()
        sys.stderr.flush()
        os._exit(0)  # Atheris has no other end


def main(told: dict[str, Any]) -> None:
    with ExitStack() as stack:
        hunt = Hunt(told, stack)
        flags = [f"-seed={told['seed']}", f"-max_len={SESSION_BYTES_MAX}", "-rss_limit_mb=0", "-timeout=600"]
        flags += ["-len_control=0", "-reload=0", told["corpus"]]
        atheris.Setup([sys.argv[0], *flags], hunt.one_session, custom_mutator=hunt.mutate)
        atheris.Fuzz()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
