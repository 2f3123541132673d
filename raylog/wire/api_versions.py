"""ApiVersions: which APIs, in which versions, a server speaks; answered out of its table.

A request of an unknown version is answered in version 0 with UNSUPPORTED_VERSION and the ranges, so
that a newer client can step down.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from raylog.wire import private
from raylog.wire.frames import API_VERSIONS, Entity

if TYPE_CHECKING:
    from raylog.wire.request import Request


def answer(request: Request) -> None:
    """What the server's table says; one with more to tell (features) puts its own handler there."""
    request.reply(reply(request.connection.server.told_versions, request.version))


def answer_unsupported(request: Request) -> None:
    """To a request of a version that is not known."""
    request.reply(reply(request.connection.server.told_versions, 0, ErrorCode.unsupported_version))


def reply(spoken: Mapping[int, range], version: int, error: ErrorCode = ErrorCode.none) -> Entity:
    """The answer in that version."""
    from kio.index import load_payload_module
    from kio.static.constants import EntityType

    module = load_payload_module(API_VERSIONS, version, EntityType.response)
    keys = tuple(
        module.ApiVersion(api_key=key, min_version=versions.start, max_version=versions.stop - 1)
        for key, versions in sorted(spoken.items())
        if key < private.FIRST_API_KEY and versions
    )
    throttle = {"throttle_time": datetime.timedelta(0)} if version >= 1 else {}
    return module.ApiVersionsResponse(error_code=error, api_keys=keys, **throttle)
