"""``raylog consume --schema-registry``: decoded values as lines and as documents, and what becomes of the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from schema_registry import framed, schema_registry
from typer.testing import CliRunner, Result

import raylog.testing
from raylog.cli.main import app
from raylog.testing.kafka import Kafka

pytestmark = pytest.mark.core
runner = CliRunner()
COUNT = '{"type": "record", "name": "Count", "fields": [{"name": "n", "type": ["null", "long"]}, {"name": "b", "type": "bytes"}]}'


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with raylog.testing.broker(topics={"counts": 1, "dead": 1}) as running:
        yield running


@pytest.fixture(scope="module")
def password(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("password") / "password"
    file.write_text("secret\n")
    return file


def consume(kafka: Kafka, topic: str, *options: str) -> Result:
    at = ["--bootstrap-server", kafka.bootstrap, "--from-beginning", "--until-end"]
    return runner.invoke(app, ["consume", topic, *at, *options])


def test_values_are_json_and_what_is_not_decoded_says_why(kafka: Kafka, tmp_path: Path, password: Path) -> None:
    with schema_registry(tmp_path, authorization="ann:secret") as registry:
        schema_id = registry.register("counts-value", COUNT)
        value = framed(schema_id, b"\x02\x0e\x04\x00\xff")
        kafka.write("counts", value, b"plain", framed(9_999, b"a"), None, framed(9_999, b"b"), key=value)
        options = ["--schema-registry", registry.url, "--schema-registry-user", "ann"]
        options += ["--schema-registry-password-file", str(password)]
        text = consume(kafka, "counts", *options, "--print-key")
        documents = consume(kafka, "counts", *options, "--json")
    decoded = '{"n": 7, "b": "\\u0000ÿ"}'
    assert text.stdout.splitlines() == [
        f"{decoded}\t{decoded}",
        f"{decoded}\tplain",
        f"{decoded}\t000000270f61",
        f"{decoded}\t",
        f"{decoded}\t000000270f62",
    ]
    reason = "the schema registry has no schema 9999"
    assert text.stderr == f"A message with schema 9999 is not decoded: {reason}\n"
    first, plain, unknown, empty, _ = map(json.loads, documents.stdout.splitlines())
    assert first["value"] == {"n": 7, "b": "\x00ÿ"} == first["key"]
    assert first["value_schema"] == {"id": schema_id, "type": "Avro Count"}
    assert plain["value"] == "plain" and "value_schema" not in plain
    assert unknown["value"] == "\x00\x00\x00'\x0fa"
    assert unknown["value_schema"] == {"id": 9_999, "not_decoded": reason}
    assert empty["value"] is None and "value_schema" not in empty


def test_a_registry_that_is_away_stops_nothing(kafka: Kafka) -> None:
    kafka.write("dead", framed(7, b"a"), b"plain")
    result = consume(kafka, "dead", "--schema-registry", "http://127.0.0.1:1")
    assert result.exit_code == 0 and result.stdout.splitlines() == ["000000000761", "plain"]
    assert "the schema registry does not answer" in result.stderr


def test_without_a_registry_values_are_as_they_were(kafka: Kafka) -> None:
    kafka.write("dead", b"\x00\x00\x00\x00\x07{}")
    (last,) = consume(kafka, "dead", "--json").stdout.splitlines()[-1:]
    assert json.loads(last)["value"] == "\x00\x00\x00\x00\x07{}"


@pytest.mark.parametrize("command", [["consume", "counts"], ["console"]])
def test_options_that_cannot_be_are_refused(kafka: Kafka, command: list[str], tmp_path: Path, password: Path) -> None:
    def refused(*options: str) -> Result:
        result = runner.invoke(app, [*command, "--bootstrap-server", kafka.bootstrap, *options])
        assert result.exit_code != 0
        return result

    assert "--schema-registry" in refused("--schema-registry-user", "ann").output
    assert "http://" in str(refused("--schema-registry", "registry:8081").exception)
    lone = refused("--schema-registry", "http://a", "--schema-registry-password-file", str(password))
    assert "give both" in str(lone.exception)
    none = refused("--schema-registry", "http://a", "--schema-registry-password-file", str(tmp_path / "none"))
    assert "cannot be read" in str(none.exception)
