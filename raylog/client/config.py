"""The options of producers, consumers and admin clients: Kafka's names, each honoured or refused,
never ignored.

``ProducerConfig.parse({"linger.ms": 5}, {"acks": "all"})`` takes any number of mappings (a later
one wins) and accepts ``_`` for ``.``. A name that Kafka does not have is an error that suggests the
nearest one; a name that Kafka has but that means nothing on raylog's own link, or comes with a
later part of raylog, is an error that gives the reason (``raylog/client/refused_options.py``).
Values are coerced as from a properties file (``"5"``, ``"true"``); what cannot be coerced is an
error that names the option.

Some defaults differ from Kafka's table. ``batch.size`` is 1 MiB instead of 16 KiB: Kafka's figure
is sized for buffers that the Java client allocates ahead, ours grow as they fill and a batch is
sent as soon as ``linger.ms`` allows anyhow. ``send.buffer.bytes`` and ``receive.buffer.bytes`` are
−1 (the kernel tunes them). ``allow.auto.create.topics`` is false: topics are created on purpose.
``enable.auto.commit`` is true with a ``group.id`` and false without, as in Kafka. One option is
raylog's own: with ``fetch.from=nearest``, the default, a consumer reads from a replica in sync on
its own machine, or in its ``client.rack``, where the leader is farther away; with ``leader`` never.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from raylog.client.groups.subscriptions import assignors_of
from raylog.client.refused_options import (
    ADMIN_REFUSED,
    CONSUMER_REFUSED,
    FOREIGN_NAMES,
    PRODUCER_REFUSED,
)
from raylog.errors import ConfigError

KAFKA_BATCH_SIZE = 16384
MAX_IN_FLIGHT_WITH_IDEMPOTENCE = 5
INT32_MAX = 2**31 - 1

Milliseconds = float


class ClientConfig(BaseModel):
    """What the three kinds of client have in common. Instances are frozen and pickle."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)
    refused: ClassVar[Mapping[str, str]] = {}
    kind: ClassVar[str] = "client"

    client_id: str = ""
    request_timeout_ms: Milliseconds = Field(30_000, gt=0)
    retry_backoff_ms: Milliseconds = Field(100, ge=0)
    retry_backoff_max_ms: Milliseconds = Field(1_000, ge=0)
    reconnect_backoff_ms: Milliseconds = Field(50, ge=0)
    reconnect_backoff_max_ms: Milliseconds = Field(1_000, ge=0)
    connections_max_idle_ms: Milliseconds = Field(540_000, ge=-1)
    metadata_max_age_ms: Milliseconds = Field(300_000, ge=0)
    socket_connection_setup_timeout_ms: Milliseconds = Field(10_000, gt=0)
    socket_connection_setup_timeout_max_ms: Milliseconds = Field(30_000, gt=0)
    send_buffer_bytes: int = Field(-1, ge=-1)
    receive_buffer_bytes: int = Field(-1, ge=-1)

    @classmethod
    def parse(cls, *sources: Mapping[str, Any] | None) -> Self:
        """The config of these mappings; raises ConfigError for an unknown name, a refused one or a
        bad value.
        """
        given: dict[str, Any] = {}
        for source in sources:
            seen: dict[str, str] = {}
            for name, value in (source or {}).items():
                field = name.replace(".", "_")
                if field in seen:
                    raise ConfigError(f"{seen[field]!r} and {name!r} are the same option: give one of them")
                seen[field] = name
                given[field] = value
        for field, value in given.items():
            cls._check_name(field, value)
        try:
            return cls(**given)
        except ValidationError as error:
            raise ConfigError(cls._explain(error)) from None

    @classmethod
    def names(cls) -> list[str]:
        """Every option that is honoured, by Kafka's name."""
        return sorted(field.replace("_", ".") for field in cls.model_fields)

    @classmethod
    def _check_name(cls, field: str, value: Any) -> None:
        name = field.replace("_", ".")
        if field in cls.model_fields:
            return
        reason = cls.refused.get(name) or next(
            (text for prefix, text in cls.refused.items() if prefix.endswith("*") and name.startswith(prefix[:-1])),
            None,
        )
        if reason is not None:
            raise ConfigError(f"a {cls.kind} does not accept {name}: {reason}")
        if name in FOREIGN_NAMES:
            raise ConfigError(f"unknown {cls.kind} option {name!r}: Kafka's name for it is {FOREIGN_NAMES[name]!r}")
        close = difflib.get_close_matches(name, cls.names(), n=1, cutoff=0.6)
        hint = f"did you mean {close[0]!r}?" if close else f"known options: {', '.join(cls.names())}"
        raise ConfigError(f"unknown {cls.kind} option {name!r} (value {value!r}): {hint}")

    @staticmethod
    def _explain(error: ValidationError) -> str:
        lines = []
        for detail in error.errors():
            message = detail["msg"].removeprefix("Value error, ")
            if detail["loc"]:
                lines.append(f"{str(detail['loc'][0]).replace('_', '.')}={detail['input']!r}: {message}")
            else:
                lines.append(message)
        return "; ".join(lines)


