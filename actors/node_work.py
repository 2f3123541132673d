"""Work on nodes of a Ray, as Ray tasks there. A task goes to the node that is named (and fails if that
node has gone); it needs no CPU.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raylog.disks.link_file import Links
from raylog.errors import ClusterError, DiskError, RaylogError
from raylog.placement.groups import lend, live_nodes
from raylog.placement.lending import Folders, LentDisk, folders_of_nodes
from raylog.server import disk_work

TASK_TIMEOUT_S = 30.0


@ray.remote(num_cpus=0, max_retries=0)
def _do(work: Callable[[], Any]) -> Any:
    return work()


def on_nodes(work: Sequence[tuple[str, Callable[[], Any]]]) -> list[Any]:
    """Each piece of work on the node with that id, all at once; what it returned or raised, in their
    order.
    """
    asked: list[Any] = [
        _do.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(piece)
        for node, piece in work
    ]
    ready, late = ray.wait(asked, num_returns=len(asked), timeout=TASK_TIMEOUT_S) if asked else ([], [])
    for each in late:
        ray.cancel(each)
    found: list[Any] = []
    for each in asked:
        if each not in ready:
            found.append(ClusterError(f"its node did not answer within {TASK_TIMEOUT_S:.0f} s"))
            continue
        try:
            found.append(ray.get(each))
        except (RaylogError, ray.exceptions.RayError) as error:
            found.append(cause_of(error))
    return found


def cause_of(error: Exception) -> Exception:
    """What a task or actor raised, without Ray's traceback in its text."""
    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else None
    return cause if isinstance(cause, Exception) else error


def lend_folders(disks: Mapping[str, Folders], links: Links | None = None) -> list[LentDisk]:
    """Have the nodes of this Ray lend these folders to the cluster on it. Blank folders are given
    their directory ids. ``links``: how links inside have TLS, by files of each node; None: as the
    folders say. All are lent, or none. Idempotent.

    Raises ClusterError as ``folders_of_nodes`` does, and DiskError for a folder that its node
    cannot use, or that is a copy or another name of another one.
    """
    chosen = folders_of_nodes(disks, live_nodes())
    told = on_nodes([(node.node_id, partial(disk_work.offer, path, links, node.address)) for node, path in chosen])
    lent: dict[uuid.UUID, LentDisk] = {}
    for (node, path), found in zip(chosen, told, strict=True):
        if isinstance(found, Exception):
            raise DiskError(f"the Ray node {node} cannot lend {path}: {found}") from found
        directory_id, place = found
        if directory_id in lent:
            other = lent[directory_id]
            raise DiskError(
                f"{path} of the Ray node {node} has the directory id of {other.path} of {other.address}: one is a copy or another "
                "name, leave it out"
            )
        lent[directory_id] = LentDisk(directory_id, node.node_id, node.address, place)
    for each in lent.values():
        lend(each)
    return list(lent.values())
