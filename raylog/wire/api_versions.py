"""ApiVersions: which APIs, in which versions, a server speaks, answered out of its table; and the
cluster's features (``raylog.kafka.features``), from version 3 on.

A request of an unknown version is answered in version 0 with UNSUPPORTED_VERSION and the ranges, so
that a newer client can step down.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from raylog.kafka.features import FEATURES, FINALIZED_EPOCH
from raylog.wire import private
from raylog.wire.frames import API_VERSIONS, Entity

if TYPE_CHECKING:
    from raylog.wire.request import Request

FEATURES_SINCE = 3  # the version of the first answer that has a place for them
SOFTWARE_CHARACTERS_MAX = 200  # what a longer name or version has more is cut off
LEVEL_0_SINCE = 4  # the version of the first answer that may tell of a feature that can be at level 0


def answer(request: Request) -> None:
    """What the server's table says. What the client says of itself is kept."""
    if request.version >= FEATURES_SINCE:
        asked = request.body
        software = (asked.client_software_name, asked.client_software_version)
        request.connection.client_software = (
            software[0][:SOFTWARE_CHARACTERS_MAX],
            software[1][:SOFTWARE_CHARACTERS_MAX],
        )
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
    features = _features(module, version) if version >= FEATURES_SINCE else {}
    return module.ApiVersionsResponse(error_code=error, api_keys=keys, **throttle, **features)


def _features(module: Any, version: int) -> dict[str, Any]:
    """The fields of an answer in this version that tell the features.

    Kafka's Java clients before 3.9 end their network thread over a supported level 0, so answers
    before version 4 leave such features out of what is supported (KAFKA-17492). Their finalized
    levels stay.
    """
    return {
        "supported_features": tuple(
            module.SupportedFeatureKey(name=each.name, min_version=each.min_version, max_version=each.max_version)
            for each in FEATURES
            if each.min_version > 0 or version >= LEVEL_0_SINCE
        ),
        "finalized_features_epoch": FINALIZED_EPOCH,
        "finalized_features": tuple(
            module.FinalizedFeatureKey(
                name=each.name, min_version_level=each.finalized, max_version_level=each.finalized
            )
            for each in FEATURES
        ),
    }
