"""Messages in a schema registry's wire format on the console's pages."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from schema_registry import Registry, framed, schema_registry

from raylog.testing import Kafka

pytestmark = pytest.mark.core
PAYMENT = {
    "type": "record",
    "name": "Payment",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "from", "type": "string"},
        {"name": "is_paid", "type": "boolean"},
    ],
}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with schema_registry(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture(scope="module")
def decoding(kafka: Kafka, registry: Registry) -> Iterator[Any]:
    """A console with that registry."""
    from console_server import serving

    from raylog.cluster import Cluster
    from raylog.schemas.decoding import SchemaDecoder
    from raylog.schemas.registry import RegistrySettings

    with serving(Cluster(kafka.address), SchemaDecoder(RegistrySettings(registry.url))) as browser:
        yield browser


def payment(schema_id: int, **fields: Any) -> bytes:
    from fastavro import parse_schema, schemaless_writer

    file = io.BytesIO()
    schemaless_writer(file, parse_schema(dict(PAYMENT)), {"id": 7, "from": "ann", "is_paid": True} | fields)
    return framed(schema_id, file.getvalue())


@pytest.fixture
def schema_id(registry: Registry) -> int:
    return registry.register("payments-value", json.dumps(PAYMENT))


def test_avro_is_json_on_the_list_on_its_own_page_and_in_the_tail(kafka: Kafka, decoding: Any, schema_id: int) -> None:
    offset = kafka.write("payments", payment(schema_id))
    listed = decoding.get("/topics/payments/messages")
    assert f"schema {schema_id}, Avro shop.Payment," in listed.text
    assert '{ "id": 7, "from": "ann", "is_paid": true }' in listed.text
    assert '"from": "ann"' in decoding.get(f"/topics/payments/messages/0/{offset}").text
    assert '"from": "ann"' in decoding.get("/topics/payments/tail/records", at=f"0:{offset}").text


def test_protobuf_and_json_schema_are_json_too(kafka: Kafka, decoding: Any, registry: Registry) -> None:
    from protobuf_files import file, serialized

    ping = file("ping.proto", "shop", {"Ping": {"at": "int64"}})
    proto_id = registry.register("ping", serialized(ping), "PROTOBUF")
    json_id = registry.register("any", '{"type": "object"}', "JSON")
    kafka.write("payments", framed(proto_id, b"\x00\x08\x05"), framed(json_id, b'{"b":[1]}'))
    text = decoding.get("/topics/payments/messages", count=2).text
    assert f'schema {proto_id}, Protobuf shop.Ping, 8 B {{ "at": "5" }}' in text
    assert f'schema {json_id}, JSON Schema, 14 B {{ "b": [ 1 ] }}' in text


def test_filters_find_what_the_page_shows(kafka: Kafka, decoding: Any, schema_id: int) -> None:
    kafka.write("payments", payment(schema_id, id=4_711), payment(schema_id, id=815), b'{"id": 4711, "as": "text"}')
    found = decoding.get("/topics/payments/messages", value='"id": 4711')
    assert "2 shown of" in found.text and '"from": "ann"' in found.text and '"as": "text"' in found.text
    assert "815" not in found.html
    tail = decoding.get("/topics/payments/tail/records", at="0:0", value='"id": 4711').html
    assert tail.count("<article") == 2


def test_keys_are_decoded_and_headers_are_not(kafka: Kafka, decoding: Any, schema_id: int) -> None:
    data = payment(schema_id, **{"from": "bob"})
    with kafka_producer(kafka) as producer:
        producer.send("payments", b"plain", key=data, headers=[("h", data)]).result()
    text = decoding.get("/topics/payments/messages", key='"from": "bob"').text
    assert "1 shown of" in text and text.count('"from": "bob"') == 1


def kafka_producer(kafka: Kafka) -> Any:
    from raylog.cluster import Cluster

    return Cluster(kafka.address).producer()


def test_texts_of_messages_schemas_and_registries_are_no_html(kafka: Kafka, decoding: Any, registry: Registry) -> None:
    evil = "<img src=x onerror=alert(1)>"
    schema_id = registry.register("evil", '"string"')
    json_id = registry.register("evil", json.dumps({"title": evil}), "JSON")
    from protobuf_files import file, serialized

    named = file("a.proto", "shop", {"<script>alert(1)</script>": {"at": "int64"}})
    proto_id = registry.register("evil", serialized(named), "PROTOBUF")
    unknown_id = registry.register("evil", "x", evil)
    text = evil.encode()
    kafka.write(
        "payments",
        framed(schema_id, bytes([2 * len(text)]) + text),
        framed(json_id, json.dumps({evil: evil, "half": "\ud800"}).encode()),
        framed(proto_id, b"\x00\x08\x05"),
        framed(unknown_id, b"a"),
    )
    page = decoding.get("/topics/payments/messages", count=4)
    assert page.status == 200 and "<img" not in page.html and "<script>alert" not in page.html
    assert page.text.count(evil) == 4 and "\\ud800" in page.text


def test_what_cannot_be_decoded_is_hex_with_the_reason(kafka: Kafka, decoding: Any, schema_id: int) -> None:
    offset = kafka.write("payments", framed(schema_id, b"\x02"), framed(99_999, b"abc"), framed(99_999, b'{"a": 1}'))
    page = decoding.get(f"/topics/payments/messages/0/{offset}").text
    assert f"schema {schema_id}, hex" in page and "Not decoded: it ends within a number." in page
    page = decoding.get(f"/topics/payments/messages/0/{offset + 1}").text
    assert "000000 61 62 63" in page and "Not decoded: the schema registry has no schema 99999." in page
    page = decoding.get(f"/topics/payments/messages/0/{offset + 2}").text
    assert 'schema 99999, JSON, 13 B { "a": 1 }' in page and "Not decoded" in page


def test_long_values_are_cut_by_the_size_of_their_json(kafka: Kafka, decoding: Any, registry: Registry) -> None:
    schema_id = registry.register("long", '{"type": "array", "items": "int"}')
    count = 1_000
    offset = kafka.write("payments", framed(schema_id, b"\xd0\x0f" + b"\x02" * count + b"\x00"))
    page = decoding.get("/topics/payments/messages", count=1).text
    assert f"schema {schema_id}, Avro array, 1,008 B" in page
    assert "Cut: 2.0 KiB of 4.9 KiB are shown." in page
    assert "Cut" not in decoding.get(f"/topics/payments/messages/0/{offset}").text
    offset = kafka.write("payments", framed(schema_id, b"\x02" * (1 << 19)))
    page = decoding.get(f"/topics/payments/messages/0/{offset}").text
    assert "Not decoded: it has more than 256 KiB." in page


def test_a_dead_registry_does_not_hold_up_a_page(kafka: Kafka, tmp_path: Any) -> None:
    from console_server import serving

    from raylog.cluster import Cluster
    from raylog.schemas.decoding import SchemaDecoder
    from raylog.schemas.registry import RegistrySettings

    with schema_registry(tmp_path) as dying:
        schema_id = dying.register("a", '"long"')
        decoder = SchemaDecoder(RegistrySettings(dying.url))
        with serving(Cluster(kafka.address), decoder) as browser:
            kafka.write("orders", framed(schema_id, b"\x0e"))
            assert "Avro long" in browser.get("/topics/orders/messages").text
            dying.process.kill()
            dying.process.wait()
            kafka.write("orders", *(framed(schema_id + each, b"\x0e") for each in range(100)))
            begun = time.monotonic()
            text = browser.get("/topics/orders/messages", count=500).text
            assert time.monotonic() - begun < 20
    assert "Avro long" in text and text.count("Not decoded: the schema registry does not answer") == 99


def test_the_page_says_so_where_decoding_took_too_long(kafka: Kafka, decoding: Any, schema_id: int) -> None:
    decoder = decoding.app.state.decoder
    reading = decoder.reading(decoding_s=0)
    assert type(reading.decoded(payment(schema_id))).__name__ == "Decoded"
    assert "has decoded for 0 seconds" in reading.decoded(payment(schema_id)).reason
