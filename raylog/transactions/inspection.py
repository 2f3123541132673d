"""What a coordinator tells of its transactional ids (DescribeTransactions, ListTransactions)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kio.schema.errors import ErrorCode

from raylog.transactions.records import TransactionState, TransactionValue
from raylog.transactions.requests import DescribedTransaction, ListedTransaction, ListTransactions, TransactionsListed
from raylog.transactions.transaction import PREPARED

_STATES = {state.title: state for state in TransactionState}


def described(image: Mapping[str, TransactionValue], transactional_id: str) -> DescribedTransaction:
    value = image.get(transactional_id)
    if value is None:
        return DescribedTransaction(ErrorCode.transactional_id_not_found.value, transactional_id)
    return DescribedTransaction(
        0,
        transactional_id,
        value.state.title,
        value.timeout_ms,
        value.start_timestamp,
        value.producer_id,
        value.producer_epoch,
        tuple(sorted(value.partitions)),
    )


def listed(image: Mapping[str, TransactionValue], request: ListTransactions, now_ms: int) -> TransactionsListed:
    """Those that pass the filters, by id. ``now_ms``: of the wall clock."""
    states = {_STATES[name] for name in request.states if name in _STATES}
    unknown = tuple(name for name in request.states if name not in _STATES)
    try:
        pattern = re.compile(request.id_pattern) if request.id_pattern else None
    except re.error:
        return TransactionsListed(ErrorCode.invalid_regular_expression.value)
    if request.states and not states:
        return TransactionsListed(0, (), unknown)
    found = tuple(
        ListedTransaction(transactional_id, value.producer_id, value.state.title)
        for transactional_id, value in sorted(image.items())
        if (not states or value.state in states)
        and (not request.producer_ids or value.producer_id in request.producer_ids)
        and (request.duration_ms < 0 or _lasts(value, now_ms) > request.duration_ms)
        and (pattern is None or pattern.fullmatch(transactional_id))
    )
    return TransactionsListed(0, found, unknown)


def _lasts(value: TransactionValue, now_ms: int) -> int:
    """How long it has been under way; −1 where nothing is."""
    if value.state in PREPARED or value.state is TransactionState.ONGOING:
        return now_ms - value.start_timestamp
    return -1
