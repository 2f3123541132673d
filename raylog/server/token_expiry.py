"""Has the active controller remove delegation tokens that have expired, every
``delegation.token.expiry.check.interval.ms``.

The connections that such a token opened end when it is removed. The machine of the controller has no
wall clock, so its shell asks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from raylog.configs import broker_configs, token_configs
from raylog.metadata.image import MetadataImage
from raylog.metadata.requests import ControllerReply
from raylog.metadata.users.token_requests import DelegationTokensRemoved, RemoveExpiredTokens
from raylog.server.apis.tokens import now_ms

logger = logging.getLogger("raylog.controller")

LOOK_S: Final = 1.0  # how often it looks whether the interval, which may have changed, is over


async def remove_expired_tokens(
    image: Callable[[], MetadataImage | None],
    ask: Callable[[RemoveExpiredTokens, Callable[[ControllerReply], None]], Any],
) -> None:
    """Run until it is cancelled. ``image`` returns None while another controller is active."""
    loop = asyncio.get_running_loop()
    checked_at = loop.time()
    while True:
        found = image()
        interval_s = LOOK_S if found is None else _interval_s(found)
        await asyncio.sleep(min(LOOK_S, interval_s))
        if found is not None and found.tokens and loop.time() >= checked_at + interval_s:
            checked_at = loop.time()
            ask(RemoveExpiredTokens(now_ms()), _report)


def _interval_s(image: MetadataImage) -> float:
    name = token_configs.CHECK_INTERVAL
    default = int(broker_configs.BROKER_CONFIGS[name].default)
    return broker_configs.number(image.broker_configs, None, name, default=default) / 1_000


def _report(reply: ControllerReply) -> None:
    if isinstance(reply, DelegationTokensRemoved) and reply.token_ids:
        logger.info("removed %d delegation tokens that have expired", len(reply.token_ids))
