"""How long a partition pauses after a request of its own has failed."""

from __future__ import annotations

from random import Random

from kio.schema.errors import ErrorCode

from raylog.client.config import ProducerConfig
from raylog.client.links.metadata import LEADER_ERRORS

_FIRST_RETRY_MS = 20.0


def pause_ms(config: ProducerConfig, failures: int, code: ErrorCode, chance: Random) -> float:
    """After so many failures in a row, this one included."""
    if code is ErrorCode.out_of_order_sequence_number or code is ErrorCode.unknown_producer_id:
        return 0.0 if failures <= 1 else config.retry_backoff_ms
    if code in LEADER_ERRORS and failures <= 1:
        return min(_FIRST_RETRY_MS, config.retry_backoff_ms)
    doublings = min(max(failures - 2, 0), 16)
    longest = max(config.retry_backoff_ms, config.retry_backoff_max_ms)
    return float(min(config.retry_backoff_ms * 2**doublings, longest) * chance.uniform(0.8, 1.2))
