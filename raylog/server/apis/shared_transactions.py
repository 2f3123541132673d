"""Transactions of several producers (private, 20020 to 20022): what each API asks of
``raylog.transactions``, and how its answer is put together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from raylog.transactions import requests
from raylog.transactions.requests import VERSION_2, TransactionReply, TransactionRequest
from raylog.wire.private import END_SHARED_TRANSACTION, JOIN_TRANSACTION, KEEP_TRANSACTION
from raylog.wire.private_transactions import (
    EndSharedTransactionRequest,
    EndSharedTransactionResponse,
    JoinTransactionRequest,
    JoinTransactionResponse,
    KeepTransactionRequest,
    KeepTransactionResponse,
)


class SharedTransactionApi(NamedTuple):
    api_key: int
    to_request: Callable[[Any], TransactionRequest]
    to_response: Callable[[Any, Sequence[TransactionReply], int], Any]


def _join(body: JoinTransactionRequest) -> TransactionRequest:
    return requests.JoinTransaction(body.transactional_id, body.producer_id, body.producer_epoch)


def _joined(body: Any, replies: Sequence[TransactionReply], version: int) -> JoinTransactionResponse:
    (reply,) = replies
    assert isinstance(reply, requests.TransactionJoined), reply
    return JoinTransactionResponse(reply.error, reply.producer_id, reply.producer_epoch)


def _keep(body: KeepTransactionRequest) -> TransactionRequest:
    return requests.KeepTransaction(body.transactional_id, body.producer_id, body.producer_epoch)


def _kept(body: Any, replies: Sequence[TransactionReply], version: int) -> KeepTransactionResponse:
    (reply,) = replies
    assert isinstance(reply, requests.TransactionKept), reply
    return KeepTransactionResponse(reply.error, reply.label)


def _end(body: EndSharedTransactionRequest) -> TransactionRequest:
    return requests.EndTransaction(
        body.transactional_id,
        body.producer_id,
        body.producer_epoch,
        body.committed,
        VERSION_2,
        is_shared=True,
        winners=tuple(body.winners),
        label=body.label,
    )


def _ended(body: Any, replies: Sequence[TransactionReply], version: int) -> EndSharedTransactionResponse:
    (reply,) = replies
    assert isinstance(reply, requests.TransactionEnded), reply
    return EndSharedTransactionResponse(reply.error, reply.producer_id, reply.producer_epoch)


APIS = (
    SharedTransactionApi(JOIN_TRANSACTION, _join, _joined),
    SharedTransactionApi(KEEP_TRANSACTION, _keep, _kept),
    SharedTransactionApi(END_SHARED_TRANSACTION, _end, _ended),
)
