"""raylog: a replicated, partitioned commit log for Ray and Spark with Apache Kafka's semantics.

::

    import raylog

    cluster = raylog.init()                       # embedded: three brokers under ./raylog-data
    cluster.admin().create_topics([raylog.NewTopic("events", partitions=6, replication_factor=3)])
    with cluster.producer() as producer:
        producer.send_batch("events", [b"a", b"b"])
    with cluster.consumer() as consumer:
        consumer.assign([raylog.TopicPartition("events", 0)])
        table = consumer.poll_batch()

Everything here is imported on first use, so that ``import raylog`` costs little and needs no Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylog.lazy_names import lazy_names
from raylog.version import VERSION

if TYPE_CHECKING:
    from raylog.client.admin.admin import NewTopic as NewTopic
    from raylog.client.groups.membership import RebalanceListener as RebalanceListener
    from raylog.client.groups.offset_commits import GroupMetadata as GroupMetadata
    from raylog.client.groups.offset_commits import OffsetAndMetadata as OffsetAndMetadata
    from raylog.client.sync import AdminClient as AdminClient
    from raylog.client.sync import Consumer as Consumer
    from raylog.client.sync import Producer as Producer
    from raylog.client.transactions.transaction import Transaction as Transaction
    from raylog.cluster import Cluster as Cluster
    from raylog.cluster import connect as connect
    from raylog.embedded_cluster import init as init
    from raylog.records.record import Record as Record
    from raylog.types import TopicPartition as TopicPartition

__version__ = VERSION

_HOMES = {
    "AdminClient": "raylog.client.sync",
    "Cluster": "raylog.cluster",
    "Consumer": "raylog.client.sync",
    "NewTopic": "raylog.client.admin.admin",
    "GroupMetadata": "raylog.client.groups.offset_commits",
    "OffsetAndMetadata": "raylog.client.groups.offset_commits",
    "Producer": "raylog.client.sync",
    "RebalanceListener": "raylog.client.groups.membership",
    "Record": "raylog.records.record",
    "TopicPartition": "raylog.types",
    "Transaction": "raylog.client.transactions.transaction",
    "connect": "raylog.cluster",
    "init": "raylog.embedded_cluster",
}
__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES, ("data", "errors", "spark", "testing"))