class CommonConfig(ClientConfig):
    """The options that one may give to all clients of a cluster at once."""

    refused: ClassVar[Mapping[str, str]] = ADMIN_REFUSED


class ProducerConfig(ClientConfig):
    """Kafka's producer table. ``idempotent`` is the outcome of ``enable.idempotence`` and what it
    conflicts with.
    """

    refused: ClassVar[Mapping[str, str]] = PRODUCER_REFUSED
    kind: ClassVar[str] = "producer"

    acks: int = -1
    enable_idempotence: bool | None = None
    retries: int = Field(INT32_MAX, ge=0)
    max_in_flight_requests_per_connection: int = Field(5, ge=1)
    delivery_timeout_ms: Milliseconds = Field(120_000, ge=0)
    linger_ms: Milliseconds = Field(0, ge=0)
    batch_size: int = Field(1_048_576, ge=0)
    buffer_memory: int = Field(33_554_432, ge=0)
    max_block_ms: Milliseconds = Field(60_000, ge=0)
    max_request_size: int = Field(1_048_576, ge=0)
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    partitioner_class: Any = None
    partitioner_ignore_keys: bool = False
    partitioner_adaptive_partitioning_enable: bool = True
    partitioner_availability_timeout_ms: Milliseconds = Field(0, ge=0)
    metadata_max_idle_ms: Milliseconds = Field(300_000, ge=5_000)
    interceptor_classes: Any = ()
    key_serializer: Any = None
    value_serializer: Any = None
    transactional_id: str | None = None
    transaction_timeout_ms: Milliseconds = Field(60_000, gt=0, le=INT32_MAX)

    @field_validator("acks", mode="before")
    @classmethod
    def _acks(cls, value: Any) -> Any:
        if value in ("all", "-1", -1):
            return -1
        if value in (0, 1, "0", "1") and not isinstance(value, bool):
            return int(value)
        raise ValueError("acks must be 0, 1 or 'all'")

    @field_validator("compression_type", mode="before")
    @classmethod
    def _compression(cls, value: Any) -> Any:
        return "none" if value is None else value

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        least = self.linger_ms + self.request_timeout_ms
        if self.delivery_timeout_ms < least:
            if "delivery_timeout_ms" in self.model_fields_set:
                raise ValueError(
                    f"delivery.timeout.ms={self.delivery_timeout_ms:g} must be at least linger.ms + request.timeout.ms = {least:g}"
                )
            object.__setattr__(self, "delivery_timeout_ms", least)
        if self.enable_idempotence and (conflict := self._idempotence_conflict()):
            raise ValueError(f"enable.idempotence=true needs {conflict}")
        if self.transactional_id is not None:
            self._check_transactional()
        return self

    def _check_transactional(self) -> None:
        if not self.transactional_id:
            raise ValueError("transactional.id is empty: name the producer, or leave it out")
        if self.enable_idempotence is False:
            raise ValueError("transactional.id needs enable.idempotence=true, which is the default")
        if conflict := self._idempotence_conflict():
            raise ValueError(f"transactional.id needs {conflict}")

    def _idempotence_conflict(self) -> str | None:
        if self.acks != -1:
            return f"acks=all, not acks={self.acks}"
        if self.retries == 0:
            return "retries above 0"
        if self.max_in_flight_requests_per_connection > MAX_IN_FLIGHT_WITH_IDEMPOTENCE:
            return f"max.in.flight.requests.per.connection of at most {MAX_IN_FLIGHT_WITH_IDEMPOTENCE}"
        return None

    @property
    def idempotent(self) -> bool:
        """On unless switched off; a conflicting setting switches it off silently, as in Kafka."""
        return self.enable_idempotence is not False and self._idempotence_conflict() is None

    @property
    def sticky_bytes(self) -> int:
        """How much goes to one partition before keyless records move to the next (``batch.size``,
        at most Kafka's default).
        """
        return self.batch_size if "batch_size" in self.model_fields_set else KAFKA_BATCH_SIZE


