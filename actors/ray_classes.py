"""Ray's classes of the server actors, for those who create actors.

Nothing that a fork server imports may import this module: ``ray.remote`` draws a random id, and
processes that are forked afterwards would all draw the same ids from there on.
"""

from __future__ import annotations

from typing import Any

import ray

from raylog.actors.ray_actors import BrokerActor, ControllerActor, CoordinatorActor, PartitionReplicaActor

RAY_CLASSES: dict[str, Any] = {
    "replica": ray.remote(PartitionReplicaActor),
    "coordinator": ray.remote(CoordinatorActor),
    "broker": ray.remote(BrokerActor),
    "controller": ray.remote(ControllerActor),
}
