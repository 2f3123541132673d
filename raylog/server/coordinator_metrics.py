"""The metrics of the groups and transactions that a process coordinates."""

from __future__ import annotations

from raylog.groups.group import State
from raylog.groups.machine import GroupMachine
from raylog.metrics import table
from raylog.metrics.registry import Collector, Samples
from raylog.server.hosted_coordinators import HostedCoordinators
from raylog.transactions.machine import TransactionMachine
from raylog.transactions.records import TransactionState
from raylog.transactions.transaction import PREPARED

_STATES = {
    State.PREPARING_REBALANCE: table.PREPARING_GROUPS,
    State.COMPLETING_REBALANCE: table.COMPLETING_GROUPS,
    State.STABLE: table.STABLE_GROUPS,
    State.EMPTY: table.EMPTY_GROUPS,
}


def of_groups(coordinators: HostedCoordinators) -> Collector:
    """How far the groups have come that this process coordinates, and in what state they are."""

    def collect(samples: Samples) -> None:
        counts = coordinators.groups.counts
        samples.add(table.REBALANCES, counts.rebalances)
        samples.add(table.COMPLETED_REBALANCES, counts.completed_rebalances)
        for metric in (table.GROUPS, table.COMMITTED_OFFSETS, *_STATES.values()):
            samples.add(metric, 0)
        for machine in coordinators.groups.runtime.leading():
            assert isinstance(machine, GroupMachine), machine
            samples.add(table.GROUPS, len(machine.groups))
            for group_id, group in machine.groups.items():
                samples.add(table.GROUP_MEMBERS, len(group.members), group_id)
                if group.state in _STATES:
                    samples.add(_STATES[group.state], 1)
            for group_id, stored in machine.image.groups.items():
                samples.add(table.COMMITTED_OFFSETS, len(stored.offsets))
                for place, value in stored.offsets.items():
                    samples.add(table.CURRENT_OFFSET, value.offset, group_id, place.topic, str(place.partition))

    return collect


def of_transactions(coordinators: HostedCoordinators) -> Collector:
    """How many transactions are under way that this process coordinates, and how they ended."""

    def collect(samples: Samples) -> None:
        counts = coordinators.transaction_counts
        samples.add(table.COMMITTED_TRANSACTIONS, counts.committed)
        samples.add(table.ABORTED_TRANSACTIONS, counts.aborted)
        samples.add(table.TIMED_OUT_TRANSACTIONS, counts.timed_out)
        ids = under_way = ending = 0
        for machine in coordinators.transactions.leading():
            assert isinstance(machine, TransactionMachine), machine
            for value in machine.image.values():
                ids += 1
                under_way += value.state is TransactionState.ONGOING
                ending += value.state in PREPARED
        samples.add(table.TRANSACTIONAL_IDS, ids)
        samples.add(table.OPEN_TRANSACTIONS, under_way)
        samples.add(table.ENDING_TRANSACTIONS, ending)

    return collect
