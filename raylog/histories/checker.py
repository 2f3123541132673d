"""The checker of histories: what clients sent and polled, held against what a log promises.

The verdicts are those of Jepsen's workload for Kafka and similar systems. The log itself is not
needed: the acknowledgements and polls of a history say which record is at which offset, and that is
an order of everything that happened to a partition.

What it takes for granted:

- Each send has a value of its own (``operations.Value``).
- Nothing was removed from the topics: no compaction, retention or deletion of records.
- For lost writes: whoever polled furthest in a partition, or others together, began at its
  beginning.
- For unseen records: somebody polled to the end of each partition after the last acknowledgement.
  Give ``is_complete=False`` if nobody did.

What it does not look for: the order of real time between processes, and circles that need an edge
from a reader to the next writer (G2), which no level of Kafka's forbids.

Pure: no clock, randomness, threads or cluster. Equal histories have equal verdicts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from raylog.histories.anomalies import Anomaly, AnomalyKind, HistoryVerdict, IsolationModel, verdict_of
from raylog.histories.cycles import cycles
from raylog.histories.known_records import KnownRecords
from raylog.histories.operations import OperationEvent, paired
from raylog.histories.order_checks import PollOrder, nonmonotonic_sends
from raylog.histories.record_checks import (
    duplicates,
    inconsistent_offsets,
    lost_writes,
    unseen_records,
    wrong_reads,
)


def check(
    history: Iterable[OperationEvent],
    *,
    model: IsolationModel = IsolationModel.READ_COMMITTED,
    allowed: Collection[AnomalyKind] = (),
    is_complete: bool = True,
) -> HistoryVerdict:
    """Find every anomaly of a history.

    ``model`` is what the consumers were promised; what it allows is reported apart, as are the
    kinds of ``allowed`` (duplicates, for producers without idempotence). Without ``is_complete``,
    unseen records are not looked for.

    Raises ValueError for events that do not belong together (``operations.paired``).
    """
    operations = paired(history)
    known = KnownRecords(operations, model)
    found: list[Anomaly] = [
        *wrong_reads(known),
        *inconsistent_offsets(known),
        *duplicates(known),
        *lost_writes(known),
        *(unseen_records(known) if is_complete else ()),
        *PollOrder(known, model).anomalies(),
        *nonmonotonic_sends(known),
        *cycles(known),
    ]
    return verdict_of(found, {*model.allowed, *allowed}, operations)
