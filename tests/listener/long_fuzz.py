"""Feeds changed sessions at full speed, and holds what the process has against what it had: ``make fuzz-long FRAMES=10000000 SEED=1``.

What the guided fuzzer has kept is changed further, without its tracer: many connections at a time (``fast_feed``), at every door:
those of Kafka clients (``feed_doors``), of tokens (``bearer_doors``), of TLS (``tls_feed``) and of the inside links (``inside_doors``).
The checks are the guided fuzzer's: every frame is answered in a way that clients read, ends its connection, or waits; nothing is logged
as an error, and no exception leaves the server. Each ``CHECK_EACH`` frames everything comes to rest, and memory, tasks, connections,
descriptors, timers and tables are counted (``growth``). A session with a finding is saved, and sent again by::

    python tests/listener/long_fuzz.py --replay build/fuzz/found/open-seed1-4711.bin
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
SUPPORT: Final = HERE.parent / "support"
sys.path[:0] = [str(HERE), str(SUPPORT), str(SUPPORT.parents[1])]

from acl_cases import TOPIC  # noqa: E402
from authorized import Clients  # noqa: E402
from bearer_doors import MECHANISM, Tokens, bearer_doors  # noqa: E402
from fast_feed import DOORS, Door, FastFeed  # noqa: E402
from fed_frames import split  # noqa: E402
from feed_doors import outside_doors  # noqa: E402
from fuzz import CORPUS, LISTENERS, MECHANISMS, fuzzed_cluster  # noqa: E402
from fuzz_report import REPORTS, Report  # noqa: E402
from growth import Sample, growing  # noqa: E402
from inside_doors import inside_doors  # noqa: E402
from long_results import write_page  # noqa: E402
from outside import metadata  # noqa: E402
from raw_requests import eventually  # noqa: E402
from tls_feed import TlsFeed, certificates  # noqa: E402

from raylog.wire.listeners import listeners_of  # noqa: E402
from raylog.wire.server import Server  # noqa: E402

CHECK_EACH: Final = 100_000
TLS_SHARE: Final = 0.02
FOUND: Final = REPORTS / "found"
TOLD: Final = REPORTS / "long.json"


class Hunt:
    """One cluster, whose doors are fed."""

    def __init__(
        self, clients: Clients, report: Report, seed: int, corpus: Path, tokens: Tokens, authority: Path
    ) -> None:
        self.report = report
        self.clients = clients
        doors = [*outside_doors(clients, corpus), *bearer_doors(clients, tokens), *inside_doors(clients)]
        self.feed = FastFeed(doors, seed, report.findings, FOUND)
        server = doors[0].server
        port = next(each for each in server.ports if each.ssl is not None)
        tls, hello = (Door(name, server, port, doors[0].frames, doors[0].sessions, 0) for name in ("tls", "hello"))
        self.tls = TlsFeed(self.feed, tls, hello, authority)
        self.servers: list[Server] = list({id(each.server): each.server for each in doors}.values())
        self.samples: list[Sample] = []
        self.told = TOLD

    def run(self, frames: int, seconds: float, check_each: int) -> None:
        """Until one of both is reached."""
        began = time.monotonic()
        while self.feed.fed < frames and self.report.seconds < seconds:
            self.clients.running.run(self._round(min(check_each, frames - self.feed.fed)), timeout_s=24 * 3_600)
            self.report.seconds = time.monotonic() - began
            self._look()
            self.write(self.told)
            if any(each.is_over for each in self.servers):
                self.report.findings["a server has ended, and its doors with it"] += 1
                return

    async def _round(self, frames: int) -> None:
        inside_tls = max(1, int(frames * TLS_SHARE))
        await self.feed.run(frames - inside_tls)
        await self.tls.run(inside_tls)

    def _look(self) -> None:
        own = self.servers[0]  # the listener's; inside, servers have links to each other, and what waits there
        eventually(lambda: not own.in_flight_bytes, "nothing is held for ever")
        eventually(lambda: len(own.connections) <= 1, "no connection stays")
        self.samples.append(self.clients.running.run(self._sampled()))
        rate = self.feed.fed / self.report.seconds
        print(f"{self.samples[-1]}, {rate:,.0f} a second, findings: {dict(self.report.findings)}", flush=True)

    async def _sampled(self) -> Sample:
        return Sample.of(self.feed.fed, asyncio.get_running_loop(), self.servers)

    def end(self) -> None:
        """Say what has grown, and whether a client is still served."""
        assert self.clients.ask(metadata(TOPIC)).topics[0].partitions, "an honest client is served"
        for each in growing(self.samples):
            self.report.findings[each] += 1

    def write(self, told: Path) -> None:
        """What is known by now, as JSON."""
        told.parent.mkdir(parents=True, exist_ok=True)
        found = {
            "seed": self.feed.seed,
            "seconds": self.report.seconds,
            "cpu_seconds": time.process_time(),
            "connections": self.feed.connections,
            "frames": [[door, key, count] for (door, key), count in sorted(self.feed.frames.items())],
            "outcomes": self.feed.outcomes,
            "refusals": self.report.refusals,
            "findings": self.report.findings,
            "samples": [vars(each) for each in self.samples],
            "saved": [each.name for each in self.feed.saved],
        }
        told.write_text(json.dumps(found, indent=1))


@contextmanager
def hunting(seed: int, corpus: Path) -> Iterator[Hunt]:
    """A cluster with a listener of each kind."""
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        tokens = Tokens(Path(folder), seed)
        authority, tls = certificates(Path(folder) / "tls")
        listeners = listeners_of(LISTENERS + ",SSL://127.0.0.1:0", None, {**tokens.settings, **tls})
        with fuzzed_cluster(report, listeners, f"{MECHANISMS},{MECHANISM}") as clients:
            yield Hunt(clients, report, seed, corpus, tokens, authority)


def replay(file: Path, corpus: Path) -> int:
    """Send what a file says, alone; how many findings that has."""
    data = file.read_bytes()
    door, frames = DOORS[data[0] % len(DOORS)], split(data[1:])[0]
    with hunting(0, corpus) as hunt:
        replays = hunt.tls.replay if door in ("tls", "hello") else hunt.feed.replay
        hunt.clients.running.run(replays(door, frames))
        print(f"{hunt.feed.fed} frames at {door}: {dict(hunt.feed.outcomes)}, findings: {dict(hunt.report.findings)}")
        return len(hunt.report.findings)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="end by then, however many frames that were"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check-each", type=int, default=CHECK_EACH, help="frames between two counts of what is held")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="what the guided fuzzer has kept")
    parser.add_argument("--told", type=Path, default=TOLD, help="where what is known goes, as JSON, at each count")
    parser.add_argument("--results", action="store_true", help="write tests/long_fuzz_results.md")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="send a saved session again")
    chosen = parser.parse_args()
    if chosen.replay:
        return bool(replay(chosen.replay, chosen.corpus))
    print(f"seed {chosen.seed}, {chosen.frames} frames, {chosen.check_each} between counts", flush=True)
    with hunting(chosen.seed, chosen.corpus) as hunt:
        hunt.told = chosen.told
        try:
            hunt.run(chosen.frames, chosen.seconds, chosen.check_each)
            hunt.end()
        finally:
            hunt.write(hunt.told)
    findings = hunt.report.findings
    if chosen.results:
        write_page(chosen.told, f"make fuzz-long FRAMES={chosen.frames} SEED={chosen.seed}")
    for door in DOORS:
        print(f"  {sum(count for (name, _), count in hunt.feed.frames.items() if name == door):>10} {door}")
    for text, count in findings.items():
        print(f"  {count:>10} {text}")
    print(*hunt.feed.saved, sep="\n")
    print("FINDINGS:" + ("" if findings else " none"))
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
