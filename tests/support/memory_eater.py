"""A user's job whose one task eats memory until Ray's memory monitor ends it: ``python memory_eater.py RAY_ADDRESS``.

It connects to Ray and reads the Ray node's id and a number of bytes from its input; the task runs on that node and takes
so many bytes at most. Exit code 0: Ray ended the task. 1: Ray let it take all of that, and keep it for ``KEPT_S``.
"""

from __future__ import annotations

import sys
import time

KEPT_S = 10.0


def eat(most_bytes: int) -> int:
    """Take memory, page by page, until somebody minds."""
    eaten: list[bytearray] = []
    while sum(len(each) for each in eaten) < most_bytes:
        eaten.append(bytearray(64 << 20))
        eaten[-1][:: 1 << 12] = b"x" * len(eaten[-1][:: 1 << 12])  # each page is really there
    time.sleep(KEPT_S)
    return len(eaten)


def main() -> int:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    import raylog

    raylog.connect(ray_address=sys.argv[1])  # and this process to Ray, whatever Ray asks for
    node_id, most_bytes = sys.stdin.readline().split()
    strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
    task = ray.remote(eat).options(num_cpus=0, max_retries=0, scheduling_strategy=strategy).remote(int(most_bytes))
    try:
        ray.get(task)
    except (ray.exceptions.OutOfMemoryError, ray.exceptions.WorkerCrashedError) as error:
        print(f"Ray ended the task: {error}")
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
