"""What a topic gets whose creation leaves its partitions or its replicas to the cluster (−1 in
CreateTopics).

A topic that creates itself leaves both. What an operator has set for all brokers holds, else what
the controller was started with. Without either a topic has one partition and a replica on each of
three brokers, or on all where there are fewer.

``min.insync.replicas``: whoever leaves the factor to the cluster leaves the safety of the records
to it. Where such a topic gets three replicas or more, its creation sets 2, so that an acknowledged
record is on two disks and one broker may be away. A value that the creation names wins, and so does
one that is set for all brokers. A creation that names its factor is Kafka's: nothing is added to
it.

Pure reading of an image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raylog.configs import broker_configs
from raylog.configs.broker_configs import (
    REPLICATION_FACTOR,
    REPLICATION_FACTOR_UNSET,
)
from raylog.metadata.configuration.controller_config import ControllerSettings
from raylog.metadata.image import MetadataImage

MIN_INSYNC_REPLICAS = "min.insync.replicas"
MIN_INSYNC_REPLICAS_OF_THREE = "2"


@dataclass(frozen=True, slots=True)
class CreationDefaults:
    """``replication_factor`` None: nobody has set one."""

    num_partitions: int = 1
    replication_factor: int | None = None

    def factor(self, image: MetadataImage) -> int:
        """The replication factor of a topic that names none."""
        return factor_unset(image) if self.replication_factor is None else self.replication_factor


def in_force(image: MetadataImage, settings: ControllerSettings) -> CreationDefaults:
    """What holds now."""
    held = settings.in_image(image)
    factor = held.default_replication_factor or 0
    return CreationDefaults(
        held.num_partitions,
        broker_configs.number(image.broker_configs, None, REPLICATION_FACTOR, default=factor) or None,
    )


def factor_unset(image: MetadataImage) -> int:
    """The factor where nobody has set one: three, or as many as there are brokers, at least 1.

    Brokers that are away count: a topic that is created meanwhile is theirs, too.
    """
    brokers = sum(1 for broker_id in image.brokers if image.disks_of(broker_id))
    return max(1, min(REPLICATION_FACTOR_UNSET, brokers))


def min_insync_replicas(image: MetadataImage, configs: Mapping[str, str], factor: int) -> dict[str, str]:
    """What is added to the configs of a topic that left its factor to the cluster, and has
    ``factor`` replicas now.
    """
    is_set = broker_configs.found(image.broker_configs, None, MIN_INSYNC_REPLICAS) is not None
    if factor < REPLICATION_FACTOR_UNSET or MIN_INSYNC_REPLICAS in configs or is_set:
        return {}
    return {MIN_INSYNC_REPLICAS: MIN_INSYNC_REPLICAS_OF_THREE}


def shown_default(image: MetadataImage, name: str, default: str) -> str:
    """The default of a broker's config as DescribeConfigs shows it."""
    return str(factor_unset(image)) if name == REPLICATION_FACTOR else default
