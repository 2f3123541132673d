"""The registry over HTTP: a process that speaks its REST, and servers that answer as none should."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from key_server import KeyServer, body, hanging
from schema_registry import Registry, framed, schema_registry

from raylog.errors import ConfigError
from raylog.schemas import registry as of_registry
from raylog.schemas.decoding import Decoded, NotDecoded, SchemaDecoder
from raylog.schemas.registry import RegistrySettings, SchemaRegistry
from raylog.schemas.schema_cache import ASKED_MAX
from raylog.schemas.wire_format import NotDecodedError

pytestmark = pytest.mark.core
LONG = '{"type": "record", "name": "Count", "fields": [{"name": "n", "type": "long"}]}'


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with schema_registry(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture(scope="module")
def server() -> Iterator[KeyServer]:
    with KeyServer(None, body("{}")) as found:
        yield found


@pytest.fixture
def answering(server: KeyServer) -> KeyServer:
    server.asked.clear()
    return server


def decoder(url: str, **more: Any) -> SchemaDecoder:
    return SchemaDecoder(RegistrySettings(url.removesuffix("/jwks"), **more))


def reason_of(found: object) -> str:
    assert isinstance(found, NotDecoded), found
    return found.reason


def test_a_schema_is_asked_for_once(running: Registry) -> None:
    schema_id = running.register("counts-value", LONG)
    wanted = decoder(running.url)
    for _ in range(3):
        found = wanted.reading(wait_s=60).decoded(framed(schema_id, b"\x0e"))
        assert found == Decoded(schema_id, "Avro Count", {"n": 7}) and found.text() == '{"n": 7}'
    assert running.asked().count(f"/schemas/ids/{schema_id}") == 1


def test_what_names_no_schema_is_not_asked_for(running: Registry) -> None:
    before = running.asked()
    reading = decoder(running.url).reading(wait_s=60)
    for data in (b"", b"\x00\x00\x00\x00\x01", b"\x01\x00\x00\x00\x01a", b"\x00\xff\xff\xff\xff\x00", b'{"a": 1}'):
        assert reading.decoded(data) is None
    assert running.asked() == before


def test_references_are_resolved_by_subject_and_version(running: Registry) -> None:
    city = '{"type": "record", "name": "shop.City", "fields": [{"name": "name", "type": "string"}]}'
    address = '{"type": "record", "name": "shop.Address", "fields": [{"name": "city", "type": "shop.City"}]}'
    order = '{"type": "record", "name": "shop.Order", "fields": [{"name": "to", "type": "shop.Address"}]}'
    running.register("city/of?shop", city)
    running.register("address", address, references=[{"name": "shop.City", "subject": "city/of?shop", "version": 1}])
    references = [{"name": "shop.Address", "subject": "address", "version": 1}]
    schema_id = running.register("order", order, references=references)
    found = decoder(running.url).reading(wait_s=60).decoded(framed(schema_id, b"\x08Bonn"))
    assert found == Decoded(schema_id, "Avro shop.Order", {"to": {"city": {"name": "Bonn"}}})
    assert running.asked()[-1] == "/subjects/city%2Fof%3Fshop/versions/1"


def test_protobuf_is_asked_for_as_a_descriptor_and_so_are_its_imports(running: Registry) -> None:
    from protobuf_files import classes, file, serialized

    line = file("line.proto", "shop", {"Line": {"count": "int32"}})
    order = file("order.proto", "shop", {"Order": {"line": ".shop.Line"}}, "line.proto")
    running.register("line", serialized(line), "PROTOBUF")
    references = [{"name": "line.proto", "subject": "line", "version": 1}]
    schema_id = running.register("proto-order", serialized(order), "PROTOBUF", references)
    message = classes(line, order)["shop.Order"]()
    message.line.count = 3
    found = decoder(running.url).reading(wait_s=60).decoded(framed(schema_id, b"\x00" + message.SerializeToString()))
    assert found == Decoded(schema_id, "Protobuf shop.Order", {"line": {"count": 3}})


def test_json_schema_is_json(running: Registry) -> None:
    schema_id = running.register("json", '{"type": "object"}', "JSON")
    reading = decoder(running.url).reading(wait_s=60)
    assert reading.decoded(framed(schema_id, b'{"a":[1]}')) == Decoded(schema_id, "JSON Schema", {"a": [1]})
    assert reason_of(reading.decoded(framed(schema_id, b"{"))) == "it is no JSON"


def test_an_unknown_id_is_named_and_not_asked_for_again_at_once(running: Registry) -> None:
    wanted = decoder(running.url)
    for _ in range(2):
        assert (
            reason_of(wanted.reading(wait_s=60).decoded(framed(9_999, b"a")))
            == "the schema registry has no schema 9999"
        )
    assert running.asked().count("/schemas/ids/9999") == 1


def test_one_reader_asks_for_a_bounded_number_of_schemas(running: Registry) -> None:
    before = len(running.asked())
    reading = decoder(running.url).reading(wait_s=60)
    reasons = [reason_of(reading.decoded(framed(5_000 + number, b"a"))) for number in range(ASKED_MAX + 5)]
    assert len(running.asked()) - before == ASKED_MAX
    assert reasons[-1] == "more than 20 schemas would be asked for at once"


def test_user_and_password_are_sent(tmp_path: Path) -> None:
    with schema_registry(tmp_path, authorization="ann:säcret:1") as guarded:
        found = decoder(guarded.url, user="ann", password="säcret:1").reading(wait_s=60).decoded(framed(1, b"a"))
        assert reason_of(found) == "the schema registry has no schema 1"
        found = decoder(guarded.url, user="ann", password="other").reading(wait_s=60).decoded(framed(1, b"a"))
        assert reason_of(found) == "the schema registry wants a user and a password that it knows"
        assert "säcret" not in repr(RegistrySettings(guarded.url, "ann", "säcret:1"))


def test_https_needs_the_authority_that_is_given(tmp_path: Path) -> None:
    from certificates import Authority

    authority = Authority(tmp_path)
    with KeyServer(authority.signed("registry"), body('{"schema": "\\"long\\""}')) as secure:
        url = secure.url.removesuffix("/jwks")
        found = decoder(url, ca=authority.certificate).reading(wait_s=60).decoded(framed(1, b"\x02"))
        assert found == Decoded(1, "Avro long", 1)
        reason = reason_of(decoder(url).reading(wait_s=60).decoded(framed(1, b"\x02")))
        assert "not trusted" in reason and "--schema-registry-ca" in reason


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (body("{"), "is no JSON"),
        (body("[" * 100_000), "is no JSON"),
        (body("[]"), "is no schema"),
        (body('{"schema": 7}'), "is no schema"),
        (body('{"schema": "x", "references": [{"name": "a", "subject": "b", "version": "../x"}]}'), "is no schema"),
        (body('{"schema": "x", "references": [{"name": "a", "subject": "b", "version": true}]}'), "is no schema"),
        (body('{"schema": "x", "schemaType": "XML"}'), "knows no schemas of type XML"),
        (body('{"schema": "{\\"type\\": \\"nothing\\"}"}'), "schema 1 cannot be used: UnknownType"),
        (body('{"schema": "x", "schemaType": "PROTOBUF"}'), "is no .proto file"),
        (body(b" " * (5 << 20)), "more than 4 MiB"),
        (body('{"message": "away\\u0000 for <b>lunch</b>"}', 503), "answers 503: away  for <b>lunch</b>"),
        (body('{"message": "no"}', 422), "answers 422 for schema 1: no"),
        (body("", 403), "does not show schema 1 to this user"),
    ],
)
def test_answers_that_are_wrong_have_their_reason(answering: KeyServer, answer: Any, reason: str) -> None:
    answering.answer = answer
    assert reason in reason_of(decoder(answering.url).reading(wait_s=60).decoded(framed(1, b"a")))


def test_a_registry_that_refuses_to_give_descriptors_gives_the_text(answering: KeyServer) -> None:
    given = body('{"schemaType": "PROTOBUF", "schema": "message A { optional int32 n = 1; }"}')
    refused = body('{"message": "format is not supported"}', 501)
    answering.answer = lambda request: (refused if "format" in request.path else given)(request)
    found = decoder(answering.url).reading(wait_s=60).decoded(framed(1, b"\x00\x08\x05"))
    assert found == Decoded(1, "Protobuf A", {"n": 5})


def test_a_redirect_is_not_followed(answering: KeyServer) -> None:
    with KeyServer(None, body('{"schema": "\\"long\\""}')) as other:
        answering.answer = body("", 302, Location=other.url)
        assert "redirects elsewhere" in reason_of(decoder(answering.url).reading(wait_s=60).decoded(framed(1, b"\x02")))
        assert other.asked == []


def test_no_proxy_of_the_environment_is_used(running: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with pytest.raises(NotDecodedError, match="has no schema 77777"):
        SchemaRegistry(RegistrySettings(running.url)).schema(77_777)


def test_a_schema_that_refers_to_itself_and_one_with_too_many_references_end(answering: KeyServer) -> None:
    answering.answer = body('{"schema": "\\"long\\"", "references": [{"name": "a", "subject": "b", "version": 1}]}')
    assert decoder(answering.url).reading(wait_s=60).decoded(framed(1, b"\x02")) == Decoded(1, "Avro long", 1)
    assert answering.asked == ["/schemas/ids/1", "/subjects/b/versions/1"]
    many = ",".join(f'{{"name": "a{number}", "subject": "b", "version": 1}}' for number in range(101))
    answering.answer = body('{"schema": "\\"long\\"", "references": [' + many + "]}")
    reason = reason_of(decoder(answering.url).reading(wait_s=60).decoded(framed(1, b"\x02")))
    assert reason == "its schema refers to more than 100 others"


def test_a_dead_registry_holds_up_nobody(unused_port: int) -> None:
    wanted = decoder(f"http://127.0.0.1:{unused_port}")
    begun = time.monotonic()
    for number in range(1, 1_000):
        assert "Connection refused" in reason_of(wanted.reading(wait_s=60).decoded(framed(number, b"a")))
    assert time.monotonic() - begun < 20


@pytest.fixture
def unused_port() -> Iterator[int]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_a_registry_that_never_answers_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_registry, "ANSWER_S", 6.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        wanted = decoder(f"http://127.0.0.1:{silent.getsockname()[1]}")
        begun = time.monotonic()
        reading = wanted.reading()
        reasons = {reason_of(reading.decoded(framed(number, b"a"))) for number in range(1, 30)}
        waited = time.monotonic() - begun
        assert any("has not answered yet" in each for each in reasons) and 1.9 < waited < 5
        deadline = time.monotonic() + 30
        while "does not answer: not within 6 s" not in (reason := reason_of(wanted.reading().decoded(framed(1, b"a")))):
            assert time.monotonic() < deadline, reason


def test_one_that_sends_a_byte_now_and_then_is_left_after_a_while(
    answering: KeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_registry, "ANSWER_S", 1.0)
    over = threading.Event()

    def trickle(request: BaseHTTPRequestHandler) -> None:
        while not over.wait(0.1):
            request.wfile.write(b"H" if not over.is_set() else b"")

    answering.answer = trickle
    begun = time.monotonic()
    with pytest.raises(NotDecodedError, match="not within 1 s"):
        SchemaRegistry(RegistrySettings(answering.url.removesuffix("/jwks"))).schema(1)
    over.set()
    assert time.monotonic() - begun < 20


def test_a_slow_answer_is_there_for_the_next_reader(answering: KeyServer) -> None:
    until = threading.Event()
    answering.answer = hanging(until, body('{"schema": "\\"long\\""}'))
    wanted = decoder(answering.url)
    assert "has not answered yet" in reason_of(wanted.reading().decoded(framed(1, b"\x02")))
    until.set()
    assert wanted.reading(wait_s=60).decoded(framed(1, b"\x02")) == Decoded(1, "Avro long", 1)
    assert len(answering.asked) == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"url": "ftp://a"}, "no http:// or https://"),
        ({"url": "http://"}, "no http:// or https://"),
        ({"url": "http://a:b"}, "no http:// or https://"),
        ({"url": "http://a:0"}, "no http:// or https://"),
        ({"url": "http://a/ü"}, "no http:// or https://"),
        ({"url": "http://a/\r\nX: y"}, "no http:// or https://"),
        ({"url": "http://u:secret@a"}, "--schema-registry-user"),
        ({"url": "http://a/?x=1"}, "more than an address"),
        ({"url": "http://a", "user": "u"}, "give both"),
        ({"url": "http://a", "password": "p"}, "give both"),
        ({"url": "http://a", "user": "u:v", "password": "p"}, "no colon"),
        ({"url": "http://a", "ca": Path("/x")}, "for a registry with https"),
        ({"url": "https://a", "ca": Path("/nowhere.pem")}, "--schema-registry-ca /nowhere.pem"),
    ],
)
def test_settings_that_cannot_be_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        RegistrySettings(**fields).checked()
    assert "secret" not in str(refused.value)


def test_a_password_in_the_clear_is_warned_of() -> None:
    assert RegistrySettings("http://127.0.0.1:1/api", "u", "p").checked() == []
    assert RegistrySettings("https://registry", "u", "p").checked() == []
    (line,) = RegistrySettings("http://registry", "u", "p").checked()
    assert "can be read on the network" in line
