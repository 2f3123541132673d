"""What Ray knows of the node that this process runs on: whether it is about to be taken away.

An autoscaler that lost a machine to its provider (preemption), and ``ray drain-node``, announce it
to Ray's head some time ahead. Asking blocks while the head is away, so it is done in a thread. Ray
tells nobody of its own accord; its own libraries ask, too.
"""

from __future__ import annotations

from typing import Any

import ray

from raylog.placement.ray_private import draining_nodes


def node_is_leaving() -> bool:
    """Whether this process's node is being drained. Raises what Ray raises; blocks while the head
    is away.
    """
    untyped: Any = ray
    return untyped.get_runtime_context().get_node_id() in draining_nodes()
