"""Requests that alter configs, carried out: the records, and what follows from the new values in
the same batch.

What the records are is ``config_decisions``' matter. Where a ``min.insync.replicas`` changes, what
was promised about the old one is void, and an unclean election may be allowed from now on.
"""

from __future__ import annotations

from collections.abc import Sequence

from raylog.metadata.configuration import effective_configs
from raylog.metadata.configuration.config_decisions import decide_alter_configs, decide_static_configs
from raylog.metadata.configuration.config_requests import AlterConfigs, ConfigsAltered, SetStaticConfigs
from raylog.metadata.events import SendControllerReply
from raylog.metadata.ledger import Ledger
from raylog.metadata.partitions.leadership import Leadership
from raylog.metadata.partitions.partition_decisions import PartitionDecisions
from raylog.metadata.records import BROKERS_CONFIGS, Record, StaticConfigsChanged, TopicConfigChanged
from raylog.metadata.sessions import Sessions


class ConfigAlterations:
    __slots__ = ("_leadership", "_ledger", "_partitions", "_sessions")

    def __init__(
        self, ledger: Ledger, sessions: Sessions, partitions: PartitionDecisions, leadership: Leadership
    ) -> None:
        self._ledger = ledger
        self._sessions = sessions
        self._partitions = partitions
        self._leadership = leadership

    def alter(self, token: int, request: AlterConfigs, now_ms: int) -> None:
        """Decide it; the request of ``token`` is answered when that is committed."""
        records, reply = decide_alter_configs(self._ledger.latest, request, cores=self._cores())
        self._carry_out(token, records, reply, now_ms)

    def set_static(self, token: int, request: SetStaticConfigs, now_ms: int) -> None:
        """Decide it; the request of ``token`` is answered when that is committed."""
        records, reply = decide_static_configs(self._ledger.latest, request, cores=self._cores())
        self._carry_out(token, records, reply, now_ms)

    def _cores(self) -> int:
        """Of the largest machine that a session tells of; 0: of none."""
        return max((session.usage.cores for session in self._sessions.all()), default=0)

    def _carry_out(self, token: int, records: Sequence[Record], reply: ConfigsAltered, now_ms: int) -> None:
        latest = self._ledger.latest
        topics = {record.topic_id for record in records if isinstance(record, TopicConfigChanged)}
        changed = [record for record in records if isinstance(record, BROKERS_CONFIGS)]
        if any(
            isinstance(record, StaticConfigsChanged) or effective_configs.shapes_logs(record.key) for record in changed
        ):
            topics = set(latest.topics)
        before = self._partitions.minimums(topics)
        self._ledger.add(*records)
        self._ledger.hold(SendControllerReply(token, reply))
        if changed:
            self._leadership.begin(now_ms)
        for id, minimum in self._partitions.minimums(topics).items():
            if minimum != before[id]:
                self._partitions.change_minimum(id)
        self._partitions.settle(before, now_ms)
