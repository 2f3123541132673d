"""Sends changed requests to a Broker's listeners, and says what became of them: ``make fuzz FRAMES=10000000 SEED=1``.

The frames are requests of every API and version (``hostile_frames``). All of them are decoded and refused as a listener does it, and
one in ``THROWN_EACH`` is also sent: to a listener where nobody authenticates and to one with SASL, before and after authentication.
With ``--guided`` a coverage-guided fuzzer chooses them instead, and all are fed to a listener's connections (``guided_fuzz.py``).
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SUPPORT: Final = Path(__file__).resolve().parents[1] / "support"
sys.path[:0] = [str(SUPPORT), str(SUPPORT.parents[1])]

from acl_cases import TOPIC, cluster, group, topic, transaction  # noqa: E402
from authorized import Clients, authorized_cluster, set_configs  # noqa: E402
from fed_frames import SUPER_USER, kept_frames  # noqa: E402
from fuzz_report import REPORTS, Report, resident_bytes, write_results  # noqa: E402
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
from raylog.wire.listeners import Listeners, listeners_of  # noqa: E402

FIRST_PART: Final = 10
THROWN_EACH: Final = 100
THROWN_MIN: Final = 400
DECODED: Final = "decoded"
CORPUS: Final = REPORTS / "corpus"
ATHERIS: Final = SUPPORT.parents[1] / ".venv-fuzz" / "bin" / "python"


class _Log(logging.Handler):
    """Counts why connections are closed, and what is an error, or the end of a server."""

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
        elif " is dead: " in text or text.startswith("told to exit"):
            self._report.findings[re.sub(r"\d+", "…", text)[:120]] += 1
        elif text.startswith("closing"):
            reason = text.partition(": ")[2] or text
            self._report.refusals[re.sub(r"'[^']*'|-?\d+", "…", reason)[:90]] += 1


LISTENERS: Final = "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"
MECHANISMS: Final = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"


@contextmanager
def fuzzed_cluster(
    report: Report, listeners: Listeners | None = None, mechanisms: str = MECHANISMS
) -> Iterator[Clients]:
    """One broker; the anonymous client may read and write a topic, a group and a transactional id, and see the cluster.
    ``listeners``: those of ``LISTENERS`` if none are given.
    """
    with authorized_cluster(1, listeners or listeners_of(LISTENERS)) as clients:
        with AdminClient(clients.running.address) as admin:
            admin.set_user(USER, PASSWORD)
            admin.set_user(SUPER_USER, PASSWORD)
        sasl = clients.running.launcher.servers[0].router._sasl
        set_configs(
            clients.running,
            sasl_enabled_mechanisms=mechanisms,
            connection_failed_authentication_delay_ms="0",
            delegation_token_secret_key="k",
            auto_create_topics_enable="false",
            super_users=f"User:{SUPER_USER}",
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
        logger, loops = logging.getLogger("raylog"), logging.getLogger("asyncio")
        level = logger.level
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
        loops.addHandler(handler)
        try:
            yield clients
        finally:
            logger.removeHandler(handler)
            loops.removeHandler(handler)
            logger.setLevel(level)


def fuzz(frames: int, seed: int, kept: Path) -> Report:
    """Send so many; the report has findings if anything is wrong. ``kept``: sessions of the guided fuzzer, whose frames join the others."""
    report = Report()
    with fuzzed_cluster(report) as clients:
        server = clients.running.launcher.servers[0].router.server
        began = time.monotonic()
        first = max(1, frames // FIRST_PART)
        thrown = max(THROWN_MIN, frames // THROWN_EACH)
        corpus = [*real_frames(clients.topic_id), *sasl_frames(TOKENS), *kept_frames(kept)]
        decode(first, seed, corpus, report)
        _throw(clients, thrown // FIRST_PART, seed, kept, report)
        warm = resident_bytes()
        decode(frames - first, seed + 1, corpus, report)
        _throw(clients, thrown - thrown // FIRST_PART, seed + 1, kept, report)
        report.seconds = time.monotonic() - began
        eventually(lambda: not server.in_flight_bytes and len(server.connections) <= 1, "nothing is held for ever")
        report.grown_bytes = resident_bytes() - warm
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


def _throw(clients: Clients, frames: int, seed: int, kept: Path, report: Report) -> None:
    ports = clients.running.launcher.servers[0].router.server.ports
    places = {"sasl" if each.has_sasl else "open": (each.endpoint.host, each.endpoint.port) for each in ports}
    told = {"frames": frames, "seed": seed, "topic_id": str(clients.topic_id), "kept": str(kept), **places}
    program = [sys.executable, str(SUPPORT / "hostile_frames.py"), json.dumps(told)]
    done = subprocess.run(program, stdout=subprocess.PIPE, check=True, env={"PYTHONPATH": ":".join(sys.path[:2])})
    report.add(json.loads(done.stdout))


def guided(frames: int, seconds: int, seed: int, kept: Path) -> Report:
    """Have the coverage-guided fuzzer feed so many, or for so long. It goes on from the sessions that it kept last time."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    kept.mkdir(parents=True, exist_ok=True)
    log, told = REPORTS / "guided.log", REPORTS / "found.json"
    told.unlink(missing_ok=True)
    asked = {"frames": frames, "seconds": seconds, "seed": seed, "report": str(told), "corpus": str(kept)}
    with log.open("wb") as output:
        program = [str(ATHERIS), str(Path(__file__).with_name("guided_fuzz.py")), json.dumps(asked)]
        done = subprocess.run(program, stdout=output, stderr=subprocess.STDOUT)
    report = Report.of_json(told.read_text()) if told.exists() else Report()
    if done.returncode or not told.exists():
        report.findings[f"the fuzzer ended with {done.returncode}: {log}"] += 1
    covered = re.findall(r"cov: (\d+) ft: \d+ corp: (\d+)", log.read_text(errors="replace"))
    if covered:
        report.edges, report.kept = map(int, covered[-1])
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--guided", type=int, metavar="SECONDS", help="let coverage choose the frames, for so long at most"
    )
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="what the guided fuzzer has kept")
    parser.add_argument("--results", action="store_true", help="write tests/fuzz_results.md")
    chosen = parser.parse_args()
    if chosen.guided:
        found = guided(chosen.frames, chosen.guided, chosen.seed, chosen.corpus)
        kind, command = "guided", f"make fuzz-guided FRAMES={chosen.frames} SECONDS={chosen.guided} SEED={chosen.seed}"
    else:
        found = fuzz(chosen.frames, chosen.seed, chosen.corpus)
        kind, command = "random", f"make fuzz FRAMES={chosen.frames} SEED={chosen.seed}"
    print(found)
    if chosen.results:
        write_results(kind, found, command)
    return bool(found.findings)


if __name__ == "__main__":
    sys.exit(main())
