"""Splits WriteTxnMarkers among the processes that lead its partitions, and merges their answers.

A request names markers, each with topics and their partitions, one level more than what ``fan_out``
splits. Only processes that this broker stands for are asked; any other partition is refused with
NOT_LEADER_OR_FOLLOWER, and whoever sent the marker looks for its leader. A process that can't be
asked answers with the same, one that doesn't answer in time with REQUEST_TIMED_OUT.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.errors import ClientTimeoutError
from raylog.kafka.table import WRITE_TXN_MARKERS
from raylog.listener.owners import Owner, Owners
from raylog.listener.routes import Routes
from raylog.server.apis.entities import module_of, response_class
from raylog.server.apis.markers import TIMEOUT_MS
from raylog.wire.request import Handler, Request

SLACK_MS = 5_000  # grace for the answer, which an owner sends within its own timeout

_Spot = tuple[int, int, int]
"""The index of the marker, of its topic, and of the partition in that."""


def handler(routes: Routes, owners: Owners) -> Handler:
    def handle(request: Request) -> None:
        gathering = _GatheredMarkers(request)
        shares: dict[Owner, list[_Spot]] = {}
        for spot, name, number in gathering.spots():
            place = routes.leader_of(name, number)
            if isinstance(place, Owner):
                shares.setdefault(place, []).append(spot)
            else:
                gathering.errors[spot] = place.error
        gathering.pending = len(shares)
        if not shares:
            gathering.finish()
        for owner, share in shares.items():
            answered = request.guarded(gathering.taker(share))
            part = gathering.part(share)
            owners.call(owner, part, answered, timeout_ms=TIMEOUT_MS + SLACK_MS, context=request.context)

    return handle


class _GatheredMarkers:
    """One request, until everybody has answered."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._markers = request.body.markers
        self.errors: dict[_Spot, ErrorCode] = {}
        self.pending = 0

    def spots(self) -> list[tuple[_Spot, str, int]]:
        return [
            ((at, index, place), topic.name, number)
            for at, marker in enumerate(self._markers)
            for index, topic in enumerate(marker.topics)
            for place, number in enumerate(topic.partition_indexes)
        ]

    def part(self, spots: list[_Spot]) -> Any:
        """The request with these partitions only, in the same order."""
        wanted: dict[int, dict[int, list[int]]] = {}
        for at, index, place in spots:
            wanted.setdefault(at, {}).setdefault(index, []).append(place)
        markers = []
        for at, topics in wanted.items():
            marker = self._markers[at]
            chosen = tuple(
                dataclasses.replace(
                    marker.topics[index],
                    partition_indexes=tuple(marker.topics[index].partition_indexes[place] for place in places),
                )
                for index, places in topics.items()
            )
            markers.append(dataclasses.replace(marker, topics=chosen))
        return dataclasses.replace(self._request.body, markers=tuple(markers))

    def taker(self, spots: list[_Spot]) -> Any:
        def take(reply: Any, error: Exception | None) -> None:
            if error is None:
                results = [
                    each.error_code for marker in reply.markers for topic in marker.topics for each in topic.partitions
                ]
                self.errors.update(zip(spots, results, strict=True))
            else:
                timed_out = isinstance(error, ClientTimeoutError)
                code = ErrorCode.request_timed_out if timed_out else ErrorCode.not_leader_or_follower
                self.errors.update(dict.fromkeys(spots, code))
            self.pending -= 1
            if not self.pending:
                self.finish()

        return take

    def finish(self) -> None:
        cls = response_class(WRITE_TXN_MARKERS, self._request.version)
        module = module_of(cls)
        markers = []
        for at, marker in enumerate(self._markers):
            topics = []
            for index, topic in enumerate(marker.topics):
                partitions = tuple(
                    module.WritableTxnMarkerPartitionResult(
                        partition_index=number, error_code=self.errors[at, index, place]
                    )
                    for place, number in enumerate(topic.partition_indexes)
                )
                topics.append(module.WritableTxnMarkerTopicResult(name=topic.name, partitions=partitions))
            markers.append(module.WritableTxnMarkerResult(producer_id=marker.producer_id, topics=tuple(topics)))
        self._request.reply(cls(markers=tuple(markers)))