_OF_A_GROUP = frozenset(
    {
        "auto_commit_interval_ms",
        "exclude_internal_topics",
        "group_protocol",
        "group_instance_id",
        "heartbeat_interval_ms",
        "max_poll_interval_ms",
        "partition_assignment_strategy",
        "session_timeout_ms",
    }
)


class ConsumerConfig(ClientConfig):
    """Kafka's consumer table. What concerns groups is refused without a ``group.id``."""

    refused: ClassVar[Mapping[str, str]] = CONSUMER_REFUSED
    kind: ClassVar[str] = "consumer"

    auto_offset_reset: Literal["latest", "earliest", "none"] = "latest"
    group_id: str | None = None
    group_instance_id: str | None = None
    group_protocol: Literal["classic"] = "classic"
    partition_assignment_strategy: Any = ("range", "cooperative-sticky")
    session_timeout_ms: Milliseconds = Field(45_000, gt=0, le=INT32_MAX)
    heartbeat_interval_ms: Milliseconds = Field(3_000, gt=0, le=INT32_MAX)
    max_poll_interval_ms: Milliseconds = Field(300_000, gt=0, le=INT32_MAX)
    enable_auto_commit: bool | None = None
    auto_commit_interval_ms: Milliseconds = Field(5_000, ge=0)
    exclude_internal_topics: bool = True
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    max_poll_records: int = Field(500, ge=1)
    client_rack: str = ""
    fetch_from: Literal["nearest", "leader"] = "nearest"
    fetch_min_bytes: int = Field(1, ge=0)
    fetch_max_wait_ms: Milliseconds = Field(500, ge=0)
    fetch_max_bytes: int = Field(52_428_800, ge=0)
    max_partition_fetch_bytes: int = Field(1_048_576, ge=0)
    allow_auto_create_topics: bool = False
    check_crcs: bool = True
    default_api_timeout_ms: Milliseconds = Field(60_000, ge=0)
    interceptor_classes: Any = ()
    key_deserializer: Any = None
    value_deserializer: Any = None

    @field_validator("partition_assignment_strategy")
    @classmethod
    def _assignors(cls, value: Any) -> Any:
        assignors_of(value)
        return value

    @property
    def reads_committed(self) -> bool:
        """Whether records of aborted and open transactions are left out."""
        return self.isolation_level == "read_committed"

    @property
    def auto_commits(self) -> bool:
        return self.group_id is not None and self.enable_auto_commit is not False

    @model_validator(mode="after")
    def _options_agree(self) -> Self:
        if self.group_id == "":
            raise ValueError("group.id is empty: name the group, or leave it out")
        if self.group_instance_id == "":
            raise ValueError("group.instance.id is empty: name the member, or leave it out")
        if self.group_id is None:
            if self.enable_auto_commit:
                raise ValueError("enable.auto.commit=true needs a group.id")
            for field in _OF_A_GROUP & self.model_fields_set:
                raise ValueError(f"{field.replace('_', '.')} needs a group.id")
        elif self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ValueError(
                f"heartbeat.interval.ms={self.heartbeat_interval_ms:g} must be below "
                f"session.timeout.ms={self.session_timeout_ms:g}; a third of it is usual"
            )
        if self.allow_auto_create_topics:
            raise ValueError(
                "allow.auto.create.topics=true: topics are created with AdminClient.create_topics on raylog's own link"
            )
        return self


class AdminConfig(ClientConfig):
    """Kafka's admin table."""

    refused: ClassVar[Mapping[str, str]] = ADMIN_REFUSED
    kind: ClassVar[str] = "admin client"

    default_api_timeout_ms: Milliseconds = Field(60_000, ge=0)
    retries: int = Field(INT32_MAX, ge=0)


def listed(value: Any) -> Sequence[Any]:
    """An option that Kafka writes as a comma-separated list, as a sequence."""
    if value is None:
        return ()
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value if isinstance(value, (list, tuple)) else [value]


def instance_of(value: Any, builtin: Mapping[str, Callable[[], Any]], option: str) -> Any:
    """What an option that names a class stands for: a built-in name, ``module:Class``, a class, or
    an object as it is.
    """
    if isinstance(value, str):
        short = value.rsplit(".", 1)[-1]
        if short in builtin and (short == value or value.startswith("org.apache.kafka.")):
            return builtin[short]()
        return _imported(value, option)()
    return value() if isinstance(value, type) else value


def _imported(path: str, option: str) -> Any:
    import importlib

    module, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{option}={path!r} cannot be imported ({error}): give 'module:Class', a class or an object"
        ) from error
