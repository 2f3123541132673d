"""The active controller's report on the cluster: the committed image, joined with what only it
knows of processes and disks.
"""

from __future__ import annotations

from raylog.control.session import Heartbeat
from raylog.metadata import views
from raylog.metadata.actors.actor_starts import Starts
from raylog.metadata.actors.disk_health import DiskHealth
from raylog.metadata.actors.liveness import Liveness
from raylog.metadata.actors.opened_logs import damaged_on, failures_of, mended_on, opened_logs
from raylog.metadata.image import MetadataImage
from raylog.metadata.requests import ClusterStatusReport
from raylog.metadata.sessions import Sessions


def status_report(
    image: MetadataImage,
    *,
    sessions: Sessions,
    liveness: Liveness,
    starts: Starts,
    disks: DiskHealth,
    controller_node: int,
    controller_epoch: int,
) -> ClusterStatusReport:
    def state_of(node_id: int) -> str:
        session, actor = sessions.of_node(node_id), image.actors.get(node_id)
        if session is not None:
            is_registered = actor is not None and actor.incarnation == session.incarnation
            return "live" if is_registered else "starting"  # it is said when a majority has it
        if liveness.is_silent(node_id):
            return "silent"
        return "starting" if starts.is_starting(node_id) else "dead"

    def usage_of(node_id: int) -> Heartbeat:
        session = sessions.of_node(node_id)
        return session.usage if session is not None else Heartbeat()

    return views.cluster_status(
        image,
        controller_node=controller_node,
        controller_epoch=controller_epoch,
        state_of=state_of,
        failures_of=lambda node_id: failures_of(image, sessions, node_id),
        damaged_on=lambda node_id: damaged_on(image, sessions, node_id),
        mended_on=lambda node_id: mended_on(image, sessions, node_id),
        usage_of=usage_of,
        logs=opened_logs(image, sessions),
        failed_disks=disks.reasons(),
    )
