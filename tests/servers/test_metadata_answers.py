"""A controller's answer about topics, in every version that it speaks."""

from __future__ import annotations

import dataclasses
import sys
import uuid

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from raylog.kafka import table
from raylog.metadata.requests import DescribedTopic, TopicsDescribed
from raylog.server.apis.admin import APIS
from raylog.wire.frames import decode_response, encode_response

GONE = uuid.UUID(int=9)


@pytest.mark.parametrize("version", [each for each in table.METADATA.versions if each >= 10])
def test_an_id_that_no_topic_has_is_answered_in_every_version_that_has_ids(version: int) -> None:
    kind = load_request_schema(table.METADATA.key, version)
    topics = (sys.modules[kind.__module__].MetadataRequestTopic(topic_id=GONE, name=None),)
    operations = dict.fromkeys((each.name for each in dataclasses.fields(kind) if "operations" in each.name), False)
    asked = kind(topics=topics, **operations)
    reply = TopicsDescribed("cluster", 1, (), (DescribedTopic(None, GONE, ErrorCode.unknown_topic_id),))
    (api,) = (each for each in APIS if each.spec is table.METADATA)
    frame = encode_response(api.to_entity(asked, reply, version), 1)
    (topic,) = decode_response(table.METADATA.key, version, b"".join(frame)[4:]).topics
    assert (topic.error_code, topic.topic_id) == (ErrorCode.unknown_topic_id, GONE)
    assert topic.name == (None if version >= 12 else "")
