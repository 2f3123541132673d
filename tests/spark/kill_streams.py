"""Kills the tasks and drivers of streams at every point, many times over, and prints a table of what was found.

    python tests/spark/kill_streams.py --times 10 [--exactly-once] [--only mid_task …]

Each time is one stream, from its first record to its end: at every point (``tests/support/killed_streams.py``) its task or its driver is
killed once, in another order each time, and at the end the topic that it wrote, read as a table, is held against a batch recomputation;
with ``--exactly-once`` its committed records are held against those that were to be copied.
The exit code is 1 if one differs. Nothing is written but the table.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from killed_streams import KILLS, KILLS_OF_TRANSACTIONS, StreamUnderFire


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the order of the kills")
    parser.add_argument("--only", nargs="+", choices=KILLS_OF_TRANSACTIONS, default=[])
    parser.add_argument("--exactly-once", action="store_true", help="a stream of copies, in transactions")
    parser.add_argument("--threads", type=int, default=2, help="of each driver's Spark")
    asked = parser.parse_args()
    kills = asked.only or (KILLS_OF_TRANSACTIONS if asked.exactly_once else KILLS)
    order = random.Random(asked.seed)
    spent_s: dict[str, list[float]] = {name: [] for name in kills}
    worker_ends_s: list[float] = []
    exact = 0
    for _ in range(asked.times):
        with StreamUnderFire(asked.threads, exactly_once=asked.exactly_once) as stream:
            for name in order.sample(kills, len(kills)):
                began_s = time.monotonic()
                getattr(stream, name)()
                spent_s[name].append(time.monotonic() - began_s)
                print(f"{name} {spent_s[name][-1]:.1f} s", file=sys.stderr, flush=True)
            said = stream.finish()
        exact += said["is_exact"]
        worker_ends_s += stream.worker_ends_s
        if not said["is_exact"]:
            print(f"differs: {said}", file=sys.stderr)
    print(f"{'killed':<22}{'times':>6}{'longest until settled again':>30}")
    for name, found in spent_s.items():
        print(f"{name.replace('_', ' '):<22}{len(found):>6}{max(found):>28.1f} s")
    print(f"equal to a batch recomputation: {exact} of {asked.times}")
    if worker_ends_s:
        print(f"workers that outlived their driver ended within {max(worker_ends_s):.2f} s, {len(worker_ends_s)} times")
    return 0 if exact == asked.times else 1


if __name__ == "__main__":
    sys.exit(main())
