"""One seed of the worlds in which a coordinator of transactions is without a cluster: producers of one id each, and a job whose tasks
write in one transaction."""

from __future__ import annotations

import time
import traceback
from collections import Counter

from raylog.simulator.replay import SeedOutcome
from tests.support.shared_jobs import SharedJob
from tests.support.transaction_world import World


def run_worlds(seed: int) -> SeedOutcome:
    start = time.process_time()
    failure = broke = None
    by_checker = False
    try:
        World(seed).run()
        SharedJob(seed).run()
    except Exception as error:
        failure = traceback.format_exc()
        by_checker = isinstance(error, AssertionError)
        broke = f"{type(error).__name__}: {error}"
    return SeedOutcome(seed, 0, Counter(), failure, broke, by_checker, seconds=time.process_time() - start)
