"""Sends changed requests to a Broker's listeners, and says what became of them: ``make fuzz FRAMES=10000000 SEED=1``.

The frames are requests of every API and version (``hostile_frames``). All of them are decoded and refused as a listener does it, and
one in ``THROWN_EACH`` is also sent: to a listener where nobody authenticates and to one with SASL, before and after authentication.
The cluster runs here, and has an authorizer, so that nothing is created without end; the client is a process of its own. The findings
that it looks for:

- an error other than ProtocolError where a request is decoded, or one that no answer can refuse;
- a handler that fails, or anything else that is logged as an error;
- an answer that no client can decode, or that answers nothing;
- memory that grows by more than ``GROWTH_BYTES_MAX`` after the first tenth of the frames, requests that are held for ever, and
  connections that stay;
- a listener that does not serve an honest client afterwards.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import re
import resource
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

SUPPORT: Final = Path(__file__).resolve().parents[1] / "support"
sys.path[:0] = [str(SUPPORT), str(SUPPORT.parents[1])]

from acl_cases import TOPIC, cluster, group, topic, transaction  # noqa: E402
from authorized import Clients, authorized_cluster, set_configs  # noqa: E402
from hostile_frames import PASSWORD, TOKENS, USER, changed, real_frames, sasl_frames  # noqa: E402
from kio.schema.errors import ErrorCode  # noqa: E402
from outside import metadata  # noqa: E402
from raw_requests import eventually  # noqa: E402

from raylog.client.sync import AdminClient  # noqa: E402
from raylog.errors import ProtocolError  # noqa: E402
from raylog.kafka import table  # noqa: E402
from raylog.kafka.refusal import refusal  # noqa: E402
from raylog.security.permissions import Operation  # noqa: E402
from raylog.wire.frames import decode_request_body, decode_request_header, encode_response  # noqa: E402
from raylog.wire.listeners import listeners_of  # noqa: E402

GROWTH_BYTES_MAX: Final = 96 << 20
FIRST_PART: Final = 10
THROWN_EACH: Final = 100
THROWN_MIN: Final = 400
DECODED: Final = "decoded"
BAD_OUTCOMES: Final = ("an answer that is not decoded", "an answer to nothing")


@dataclass
class Report:
    frames: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    signatures: int = 0
    seconds: float = 0.0
    grown_bytes: int = 0
    peak_bytes: int = 0

    def add(self, told: dict[str, Any]) -> None:
        self.frames.update(told["frames"])
        self.outcomes.update(told["outcomes"])
        self.signatures += told["signatures"]

    def judge(self) -> None:
        for outcome, count in self.outcomes.items():
            if outcome.startswith(BAD_OUTCOMES):
                self.findings[outcome] += count
        if self.grown_bytes > GROWTH_BYTES_MAX:
            self.findings[f"memory has grown by {self.grown_bytes >> 20} MiB"] += 1

    def __str__(self) -> str:
        total = sum(self.frames.values())
        lines = [f"{total} frames in {self.seconds:.0f} s, {total / max(self.seconds, 0.001):.0f} a second"]
        lines += [
            f"peak memory {self.peak_bytes >> 20} MiB, grown by {self.grown_bytes >> 20} MiB after the first tenth"
        ]
        for title, counts in (
            ("frames by where they came in", self.frames),
            (f"outcomes ({self.signatures} kinds of API, version and errors)", self.outcomes),
            ("connections closed, by reason", self.refusals),
            ("FINDINGS", self.findings),
        ):
            lines.append(f"\n{title}:" + ("" if counts else " none"))
            lines += [f"  {count:>10} {name}" for name, count in counts.most_common(40)]
        return "\n".join(lines)


class _Log(logging.Handler):
    """Counts why connections are closed, and what is an error."""

    def __init__(self, report: Report) -> None:
        super().__init__(logging.INFO)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= logging.ERROR or record.exc_info:
            where = ""
            if record.exc_info and record.exc_info[1] is not None:
                error = record.exc_info[1]
                last = traceback.extract_tb(error.__traceback__)[-1]
                where = f" [{type(error).__name__}: {str(error)[:90]}; {Path(last.filename).name}:{last.lineno}]"
            self._report.findings[re.sub(r"127\.0\.0\.1:\d+", "…", text)[:120] + where] += 1
        elif text.startswith("closing"):
            reason = text.partition(": ")[2] or text
            self._report.refusals[re.sub(r"'[^']*'|-?\d+", "…", reason)[:90]] += 1


@contextmanager
def fuzzed_cluster(report: Report) -> Iterator[Clients]:
    """One broker; the anonymous client may read and write a topic, a group and a transactional id, and see the cluster."""
    with authorized_cluster(1, listeners_of("PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0")) as clients:
        with AdminClient(clients.running.address) as admin:
            admin.set_user(USER, PASSWORD)
        sasl = clients.running.launcher.servers[0].router._sasl
        set_configs(
            clients.running,
            sasl_enabled_mechanisms="PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            connection_failed_authentication_delay_ms="0",
            delegation_token_secret_key="k",
            auto_create_topics_enable="false",
        )
        eventually(lambda: "PLAIN" in sasl.mechanisms and sasl.tokens.key and sasl._credentials(), "it is configured")
        granted = [
            *(make(each) for make in (topic, group) for each in (Operation.READ, Operation.DESCRIBE)),
            *(topic(each) for each in (Operation.WRITE, Operation.DESCRIBE_CONFIGS)),
            *(transaction(each) for each in (Operation.WRITE, Operation.DESCRIBE)),
            *(cluster(each) for each in (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.IDEMPOTENT_WRITE)),
        ]
        clients.grant(*granted)
        handler = _Log(report)
        logger = logging.getLogger("raylog")
        level = logger.level
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
        try:
            yield clients
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)


def fuzz(frames: int, seed: int) -> Report:
    """Send so many; the report has findings if anything is wrong."""
    report = Report()
    with fuzzed_cluster(report) as clients:
        server = clients.running.launcher.servers[0].router.server
        began = time.monotonic()
        first = max(1, frames // FIRST_PART)
        thrown = max(THROWN_MIN, frames // THROWN_EACH)
        corpus = [*real_frames(clients.topic_id), *sasl_frames(TOKENS)]
        decode(first, seed, corpus, report)
        _throw(clients, thrown // FIRST_PART, seed, report)
        warm = _resident_bytes()
        decode(frames - first, seed + 1, corpus, report)
        _throw(clients, thrown - thrown // FIRST_PART, seed + 1, report)
        report.seconds = time.monotonic() - began
        eventually(lambda: not server.in_flight_bytes and len(server.connections) <= 1, "nothing is held for ever")
        report.grown_bytes = _resident_bytes() - warm
        report.peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024
        assert clients.ask(metadata(TOPIC)).topics[0].partitions, "an honest client is served"
    report.judge()
    return report


def decode(frames: int, seed: int, corpus: list[bytes], report: Report) -> None:
    """Decode so many, and refuse what is decoded."""
    chance = random.Random(seed)
    for number in range(frames):
        frame = changed(chance, chance.choice(corpus), corpus)
        try:
            header, position = decode_request_header(frame)
            body = decode_request_body(frame, header, position, borrow=True, ignore_rest=True)
            spec = table.BY_KEY.get(header.api_key)
            report.frames[DECODED] += 1
            if (
                spec is not None
                and spec.key != table.API_VERSIONS.key
                and header.version in spec.versions
                and number % 4 == 0
            ):
                for part in encode_response(refusal(spec, header.version, body, ErrorCode.request_timed_out), 1):
                    len(part)
        except ProtocolError as error:
            report.frames["not decoded"] += 1
            report.refusals[re.sub(r"'[^']*'|-?\d+", "…", str(error))[:90]] += 1
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}:{last.lineno}"
            report.findings[f"{type(error).__name__} of API {frame[:4].hex()} [{str(error)[:90]}; {where}]"] += 1


def _throw(clients: Clients, frames: int, seed: int, report: Report) -> None:
    ports = clients.running.launcher.servers[0].router.server.ports
    places = {"sasl" if each.has_sasl else "open": (each.endpoint.host, each.endpoint.port) for each in ports}
    told = {"frames": frames, "seed": seed, "topic_id": str(clients.topic_id), **places}
    program = [sys.executable, str(SUPPORT / "hostile_frames.py"), json.dumps(told)]
    done = subprocess.run(program, stdout=subprocess.PIPE, check=True, env={"PYTHONPATH": ":".join(sys.path[:2])})
    report.add(json.loads(done.stdout))


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    found = fuzz(chosen.frames, chosen.seed)
    print(found)
    sys.exit(bool(found.findings))
