"""What one client may do: the authorizer's decisions about one request, each with its line in the
log.

A line has Kafka's words: denials are INFO, permissions DEBUG. What a client merely does not get to
see is logged as DEBUG, too. Lines name principal, host, operation, resource and API, and nothing of
the request's content.
"""

from __future__ import annotations

import logging
import uuid
from typing import Final

from raylog.kafka.context import RequestContext
from raylog.metadata.image import MetadataImage
from raylog.security.acl import CLUSTER_NAME
from raylog.security.authorizer import Authorizer
from raylog.security.permissions import Operation, Resource

logger: Final = logging.getLogger("raylog.authorizer")


class Access:
    """One request's client before the authorizer. ``image`` names topics that a request has by id."""

    __slots__ = ("_api", "_authorizer", "_host", "_image", "_principal")

    def __init__(self, authorizer: Authorizer, context: RequestContext, image: MetadataImage, api: str) -> None:
        self._authorizer = authorizer
        self._principal = context.principal
        self._host = context.client_host
        self._image = image
        self._api = api

    def may(self, operation: Operation, resource: Resource, name: str, *, is_asked: bool = True) -> bool:
        """``is_asked`` False: the client loses nothing that it has named by a denial."""
        is_allowed, rule = self._authorizer.decide(self._principal, self._host, operation, resource, name)
        level = logging.INFO if is_asked and not is_allowed else logging.DEBUG
        if logger.isEnabledFor(level):
            logger.log(
                level,
                "Principal = %s is %s operation = %s from host = %s on resource = %s:LITERAL:%s for request = %s "
                "based on rule %s",
                self._principal,
                "Allowed" if is_allowed else "Denied",
                operation.name,
                self._host,
                resource.name,
                name,
                self._api,
                rule,
            )
        return is_allowed

    def may_on_cluster(self, operation: Operation, *, is_asked: bool = True) -> bool:
        return self.may(operation, Resource.CLUSTER, CLUSTER_NAME, is_asked=is_asked)

    def may_on_topic(self, operation: Operation, topic: str | uuid.UUID | None, *, is_asked: bool = True) -> bool:
        """An id that no topic has gives nothing away; whoever carries the request out says so."""
        if isinstance(topic, str):
            return self.may(operation, Resource.TOPIC, topic, is_asked=is_asked)
        found = self._image.topics.get(topic) if topic is not None else None
        return found is None or self.may(operation, Resource.TOPIC, found.name, is_asked=is_asked)

    def may_on_some_topic(self, operation: Operation) -> bool:
        return self._authorizer.may_on_some(self._principal, self._host, operation, Resource.TOPIC)

    def operations(self, resource: Resource, name: str) -> int:
        """All that the client may do there, as Kafka's set of bits."""
        return self._authorizer.operations(self._principal, self._host, resource, name)

    def is_known(self, topic_id: uuid.UUID | None) -> bool:
        return topic_id in self._image.topics
