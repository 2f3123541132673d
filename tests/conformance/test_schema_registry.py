"""A schema registry that keeps its schemas in raylog, Confluent's serializers, and a console and a command that read what they wrote."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from apicurio import apicurio
from confluent_kafka import Consumer, Producer
from raw_requests import eventually
from typer.testing import CliRunner

from raylog.client.sync import AdminClient
from raylog.testing.in_process import InProcessCluster

pytestmark = pytest.mark.conformance

ADDRESS = {"type": "record", "name": "Address", "namespace": "shop", "fields": [{"name": "city", "type": "string"}]}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "to", "type": "shop.Address"},
    ],
}
VALUES = [{"id": number, "note": None if number % 2 else "ü", "to": {"city": "Bonn"}} for number in range(20)]


@pytest.fixture(scope="module")
def registry(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with apicurio(bootstrap, tmp_path_factory.mktemp("apicurio") / "log") as url:
        yield url


@pytest.fixture(scope="module")
def client(registry: str) -> Iterator[Any]:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    with SchemaRegistryClient({"url": registry}) as found:
        yield found


def context(topic: str) -> Any:
    from confluent_kafka.serialization import MessageField, SerializationContext

    return SerializationContext(topic, MessageField.VALUE)


def written(bootstrap: str, topic: str, serializer: Any, values: list[Any]) -> list[bytes]:
    payloads = [serializer(value, context(topic)) for value in values]
    producer = Producer({"bootstrap.servers": bootstrap})
    for payload in payloads:
        producer.produce(topic, payload, partition=0)
    assert producer.flush(60) == 0
    return payloads


def read(bootstrap: str, topic: str, deserializer: Any, count: int) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"of-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[Any] = []

    def come() -> bool:
        message = consumer.poll(1)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(deserializer(message.value(), context(topic)))
        return len(found) == count

    eventually(come, "all messages")
    consumer.close()
    return found


def shown(running: InProcessCluster, registry: str, topic: str, *wanted: str, **query: object) -> None:
    """The console's page of messages comes to have these texts; it waits less for a registry than a test does."""
    from console_server import serving

    from raylog.cluster import Cluster
    from raylog.schemas.decoding import SchemaDecoder
    from raylog.schemas.registry import RegistrySettings

    with serving(Cluster(running.address), SchemaDecoder(RegistrySettings(registry))) as browser:

        def has_them() -> bool:
            text = browser.get(f"/topics/{topic}/messages", **query).text
            last[0] = text
            return all(each in text for each in wanted)

        last = [""]
        try:
            eventually(has_them, "the page", 60)
        except AssertionError:
            pytest.fail(f"not on the page: {wanted}\n{last[0]}")


def consumed(bootstrap: str, registry: str, topic: str) -> list[Any]:
    """What ``raylog consume`` prints."""
    from raylog.cli.main import app

    options = ["--bootstrap-server", bootstrap, "--from-beginning", "--until-end", "--schema-registry", registry]
    result = CliRunner().invoke(app, ["consume", topic, *options])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_avro_with_a_reference_goes_through_a_registry(
    running: InProcessCluster, bootstrap: str, registry: str, client: Any, new_topic: Callable[..., str]
) -> None:
    from confluent_kafka.schema_registry import Schema, SchemaReference
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer

    topic = new_topic()
    client.register_schema("address", Schema(json.dumps(ADDRESS), "AVRO"))
    references = [SchemaReference("shop.Address", "address", 1)]
    schema = Schema(json.dumps(ORDER), "AVRO", references)
    written(bootstrap, topic, AvroSerializer(client, schema), VALUES)
    assert read(bootstrap, topic, AvroDeserializer(client), len(VALUES)) == VALUES
    assert consumed(bootstrap, registry, topic) == VALUES
    seven = '"id": 7, "note": null, "to": { "city": "Bonn" }'
    shown(running, registry, topic, "1 shown of", seven, value='"id": 7,')


def test_json_schema_goes_through_a_registry(
    running: InProcessCluster, bootstrap: str, registry: str, client: Any, new_topic: Callable[..., str]
) -> None:
    from confluent_kafka.schema_registry.json_schema import JSONSerializer

    topic = new_topic()
    schema = {"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}}
    written(bootstrap, topic, JSONSerializer(json.dumps(schema), client), [{"id": 1}])
    assert consumed(bootstrap, registry, topic) == [{"id": 1}]
    shown(running, registry, topic, 'JSON Schema, 13 B { "id": 1 }')


def test_protobuf_goes_through_a_registry(
    running: InProcessCluster, bootstrap: str, registry: str, client: Any, new_topic: Callable[..., str]
) -> None:
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from protobuf_files import classes, file

    topic = new_topic()
    line = file("shop/line.proto", "shop", {"Line": {"count": "int32"}})
    order = file(
        "shop/order.proto", "shop", {"Order": {"id": "int64", "lines": "repeated .shop.Line"}}, "shop/line.proto"
    )
    kind = classes(line, order)["shop.Order"]
    message = kind(id=7)
    message.lines.add(count=2)
    written(bootstrap, topic, ProtobufSerializer(kind, client, {"use.deprecated.format": False}), [message])
    assert consumed(bootstrap, registry, topic) == [{"id": "7", "lines": [{"count": 2}]}]
    shown(running, registry, topic, "Protobuf shop.Order", '"id": "7"')


def test_protobuf_is_read_by_the_text_that_the_registry_gives(
    running: InProcessCluster, bootstrap: str, registry: str, client: Any, new_topic: Callable[..., str]
) -> None:
    from confluent_kafka.schema_registry import Schema, SchemaReference
    from schema_registry import framed

    topic = new_topic()
    line = 'syntax = "proto3"; package shop; message Line { int32 count = 1; }'
    text = 'syntax = "proto3"; package shop; import "line.proto"; message Order { Line line = 1; }'
    client.register_schema("line-text", Schema(line, "PROTOBUF"))
    schema_id = client.register_schema(topic, Schema(text, "PROTOBUF", [SchemaReference("line.proto", "line-text", 1)]))
    written(bootstrap, topic, lambda value, _: framed(schema_id, value), [b"\x00\x0a\x02\x08\x03"])
    assert consumed(bootstrap, registry, topic) == [{"line": {"count": 3}}]


def subjects(registry: str) -> list[str]:
    with urllib.request.urlopen(f"{registry}/subjects", timeout=30) as answer:
        return list(json.load(answer))


def test_another_registry_finds_the_schemas_in_the_topic_of_the_first(
    running: InProcessCluster, bootstrap: str, client: Any, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    from confluent_kafka.schema_registry import Schema
    from confluent_kafka.schema_registry.avro import AvroSerializer

    topic = new_topic()
    written(bootstrap, topic, AvroSerializer(client, Schema(json.dumps(ADDRESS), "AVRO")), [{"city": "Bonn"}])
    with AdminClient(running.address) as admin:
        assert "kafkasql-journal" in admin.describe_topics()
    with apicurio(bootstrap, tmp_path / "log") as another:
        eventually(lambda: f"{topic}-value" in subjects(another), "it to have read the topic")
        assert consumed(bootstrap, another, topic) == [{"city": "Bonn"}]
