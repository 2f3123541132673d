"""What an operator may set about the controller, as configs of brokers that are the cluster's as a
whole. Times in milliseconds.

``ControllerSettings`` is what holds now: one object that the parts of a controller share, so a
change reaches all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from raylog.configs.broker_configs import REPLICATION_FACTOR
from raylog.configs.settings import as_configs, setting, with_configs
from raylog.metadata.image import MetadataImage


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """``default_replication_factor`` None: three, or all brokers if fewer. ``starts_brokers`` and
    ``plans_hosts`` say what the controller does at all, and are its creator's: False where a test
    starts the processes.
    """

    heartbeat_interval_ms: int = setting("broker.heartbeat.interval.ms")
    session_timeout_ms: int = setting("broker.session.timeout.ms")
    return_within_ms: int = setting("broker.return.within.ms")
    redial_interval_ms: int = setting("broker.redial.interval.ms")
    pause_ms: int = setting("controller.pause.ms")
    first_leader_wait_ms: int = setting("first.leader.wait.ms")
    unclean_shutdown_election_wait_ms: int = setting("unclean.shutdown.election.wait.ms")
    high_watermark_record_interval_ms: int = setting("high.watermark.record.interval.ms")
    num_partitions: int = setting("num.partitions")
    default_replication_factor: int | None = None
    delete_topic_enable: bool = setting("delete.topic.enable")
    auto_leader_rebalance_enable: bool = setting("auto.leader.rebalance.enable")
    leader_imbalance_check_interval_seconds: int = setting("leader.imbalance.check.interval.seconds")
    leader_imbalance_per_broker_percentage: int = setting("leader.imbalance.per.broker.percentage")
    starts_brokers: bool = True
    plans_hosts: bool = True
    start_backoff_ms: int = setting("actor.start.backoff.ms")
    start_backoff_max_ms: int = setting("actor.start.backoff.max.ms")
    hello_timeout_ms: int = setting("actor.start.hello.timeout.ms")
    settling_ms_per_leader: int = setting("actor.start.settling.ms.per.leader")
    settling_max_ms: int = setting("actor.start.settling.max.ms")
    settling_min_ms: int = setting("actor.start.settling.min.ms")
    stable_after_ms: int = setting("actor.start.stable.after.ms")
    snapshot_bytes: int = setting("metadata.log.max.record.bytes.between.snapshots")

    def as_broker_configs(self) -> dict[str, str]:
        """These by their names from outside, as Kafka writes the values."""
        factor = self.default_replication_factor
        return as_configs(self) | ({} if factor is None else {REPLICATION_FACTOR: str(factor)})

    def __post_init__(self) -> None:
        assert self.heartbeat_interval_ms * 2 <= self.session_timeout_ms, f"one lost heartbeat would be a death: {self}"


class ControllerSettings:
    """``now``: what was set for all brokers, else what the controller was ``started_with``."""

    __slots__ = ("now", "started_with")

    def __init__(self, started_with: ControllerConfig) -> None:
        self.started_with = started_with
        self.now = started_with

    def follow(self, image: MetadataImage) -> None:
        """Something may have been set in the committed image."""
        self.now = self.in_image(image)

    def in_image(self, image: MetadataImage) -> ControllerConfig:
        """What holds by that image, for a decision that counts in what is not committed yet."""
        return with_configs(self.started_with, image.broker_configs.get(None, {}))
