"""What a log needs of its topic's configuration, as typed values.

Owns no table of configs: names, validation and which are refused are
``raylog.configs.topic_configs``'s; what arrives here has been validated there. Kafka's word for
"never" and "unlimited", Long.MAX, is kept as the number; −1 likewise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from raylog.records.batch import TimestampType
from raylog.records.compression import Compression

NEVER = (1 << 63) - 1
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Kafka's topic configs under their names, its broker-wide ``producer.id.expiration.ms`` and
    those of its ``log.cleaner.*`` that shape a cleaning; defaults are Kafka's.

    ``compression`` None keeps the producer's codec. A compacted log rolls in time for
    ``max_compaction_lag_ms``: ``segment_ms`` is no longer than that.
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_bytes: int = -1
    retention_ms: int = 7 * DAY_MS
    max_message_bytes: int = (1 << 20) + 12
    flush_messages: int = NEVER
    flush_ms: int = NEVER
    file_delete_delay_ms: int = 60_000
    preallocate: bool = False
    deletes: bool = True
    compacts: bool = False
    delete_retention_ms: int = DAY_MS
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = NEVER
    cleaner_dedupe_buffer_bytes: int = 128 << 20
    cleaner_load_factor: float = 0.9
    cleaner_backoff_ms: int | None = None  # what the process was started with
    cleaner_bytes_per_second: float = float("inf")
    scrub_interval_ms: int | None = None  # what the process was started with
    scrub_bytes_per_second: float = 10 << 20
    compression: Compression | None = None
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    timestamp_before_max_ms: int = NEVER
    timestamp_after_max_ms: int = NEVER
    producer_id_expiration_ms: int = DAY_MS

    @classmethod
    def from_topic_configs(cls, configs: Mapping[str, str]) -> LogConfig:
        """From names and values as Kafka writes them; what is absent takes its default, what is not
        the log's is passed over.

        ValueError where a value cannot be understood.
        """
        default = cls()

        def number(name: str, otherwise: int) -> int:
            return int(configs[name]) if configs.get(name) else otherwise

        policies = {policy.strip() for policy in configs.get("cleanup.policy", "delete").split(",")}
        # The deprecated bound counts both ways where the newer ones are not set, as in Kafka.
        difference = number("message.timestamp.difference.max.ms", NEVER)
        before = number("message.timestamp.before.max.ms", NEVER)
        after = number("message.timestamp.after.max.ms", NEVER)
        compacts = "compact" in policies
        segment_ms = number("segment.ms", default.segment_ms)
        max_compaction_lag_ms = number("max.compaction.lag.ms", default.max_compaction_lag_ms)
        return cls(
            segment_bytes=number("segment.bytes", default.segment_bytes),
            segment_ms=min(segment_ms, max_compaction_lag_ms) if compacts else segment_ms,
            segment_jitter_ms=number("segment.jitter.ms", default.segment_jitter_ms),
            segment_index_bytes=number("segment.index.bytes", default.segment_index_bytes),
            index_interval_bytes=number("index.interval.bytes", default.index_interval_bytes),
            retention_bytes=number("retention.bytes", default.retention_bytes),
            retention_ms=number("retention.ms", default.retention_ms),
            max_message_bytes=number("max.message.bytes", default.max_message_bytes),
            flush_messages=number("flush.messages", default.flush_messages),
            flush_ms=number("flush.ms", default.flush_ms),
            file_delete_delay_ms=number("file.delete.delay.ms", default.file_delete_delay_ms),
            preallocate=configs.get("preallocate", "false").lower() == "true",
            deletes="delete" in policies,
            compacts=compacts,
            delete_retention_ms=number("delete.retention.ms", default.delete_retention_ms),
            min_cleanable_dirty_ratio=float(
                configs.get("min.cleanable.dirty.ratio") or default.min_cleanable_dirty_ratio
            ),
            min_compaction_lag_ms=number("min.compaction.lag.ms", default.min_compaction_lag_ms),
            max_compaction_lag_ms=max_compaction_lag_ms,
            cleaner_dedupe_buffer_bytes=number("log.cleaner.dedupe.buffer.size", default.cleaner_dedupe_buffer_bytes),
            cleaner_backoff_ms=int(text) if (text := configs.get("log.cleaner.backoff.ms")) else None,
            cleaner_load_factor=float(configs.get("log.cleaner.io.buffer.load.factor") or default.cleaner_load_factor),
            cleaner_bytes_per_second=float(
                configs.get("log.cleaner.io.max.bytes.per.second") or default.cleaner_bytes_per_second
            ),
            scrub_interval_ms=int(text) if (text := configs.get("log.scrub.interval.ms")) else None,
            scrub_bytes_per_second=float(
                configs.get("log.scrub.io.max.bytes.per.second") or default.scrub_bytes_per_second
            ),
            compression=_compression(configs.get("compression.type", "producer")),
            timestamp_type=_timestamp_type(configs.get("message.timestamp.type", "CreateTime")),
            timestamp_before_max_ms=before if before != NEVER else difference,
            timestamp_after_max_ms=after if after != NEVER else difference,
            producer_id_expiration_ms=number("producer.id.expiration.ms", default.producer_id_expiration_ms),
        )

    def timestamp_bound(self, side: Literal["before", "after"], wall_ms: int) -> int | None:
        """The oldest (newest) timestamp that a producer may set now; None without a bound."""
        bound = self.timestamp_before_max_ms if side == "before" else self.timestamp_after_max_ms
        if bound == NEVER:
            return None
        return wall_ms - bound if side == "before" else wall_ms + bound


def _compression(name: str) -> Compression | None:
    if name == "producer":
        return None
    return Compression.named(name)


def _timestamp_type(name: str) -> TimestampType:
    kinds = {"CreateTime": TimestampType.CREATE_TIME, "LogAppendTime": TimestampType.LOG_APPEND_TIME}
    if name not in kinds:
        raise ValueError(f"message.timestamp.type {name!r}: CreateTime or LogAppendTime")
    return kinds[name]
