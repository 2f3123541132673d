"""What a project's tests can use of raylog's: ``broker``, Kafka inside the test's process
(docs/testing.md). ``raylog.histories`` says what is wrong with what clients saw.

``verifiable_load`` and ``ledger`` are raylog's own: a load on real processes that knows what has to
be in the log.

Nothing here imports Ray, and importing this package imports none of it: pytest loads
``pytest_plugin`` in every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raylog.testing.kafka import AsyncKafka as AsyncKafka
    from raylog.testing.kafka import Kafka as Kafka
    from raylog.testing.kafka import broker as broker

__all__ = ["AsyncKafka", "Kafka", "broker"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from raylog.testing import kafka

        return getattr(kafka, name)
    raise AttributeError(f"module 'raylog.testing' has no attribute {name!r}")
