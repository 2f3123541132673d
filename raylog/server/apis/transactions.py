"""The APIs of transaction coordinators: what each asks of ``raylog.transactions``, and how its answer
is put together.

PRODUCER_FENCED came with InitProducerId 4 and version 2 of the others; before, it is
INVALID_PRODUCER_EPOCH. AddPartitionsToTxn is a client's up to version 3; from 4 on a leader asks
about several transactions, to add partitions or only to verify them, and TRANSACTION_ABORTABLE came
with version 5. EndTxn from version 5 on is that of clients whose epoch rises with every end. The
offsets of a group are one more partition, that of ``__consumer_offsets``.

Each entry of ``APIS`` turns a request into those of ``raylog.transactions``, one for each
transactional id that it names (ListTransactions: one, to be asked of each partition), and their
answers, in that order, into the answer.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from raylog.kafka import table
from raylog.kafka.spec import ApiSpec
from raylog.offsets_topic import OFFSETS_TOPIC, partition_for
from raylog.server.apis.api import answer
from raylog.server.apis.entities import CODES, NO_DELAY, build, instant, milliseconds
from raylog.transactions import requests
from raylog.transactions.requests import VERSION_2, TransactionReply, TransactionRequest
from raylog.types import TopicPartition

PRODUCER_FENCED = ErrorCode.producer_fenced.value
TRANSACTION_ABORTABLE = ErrorCode.transaction_abortable.value
_FROM_LEADERS = 4  # the version of AddPartitionsToTxn from which leaders send it
_KNOWS_ABORTABLE = 5


class TransactionApi(NamedTuple):
    spec: ApiSpec
    to_requests: Callable[[Any, int], list[TransactionRequest]]
    to_entity: Callable[[Any, Sequence[TransactionReply], int], Any]


def _code(error: int, version: int, *, fenced_from: int = 2) -> ErrorCode:
    """As that version of an API calls the error."""
    if error == PRODUCER_FENCED and version < fenced_from:
        return ErrorCode.invalid_producer_epoch
    return CODES[error]


# ------------------------------------------------------------------ producers


def _init_request(body: Any, version: int) -> list[TransactionRequest]:
    timeout_ms = milliseconds(body.transaction_timeout)
    producer = (body.producer_id, body.producer_epoch) if version >= 3 else (-1, -1)
    return [requests.InitTransactionalId(body.transactional_id or "", timeout_ms, *producer)]


def _init_entity(body: Any, replies: Sequence[TransactionReply], version: int) -> Any:
    (reply,) = replies
    assert isinstance(reply, requests.TransactionalIdInitialised), reply
    return build(
        answer(table.INIT_PRODUCER_ID, version)[0],
        throttle_time=NO_DELAY,
        error_code=_code(reply.error, version, fenced_from=4),
        producer_id=reply.producer_id,
        producer_epoch=reply.producer_epoch,
    )


# ------------------------------------------------------------------ partitions


def _partitions(topics: Iterable[Any]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic.name, number) for topic in topics for number in topic.partitions)


def _add_request(body: Any, version: int) -> list[TransactionRequest]:
    if version < _FROM_LEADERS:
        return [
            requests.AddPartitions(
                body.v3_and_below_transactional_id,
                body.v3_and_below_producer_id,
                body.v3_and_below_producer_epoch,
                _partitions(body.v3_and_below_topics),
            )
        ]
    asked: list[TransactionRequest] = []
    for each in body.transactions:
        producer = each.transactional_id, each.producer_id, each.producer_epoch, _partitions(each.topics)
        if each.verify_only:
            asked.append(requests.VerifyPartitions(*producer))
        else:
            asked.append(requests.AddPartitions(*producer, version=VERSION_2))
    return asked


def _add_entity(body: Any, replies: Sequence[TransactionReply], version: int) -> Any:
    cls, module = answer(table.ADD_PARTITIONS_TO_TXN, version)

    def topics(reply: TransactionReply, asked: Iterable[Any]) -> tuple[Any, ...]:
        assert isinstance(reply, requests.PartitionsAdded), reply
        errors = iter(reply.errors)
        return tuple(
            module.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=tuple(
                    module.AddPartitionsToTxnPartitionResult(
                        partition_index=number, partition_error_code=_added_code(next(errors)[1], version)
                    )
                    for number in topic.partitions
                ),
            )
            for topic in asked
        )

    if version < _FROM_LEADERS:
        (reply,) = replies
        return cls(throttle_time=NO_DELAY, results_by_topic_v3_and_below=topics(reply, body.v3_and_below_topics))
    results = tuple(
        module.AddPartitionsToTxnResult(
            transactional_id=asked.transactional_id, topic_results=topics(reply, asked.topics)
        )
        for asked, reply in zip(body.transactions, replies, strict=True)
    )
    return build(cls, throttle_time=NO_DELAY, error_code=ErrorCode.none, results_by_transaction=results)


def _added_code(error: int, version: int) -> ErrorCode:
    if error == TRANSACTION_ABORTABLE and version < _KNOWS_ABORTABLE:
        return ErrorCode.invalid_txn_state
    return _code(error, version)


def _add_offsets_request(body: Any, version: int) -> list[TransactionRequest]:
    offsets = (TopicPartition(OFFSETS_TOPIC, partition_for(body.group_id)),)
    return [requests.AddPartitions(body.transactional_id, body.producer_id, body.producer_epoch, offsets)]


def _add_offsets_entity(body: Any, replies: Sequence[TransactionReply], version: int) -> Any:
    (reply,) = replies
    assert isinstance(reply, requests.PartitionsAdded), reply
    ((_, error),) = reply.errors
    return build(answer(table.ADD_OFFSETS_TO_TXN, version)[0], throttle_time=NO_DELAY, error_code=_code(error, version))


# ------------------------------------------------------------------ ends


def _end_request(body: Any, version: int) -> list[TransactionRequest]:
    spoken = VERSION_2 if version >= 5 else 0
    return [
        requests.EndTransaction(
            body.transactional_id, body.producer_id, body.producer_epoch, body.committed, version=spoken
        )
    ]


def _end_entity(body: Any, replies: Sequence[TransactionReply], version: int) -> Any:
    (reply,) = replies
    assert isinstance(reply, requests.TransactionEnded), reply
    return build(
        answer(table.END_TXN, version)[0],
        throttle_time=NO_DELAY,
        error_code=_code(reply.error, version),
        producer_id=reply.producer_id,
        producer_epoch=reply.producer_epoch,
    )


# ------------------------------------------------------------------ inspection


def _describe_request(body: Any, version: int) -> list[TransactionRequest]:
    return [requests.DescribeTransaction(each) for each in body.transactional_ids]


def _describe_entity(body: Any, replies: Sequence[TransactionReply], version: int) -> Any:
    cls, module = answer(table.DESCRIBE_TRANSACTIONS, version)
    states = []
    for reply in replies:
        assert isinstance(reply, requests.DescribedTransaction), reply
        by_topic: dict[str, list[int]] = {}
        for topic, number in reply.partitions:
            by_topic.setdefault(topic, []).append(number)
        states.append(
            build(
                module.TransactionState,
                error_code=CODES[reply.error],
                transactional_id=reply.transactional_id,
                transaction_state=reply.state,
                transaction_timeout=datetime.timedelta(milliseconds=reply.timeout_ms),
                transaction_start_time=instant(max(0, reply.start_timestamp)),
                producer_id=reply.producer_id,
                producer_epoch=reply.producer_epoch,
                topics=tuple(
                    module.TopicData(topic=topic, partitions=tuple(numbers)) for topic, numbers in by_topic.items()
                ),
            )
        )
    return cls(throttle_time=NO_DELAY, transaction_states=tuple(states))


def _list_request(body: Any, version: int) -> list[TransactionRequest]:
    return [
        requests.ListTransactions(
            tuple(body.state_filters),
            tuple(body.producer_id_filters),
            getattr(body, "duration_filter", -1),
            getattr(body, "transactional_id_pattern", None),
        )
    ]


def _list_entity(body: Any, replies: Sequence[TransactionReply], version: int) -> Any:
    """Of the answers of all partitions: what there is, and an error if somebody is still loading."""
    cls, module = answer(table.LIST_TRANSACTIONS, version)
    error, states, unknown = 0, [], dict[str, None]()
    for reply in replies:
        assert isinstance(reply, requests.TransactionsListed), reply
        error = error or reply.error
        unknown |= dict.fromkeys(reply.unknown_states)
        states += [
            module.TransactionState(
                transactional_id=each.transactional_id, producer_id=each.producer_id, transaction_state=each.state
            )
            for each in reply.transactions
        ]
    return cls(
        throttle_time=NO_DELAY,
        error_code=CODES[error],
        unknown_state_filters=tuple(unknown),
        transaction_states=tuple(states),
    )


APIS = (
    TransactionApi(table.INIT_PRODUCER_ID, _init_request, _init_entity),
    TransactionApi(table.ADD_PARTITIONS_TO_TXN, _add_request, _add_entity),
    TransactionApi(table.ADD_OFFSETS_TO_TXN, _add_offsets_request, _add_offsets_entity),
    TransactionApi(table.END_TXN, _end_request, _end_entity),
    TransactionApi(table.DESCRIBE_TRANSACTIONS, _describe_request, _describe_entity),
    TransactionApi(table.LIST_TRANSACTIONS, _list_request, _list_entity),
)
