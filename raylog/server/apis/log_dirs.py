"""DescribeLogDirs at a process that holds replicas: how many bytes each of them has on its disk.

Kafka's broker answers for all its directories; here each process answers for what it holds, under
the one directory that it has. The lag of a replica on its way from another disk (``is_future_key``)
is what it lacks of the leader's committed records, as it knew last; −1: it has not heard of any.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from raylog.kafka.table import DESCRIBE_LOG_DIRS
from raylog.replication.replica import Replica
from raylog.server.apis.entities import CODES, NO_DELAY, build, module_of, response_class
from raylog.types import TopicIdPartition
from raylog.types import is_future as is_future_id


def entity(request: Any, version: int, replicas: Mapping[TopicIdPartition, Replica], disk: str) -> Any:
    """The answer: of the topics and partitions that are asked for (None: of all) those that are
    held here and open.
    """
    cls = response_class(DESCRIBE_LOG_DIRS, version)
    module = module_of(cls)
    wanted = None if request.topics is None else {(each.topic, n) for each in request.topics for n in each.partitions}
    found: dict[str, list[Any]] = {}
    for replica in replicas.values():
        name, partition, log = replica.assignment.topic, replica.id.partition, replica.log
        if log is None or (wanted is not None and (name, partition) not in wanted):
            continue
        is_future = is_future_id(replica.me)
        lag = replica.follower.lag if is_future and replica.follower is not None else 0
        found.setdefault(name, []).append(
            module.DescribeLogDirsPartition(
                partition_index=partition, partition_size=log.size_bytes, offset_lag=lag, is_future_key=is_future
            )
        )
    topics = tuple(
        module.DescribeLogDirsTopic(name=name, partitions=tuple(parts)) for name, parts in sorted(found.items())
    )
    try:
        facts = os.statvfs(disk)
        total, usable = facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize
    except OSError:
        total = usable = -1
    result = build(
        module.DescribeLogDirsResult,
        error_code=CODES[0],
        log_dir=disk,
        topics=topics,
        total_bytes=total,
        usable_bytes=usable,
        is_cordoned=False,
    )
    return build(cls, throttle_time=NO_DELAY, error_code=CODES[0], results=(result,))
