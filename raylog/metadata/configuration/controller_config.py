"""What an operator may set about the controller, under Kafka's names where Kafka has them. Times in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    heartbeat_interval_ms: int = 2_000  # broker.heartbeat.interval.ms
    session_timeout_ms: int = 9_000  # broker.session.timeout.ms: silence for this long is death
    return_within_ms: int = 500  # a process that answers a dial has this long to bring its session back
    redial_interval_ms: int = 500  # while a process is unreachable or mute
    pause_ms: int = 500  # a liveness deadline seen later than this was missed by the controller itself
    first_leader_wait_ms: int = 1_000  # how long a new partition waits for its preferred leader once another is there
    unclean_shutdown_election_wait_ms: int = 10_000  # unclean.shutdown.election.wait.ms: for the logs of other members
    high_watermark_record_interval_ms: int = 3_000  # leaders' high watermarks are written down no more often
    num_partitions: int = 1  # num.partitions
    default_replication_factor: int | None = None  # default.replication.factor; None: three, or all brokers if fewer
    delete_topic_enable: bool = True  # delete.topic.enable
    auto_leader_rebalance_enable: bool = True  # auto.leader.rebalance.enable
    leader_imbalance_check_interval_ms: int = 300_000  # leader.imbalance.check.interval.seconds
    leader_imbalance_per_broker_percentage: int = 10  # leader.imbalance.per.broker.percentage: above it leaders go back
    starts_brokers: bool = True  # whether each registered broker gets a Broker actor
    plans_hosts: bool = True  # whether each registered disk gets its hosts; else its first topic plans them
    start_backoff_ms: int = 200  # doubles with each failure in a row
    start_backoff_max_ms: int = 30_000
    hello_timeout_ms: int = 30_000  # a created process that has not said hello by then is created again
    settling_ms_per_leader: int = 2  # a dead process is replaced so much later for each leader that moves, and no later
    settling_max_ms: int = 500  # than this
    settling_min_ms: int = 50  # where it would be less, the process starts at once
    stable_after_ms: int = 2_000  # a process that lived this long was no failed start: the next one comes at once
    snapshot_bytes: int = 20 << 20  # metadata.log.max.record.bytes.between.snapshots

    def as_broker_configs(self) -> dict[str, str]:
        """Those of these that Kafka's brokers have, as it writes them."""
        factor = self.default_replication_factor
        return ({} if factor is None else {"default.replication.factor": str(factor)}) | {
            "auto.leader.rebalance.enable": str(self.auto_leader_rebalance_enable).lower(),
            "broker.heartbeat.interval.ms": str(self.heartbeat_interval_ms),
            "broker.session.timeout.ms": str(self.session_timeout_ms),
            "delete.topic.enable": str(self.delete_topic_enable).lower(),
            "leader.imbalance.check.interval.seconds": str(self.leader_imbalance_check_interval_ms // 1_000),
            "leader.imbalance.per.broker.percentage": str(self.leader_imbalance_per_broker_percentage),
            "num.partitions": str(self.num_partitions),
            "unclean.shutdown.election.wait.ms": str(self.unclean_shutdown_election_wait_ms),
        }

    def __post_init__(self) -> None:
        assert self.heartbeat_interval_ms * 2 <= self.session_timeout_ms, f"one lost heartbeat would be a death: {self}"
