"""Questions about the cluster as it is committed. They are answered at once and decide nothing."""

from __future__ import annotations

from typing import assert_never

from raylog.metadata import views
from raylog.metadata.actors.actor_starts import Starts
from raylog.metadata.actors.disk_health import DiskHealth
from raylog.metadata.actors.liveness import Liveness
from raylog.metadata.configuration.config_decisions import describe_configs
from raylog.metadata.configuration.config_requests import DescribeConfigs
from raylog.metadata.configuration.controller_config import ControllerSettings
from raylog.metadata.image import MetadataImage
from raylog.metadata.requests import ClusterStatus, ControllerReply, DescribeCluster, DescribeTopics
from raylog.metadata.sessions import Sessions
from raylog.metadata.status_report import status_report
from raylog.metadata.users.credential_decisions import describe_credentials
from raylog.metadata.users.credential_requests import DescribeUserScramCredentials
from raylog.metadata.users.quota_decisions import describe_quotas
from raylog.metadata.users.quota_requests import DescribeClientQuotas
from raylog.metadata.users.token_decisions import describe_tokens
from raylog.metadata.users.token_requests import DescribeDelegationTokens

Question = (
    DescribeTopics
    | DescribeCluster
    | DescribeConfigs
    | ClusterStatus
    | DescribeUserScramCredentials
    | DescribeClientQuotas
    | DescribeDelegationTokens
)


class Questions:
    """What is not in the image (sessions, liveness, starts, disks) is read as it stands."""

    __slots__ = ("_committed", "_disks", "_epoch", "_liveness", "_node", "_sessions", "_settings", "_starts")

    def __init__(
        self,
        committed: MetadataImage,
        settings: ControllerSettings,
        sessions: Sessions,
        liveness: Liveness,
        starts: Starts,
        disks: DiskHealth,
        *,
        controller_node: int,
        controller_epoch: int,
    ) -> None:
        self._committed = committed
        self._settings = settings
        self._sessions = sessions
        self._liveness = liveness
        self._starts = starts
        self._disks = disks
        self._node = controller_node
        self._epoch = controller_epoch

    def answer(self, request: Question) -> ControllerReply:
        match request:
            case DescribeTopics():
                return views.describe_topics(self._committed, request, controller_node=self._node)
            case DescribeCluster():
                return views.describe_cluster(self._committed, controller_node=self._node, controller_epoch=self._epoch)
            case DescribeUserScramCredentials():
                return describe_credentials(self._committed, request)
            case DescribeClientQuotas():
                return describe_quotas(self._committed, request)
            case DescribeDelegationTokens():
                return describe_tokens(self._committed, request)
            case DescribeConfigs():
                static = self._settings.started_with.as_broker_configs()
                return describe_configs(self._committed, request, static=static)
            case ClusterStatus():
                return status_report(
                    self._committed,
                    sessions=self._sessions,
                    liveness=self._liveness,
                    starts=self._starts,
                    disks=self._disks,
                    controller_node=self._node,
                    controller_epoch=self._epoch,
                )
            case _:
                assert_never(request)
