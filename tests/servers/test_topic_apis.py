"""Requests about topics as Kafka's, in each version that is spoken."""

from __future__ import annotations

import datetime
import uuid

import pytest
from kio.schema.errors import ErrorCode

from raylog.errors import kafka_error
from raylog.kafka import table
from raylog.kafka.refusal import refusal
from raylog.metadata import requests
from raylog.server.apis import admin
from raylog.server.apis.entities import NO_DELAY, module_of, request_class

BY_SPEC = {api.spec: api for api in admin.APIS}
ID = uuid.UUID(int=7)


def refused(spec, version, body):
    return refusal(spec, version, body, ErrorCode.not_controller, "another one decides")


def delete(version, *topics):
    cls = request_class(table.DELETE_TOPICS, version)
    if version < 6:
        return cls(topic_names=tuple(name for name, _ in topics), timeout=NO_DELAY)
    states = (module_of(cls).DeleteTopicState(name=name, topic_id=topic_id) for name, topic_id in topics)
    return cls(topics=tuple(states), timeout=NO_DELAY)


@pytest.mark.parametrize("version", list(table.DELETE_TOPICS.versions))
def test_deleting(version):
    api = BY_SPEC[table.DELETE_TOPICS]
    body = delete(version, ("a", None), ("b", None))
    assert api.to_request(body, version) == requests.DeleteTopics(("a", "b"))
    disabled = requests.TopicDeletion("a", None, ErrorCode.topic_deletion_disabled, "no")
    entity = api.to_entity(body, requests.TopicsDeleted((disabled, requests.TopicDeletion("b", ID))), version)
    first, second = entity.responses
    assert first.error_code is (ErrorCode.topic_deletion_disabled if version >= 3 else ErrorCode.invalid_request)
    assert (second.name, second.error_code) == ("b", ErrorCode.none)
    assert version < 5 or first.error_message == "no"
    assert version < 6 or second.topic_id == ID
    assert {each.error_code for each in refused(api.spec, version, body).responses} == {ErrorCode.not_controller}


def test_deleting_by_id():
    api = BY_SPEC[table.DELETE_TOPICS]
    body = delete(6, (None, ID), ("a", None))
    assert api.to_request(body, 6) == requests.DeleteTopics(("a",), (ID,))
    answers = refused(api.spec, 6, body).responses
    assert [(each.name, each.topic_id) for each in answers] == [(None, ID), ("a", None)]


@pytest.mark.parametrize("topic", [("a", ID), (None, None)])
def test_a_topic_is_named_in_one_way(topic):
    api = BY_SPEC[table.DELETE_TOPICS]
    body = delete(6, topic)
    with pytest.raises(kafka_error(ErrorCode.invalid_request), match="either by its name or by its id"):
        api.to_request(body, 6)
    assert refused(api.spec, 6, body).responses


@pytest.mark.parametrize("version", list(table.CREATE_PARTITIONS.versions))
def test_growing(version):
    api = BY_SPEC[table.CREATE_PARTITIONS]
    cls = request_class(table.CREATE_PARTITIONS, version)
    module = module_of(cls)
    by_hand = (module.CreatePartitionsAssignment(broker_ids=(1, 2)),)
    topics = [
        module.CreatePartitionsTopic(name=name, count=3, assignments=assignments)
        for name, assignments in (("planned", None), ("none", ()), ("by-hand", by_hand))
    ]
    body = cls(topics=tuple(topics), timeout=datetime.timedelta(seconds=7), validate_only=True)
    asked = api.to_request(body, version)
    assert asked.timeout_ms == 7_000
    assert [growth.assignments for growth in asked.topics] == [None, (), ((1, 2),)] and asked.validate_only


@pytest.mark.parametrize("version", list(table.CREATE_TOPICS.versions))
def test_creating(version):
    api = BY_SPEC[table.CREATE_TOPICS]
    cls = request_class(table.CREATE_TOPICS, version)
    module = module_of(cls)
    topic = module.CreatableTopic(
        name="t",
        num_partitions=-1,
        replication_factor=-1,
        assignments=(module.CreatableReplicaAssignment(partition_index=0, broker_ids=(2, 1)),),
        configs=(module.CreatableTopicConfig(name="retention.ms", value="7"),),
    )
    body = cls(topics=(topic,), timeout=datetime.timedelta(seconds=7), validate_only=True)
    wanted = requests.RequestedTopic("t", assignment=((0, (2, 1)),), configs=(("retention.ms", "7"),))
    assert api.to_request(body, version) == requests.CreateTopics((wanted,), True, 7_000)
    configs = (("retention.ms", "7", 1), ("segment.ms", "9", 3))
    made = requests.TopicCreation("t", topic_id=ID, partitions=1, replication_factor=2, configs=configs)
    (created,) = api.to_entity(body, requests.TopicsCreated((made,)), version).topics
    assert created.error_code is ErrorCode.none
    if version >= 5:
        assert (created.num_partitions, created.replication_factor) == (1, 2)
        assert [(each.name, each.value, each.config_source) for each in created.configs] == list(configs)
    assert version < 7 or created.topic_id == ID
