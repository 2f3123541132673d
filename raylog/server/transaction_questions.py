"""What transaction coordinators ask of other processes: producer ids of the controller, and markers of
the leaders of partitions.

The leaders are those of this process's copy of the metadata image (``ImageCopy``), which comes with
the first partition of ``__transaction_state``. A question is one attempt: a leader that is not
there, does not answer or does not lead any more is an error of its partitions, and the coordinator
asks again. Markers that are asked for in one turn of the loop go to each leader in one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.write_txn_markers.v2 import request as markers

from raylog.control.session import ImageChanged
from raylog.coordination.events import OutsideAnswer, OutsideQuestion
from raylog.kafka import table
from raylog.listener.controller_link import ControllerLink
from raylog.listener.owners import Owner, Owners
from raylog.listener.routes import Routes
from raylog.metadata.image import MetadataImage
from raylog.metadata.image_copy import ImageCopy
from raylog.server.apis.entities import request_class
from raylog.transactions.records import Participation
from raylog.transactions.requests import MarkersWritten, ProducerIdsGiven, WantProducerIds, WriteMarkers
from raylog.types import Endpoint, TopicPartition, broker_of
from raylog.wire.handshake import Peer
from raylog.wire.internal_tls import Secret

PRODUCER_IDS_TIMEOUT_MS = 5_000
MARKERS_TIMEOUT_MS = 30_000
LEADER_NOT_AVAILABLE = ErrorCode.leader_not_available.value
NETWORK_EXCEPTION = ErrorCode.network_exception.value
Then = Callable[[OutsideAnswer], None]


class _Markers:
    """One question, whose answer comes from several leaders."""

    __slots__ = ("errors", "question", "then")

    def __init__(self, question: WriteMarkers, then: Then) -> None:
        self.question = question
        self.then = then
        self.errors: dict[TopicPartition, tuple[int, ...]] = {}

    def answered(self, errors: dict[TopicPartition, tuple[int, ...]]) -> None:
        """``errors``: of each marker of a partition."""
        self.errors |= errors
        if len(self.errors) == len(self.question.partitions):
            told = ((each, error) for each, codes in sorted(self.errors.items()) for error in codes)
            self.then(MarkersWritten(tuple(told)))


class TransactionQuestions:
    """On the event loop. ``controller`` returns the active controller's address, None while there is
    none.
    """

    def __init__(
        self, *, caller: Peer, secret: Secret, cluster_id: str, controller: Callable[[], Endpoint | None]
    ) -> None:
        self._caller = caller
        self._copy = ImageCopy()
        self._routes = Routes(broker_of(caller.node_id), self._image)
        self._owners = Owners(secret=secret, cluster_id=cluster_id, caller=caller)
        self._link = ControllerLink(
            controller, secret=secret, cluster_id=cluster_id, caller=caller, timeout_ms=PRODUCER_IDS_TIMEOUT_MS
        )
        self._asking: set[asyncio.Task[None]] = set()
        self._collected: list[_Markers] = []  # in this turn of the loop

    def _image(self) -> MetadataImage:
        assert self._copy.image is not None, "the image comes before the first partition"
        return self._copy.image

    def hear(self, frame: ImageChanged) -> None:
        """The metadata has changed."""
        if self._copy.fold(frame):
            actors = self._image().actors.items()
            self._owners.keep({Owner(node, each.incarnation, each.endpoint) for node, each in actors if each.alive})

    def are_there(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether these partitions exist, as far as this process knows."""
        image = self._image()
        topics = ((image.topic_named(each.topic), each.partition) for each in partitions)
        return all(topic is not None and number in topic.partitions for topic, number in topics)

    def ask(self, question: OutsideQuestion, then: Then) -> None:
        """Have a question answered; ``then`` is called once, unless the process ends."""
        if isinstance(question, WriteMarkers):
            if not self._collected:
                asyncio.get_running_loop().call_soon(self._send)
            self._collected.append(_Markers(question, then))
            return
        assert isinstance(question, WantProducerIds), question
        task = asyncio.get_running_loop().create_task(self._producer_ids(then))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    def close(self) -> None:
        """Whatever was asked is not answered any more."""
        self._collected.clear()
        for task in self._asking:
            task.cancel()
        self._link.close()
        self._owners.close()

    # ------------------------------------------------------------------ producer ids

    async def _producer_ids(self, then: Then) -> None:
        request = request_class(table.ALLOCATE_PRODUCER_IDS, 0)
        reply = await self._link.ask(request(broker_id=broker_of(self._caller.node_id)))
        if reply is None:
            then(ProducerIdsGiven(NETWORK_EXCEPTION))
        else:
            then(ProducerIdsGiven(reply.error_code.value, reply.producer_id_start, reply.producer_id_len))

    # ------------------------------------------------------------------ markers

    def _send(self) -> None:
        collected, self._collected = self._collected, []
        by_owner: dict[Owner, list[tuple[_Markers, list[TopicPartition]]]] = {}
        for each in collected:
            led: dict[Owner, list[TopicPartition]] = {}
            lost: dict[TopicPartition, tuple[int, ...]] = {}
            for partition in each.question.partitions:
                owner = self._routes.leading_process(*partition)
                if owner is None:
                    lost[partition] = (LEADER_NOT_AVAILABLE,)
                else:
                    led.setdefault(owner, []).append(partition)
            for owner, partitions in led.items():
                by_owner.setdefault(owner, []).append((each, partitions))
            if lost:
                each.answered(lost)
        for owner, parts in by_owner.items():
            wanted = tuple(marker for part, led in parts for marker in _markers(part.question, led))
            request = markers.WriteTxnMarkersRequest(markers=wanted)
            self._owners.call(owner, request, partial(_answered, parts), timeout_ms=MARKERS_TIMEOUT_MS)


def _markers(question: WriteMarkers, partitions: list[TopicPartition]) -> list[markers.WritableTxnMarker]:
    """That of the producer itself, then those of the participants."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in partitions:
        by_topic.setdefault(topic, []).append(number)
    topics: Any = tuple(
        markers.WritableTxnMarkerTopic(name=topic, partition_indexes=tuple(numbers))  # type: ignore[arg-type]
        for topic, numbers in by_topic.items()
    )
    common: Any = {
        "topics": topics,
        "coordinator_epoch": question.coordinator_epoch,
        "transaction_version": question.version,
    }
    producers: list[Any] = [(question.producer_id, question.producer_epoch, question.commits)]
    producers += [
        (each.producer_id, each.producer_epoch, each.part is Participation.WINS) for each in question.participants
    ]
    return [
        markers.WritableTxnMarker(producer_id=producer_id, producer_epoch=epoch, transaction_result=commits, **common)
        for producer_id, epoch, commits in producers
    ]


def _answered(parts: list[tuple[_Markers, list[TopicPartition]]], reply: Any, error: Exception | None) -> None:
    """A leader has answered, about each marker in the order of the request, or failed."""
    results = iter(reply.markers if error is None else ())
    for part, partitions in parts:
        found: dict[TopicPartition, tuple[int, ...]] = dict.fromkeys(partitions, ())
        for _ in range(1 + len(part.question.participants)):
            result = next(results, None)
            told = {
                TopicPartition(topic.name, each.partition_index): each.error_code.value
                for topic in (result.topics if result is not None else ())
                for each in topic.partitions
            }
            for partition in partitions:
                found[partition] += (told.get(partition, NETWORK_EXCEPTION),)
        part.answered(found)
