"""Puts the authorizer before every handler of a listener, while there is one.

Without an authorizer the listener has its plain handlers, and no request is looked at. With one,
each handler has a rule before it (``rules``). A Broker asks where the client came in, once; the
processes behind it are passed the request by a super user.

The authorizer's configs are the cluster's, and a start sets them. ``follow`` takes them, and the
ACLs, from the Broker's copy of the image.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Final

from raylog.configs import security_configs
from raylog.kafka import table
from raylog.kafka.spec import ApiSpec
from raylog.listener.access.access import Access
from raylog.listener.access.checks import Rule
from raylog.listener.access.rules import PRIVATE, RULES
from raylog.metadata.image import MetadataImage
from raylog.security.authorizer import Authorizer
from raylog.security.permissions import Operation
from raylog.wire.request import Handler, Request
from raylog.wire.server import Server

logger: Final = logging.getLogger("raylog.authorizer")


class Guard:
    """``image`` returns the current copy."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image
        self._authorizer: Authorizer | None = None
        self._changes = 0  # of the ACLs, when ``follow`` was called last
        self._server: Server
        self._plain: dict[int, Handler]
        self._guarded: dict[int, Handler]

    def protect(self, server: Server) -> None:
        """Stand before that server's handlers. Fails for an API without a rule."""
        self._server = server
        self._plain = server.handlers
        self._guarded = self.guarded(self._plain, table.BY_KEY)

    @property
    def is_on(self) -> bool:
        return self._authorizer is not None

    @property
    def logs_permissions(self) -> bool:
        """Whether each permission has its line in the log, for which each request has to be seen."""
        return self.is_on and logger.isEnabledFor(logging.DEBUG)

    def follow(self) -> bool:
        """Go by the image as it is now. Returns whether any decision may be another one."""
        image = self._image()
        known, changes = self._authorizer, self._changes
        self._changes = image.acls.changes
        found = security_configs.authorizer_of(image.broker_configs)
        if found is None:
            self._authorizer = None
        elif known is None or known.acls is not image.acls or (known.super_users, known.allows_everyone) != found:
            self._authorizer = Authorizer(image.acls, *found)
        self._server.handlers = self._guarded if self.is_on else self._plain
        return self._authorizer is not known or (self.is_on and self._changes != changes)

    def judges(self, request: Request) -> bool:
        """Whether the authorizer is asked about this request."""
        authorizer = self._authorizer
        return authorizer is not None and not authorizer.is_super_user(request.context.principal)

    def access(self, request: Request) -> Access | None:
        """What the request's client may do; None for somebody who may do everything."""
        authorizer = self._authorizer
        if authorizer is None or authorizer.is_super_user(request.context.principal):
            return None
        spec = table.BY_KEY.get(request.api_key)
        return Access(authorizer, request.context, self._image(), spec.name if spec else str(request.api_key))

    def readable(self, request: Request) -> Callable[[str | uuid.UUID], bool] | None:
        """Whether the request's client may read a topic, by name or id; None: it may read all. Each
        topic is asked about once, however many partitions it has.
        """
        access = self.access(request)
        return None if access is None else cache(partial(access.may_on_topic, Operation.READ))

    def guarded(self, handlers: Mapping[int, Handler], specs: Mapping[int, ApiSpec]) -> dict[int, Handler]:
        """The same handlers, each behind its API's rule. Fails for an API without one."""
        rules = {key: RULES[specs[key]] if key in specs else PRIVATE[key] for key in handlers}
        return {key: self._behind(rules[key], handler) for key, handler in handlers.items()}

    def _behind(self, rule: Rule, handler: Handler) -> Handler:
        def handle(request: Request) -> Any:
            access = self.access(request)
            if access is None:
                return handler(request)
            answer = rule(access, request)
            has_no_answer = request.api_key == table.PRODUCE.key and (
                answer is not None or request.is_amended
            ) and request.body.acks == 0  # fmt: skip
            if answer is None:
                waiting = handler(request)
                if has_no_answer:
                    _close(request)
                return waiting
            if has_no_answer:
                _close(request)
            else:
                request.reply(answer)
            return None

        return handle


def _close(request: Request) -> None:
    logger.info("closing the connection of %s: a Produce with acks=0 is denied", request.connection.peername)
    request.connection.close()
