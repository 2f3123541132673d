"""``raylog logs``: the lines of all processes, asked of a running cluster, and what it does where none answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import raylog.testing
from raylog.cli import logs
from raylog.cli.main import app
from raylog.cluster import Cluster
from raylog.errors import ClusterError, ConfigError
from raylog.server import log_files
from raylog.server.log_files import LogLine, WantedLines
from raylog.testing.kafka import Kafka
from raylog.types import Endpoint
from raylog.wire.private_watching import ReadLogs

NODE = 65_538


def line(time_ms: int, message: str = "a", node: int = NODE) -> LogLine:
    return LogLine(time_ms, node, "INFO", "raylog.broker", message)


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with raylog.testing.broker(brokers=2) as running:
        yield running


@pytest.fixture
def folder(kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the processes of the cluster find what they have logged."""
    cluster_id = kafka.address.cluster_id
    (tmp_path / "worker-1.err").write_text(
        f"2026-11-28 03:59:01,000 INFO raylog.process [65538]: process starts: cluster {cluster_id}, node 65538, process 7\n"
        "2026-11-28 03:59:03,500 WARNING raylog.replica [65538]: the disk is slow\n"
    )
    (tmp_path / "worker-2.err").write_text(
        f"2026-11-28 03:59:02,000 INFO raylog.process [7]: process starts: cluster {cluster_id}, node 7, process 8\n"
        "2026-11-28 03:59:04,000 ERROR raylog.broker [7]: it failed\n Traceback\n"
    )
    monkeypatch.setattr(log_files, "own_log_folder", lambda: tmp_path)
    return tmp_path


def asked(kafka: Kafka, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    monkeypatch.setattr(logs, "find_cluster", lambda *_, **__: Cluster(kafka.address))
    result = CliRunner().invoke(app, ["logs", *arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


@pytest.mark.core
def test_the_lines_of_a_running_cluster_come_in_the_order_of_time(
    kafka: Kafka, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = asked(kafka, monkeypatch)
    assert [each.split("raylog.")[-1] for each in text.splitlines() if "process starts" not in each] == [
        "replica: the disk is slow",
        "broker: it failed",
        "    Traceback",
    ]
    assert text.splitlines()[2].startswith("2026-11-28 03:59:03.500  WARNING  broker 1, 65538     raylog.replica")
    documents = [json.loads(each) for each in asked(kafka, monkeypatch, "--json", "--level", "warning").splitlines()]
    assert [(each["node_id"], each["broker"], each["level"]) for each in documents] == [
        (NODE, 1, "WARNING"),
        (7, 0, "ERROR"),
    ]
    assert documents[1]["message"] == "it failed\nTraceback"
    assert len(asked(kafka, monkeypatch, "--broker", "1").splitlines()) == 2
    assert len(asked(kafka, monkeypatch, "--last", "1", "--since", "2026-11-28T03:59:02").splitlines()) == 2


@pytest.mark.core
def test_the_lines_of_one_request_are_chosen_by_its_trace_id(
    kafka: Kafka, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "worker-0.err").write_text(
        f"2026-11-28 03:58:00,000 INFO raylog.process [3]: process starts: cluster {kafka.address.cluster_id}, node 3, process 9\n"
        "2026-11-28 03:58:00,001 INFO raylog.wire [3 4bf92f]: it is traced\n"
        "2026-11-28 03:58:00,002 INFO raylog.wire [3 another]: it is another one\n"
    )
    (only,) = asked(kafka, monkeypatch, "--trace", "4bf92f").splitlines()
    assert only.startswith("2026-11-28 03:58:00.001  INFO     broker 0, 3, 4bf92f  raylog.wire: it is traced")
    (document,) = asked(kafka, monkeypatch, "--trace", "4bf92f", "--json").splitlines()
    assert json.loads(document)["trace_id"] == "4bf92f"


@pytest.mark.core
def test_this_machines_own_files_are_read_too_each_line_once(
    kafka: Kafka, folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "SESSION_LOGS", folder)
    assert len(asked(kafka, monkeypatch).splitlines()) == 5, "what a process has read is not shown twice"
    head = tmp_path_factory.mktemp("head")
    (head / "worker-9.err").write_text(
        "2026-11-28 03:59:00,500 WARNING raylog.provisioner [-1]: 2 of 3 disks have joined\n"
        f"2026-11-28 03:59:00,900 INFO raylog.process [-1]: process starts: cluster {kafka.address.cluster_id}, node -1, "
        "process 5\n"
    )
    monkeypatch.setattr(logs, "SESSION_LOGS", head)
    first = asked(kafka, monkeypatch).splitlines()[0]
    assert first.startswith("2026-11-28 03:59:00.500  WARNING  no broker")
    assert first.endswith("raylog.provisioner: 2 of 3 disks have joined")
    document = json.loads(asked(kafka, monkeypatch, "--json").splitlines()[0])
    assert (document["broker"], document["node_id"]) == (-1, -1)


@pytest.mark.core
def test_a_process_whose_stderr_is_in_no_file_says_so(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "own_log_folder", lambda: None)
    monkeypatch.setattr(logs, "find_cluster", lambda *_, **__: Cluster(kafka.address))
    result = CliRunner().invoke(app, ["logs"])
    assert (result.exit_code, result.stdout) == (0, "")
    assert "127.0.0.1: Ray keeps no files" in result.stderr


@pytest.mark.core
def test_the_next_process_of_a_machine_is_asked_where_one_does_not_answer(kafka: Kafka, folder: Path) -> None:
    cluster = Cluster(kafka.address)
    living = next(Endpoint.of(each["endpoint"]) for each in cluster.status()["actors"] if each["kind"] == "broker")
    with cluster.admin() as admin:
        reply = admin.read_logs([Endpoint("127.0.0.1", 1), living], ReadLogs(level="ERROR"))
        assert reply is not None and [each[4] for each in reply.lines] == ["it failed\nTraceback"]
        assert admin.read_logs([Endpoint("127.0.0.1", 1)], ReadLogs()) is None


def test_through_the_listeners_there_are_no_logs() -> None:
    result = CliRunner().invoke(app, ["logs", "--bootstrap-server", "127.0.0.1:1"])
    assert isinstance(result.exception, ConfigError)


@pytest.mark.core
def test_where_the_cluster_does_not_answer_this_machines_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from raylog.disks.embedded import prepare_disks

    (disk,) = prepare_disks(tmp_path / "data", 1, None)
    (tmp_path / "worker-1.err").write_text(
        f"2026-11-28 03:59:01,000 INFO raylog.process [7]: process starts: cluster {disk.cluster_id}, node 7, process 8\n"
    )
    monkeypatch.setattr(logs, "SESSION_LOGS", tmp_path)

    def none_runs(*_: object, **__: object) -> Cluster:
        raise ClusterError("no cluster runs")

    monkeypatch.setattr(logs, "find_cluster", none_runs)
    result = CliRunner().invoke(app, ["logs", "--folder", str(tmp_path / "data")])
    assert result.exit_code == 0 and "process starts" in result.stdout and "no cluster runs" in result.stderr
    result = CliRunner().invoke(app, ["logs", "--folder", str(tmp_path / "nothing")])
    assert isinstance(result.exception, ClusterError)


class Ended(Exception):
    pass


def test_what_is_followed_is_shown_once_even_if_another_file_grows_late() -> None:
    answers: list[list[LogLine] | Exception] = [
        [line(10_000), line(10_001)],
        ClusterError("away"),
        [line(9_000, "late"), line(10_000), line(10_001), line(10_001), line(10_002, "b")],
        [line(9_000, "late"), line(10_000), line(10_001), line(10_001), line(10_002, "b")],
    ]
    asked: list[WantedLines] = []
    shown: list[str] = []

    def read(wanted: WantedLines) -> list[LogLine]:
        asked.append(wanted)
        found = answers[len(asked) - 1]
        if isinstance(found, Exception):
            raise found
        return found

    def show(lines: Sequence[LogLine]) -> None:
        shown.extend(f"{each.time_ms} {each.message}" for each in lines)

    def pause() -> None:
        if len(asked) == len(answers):
            raise Ended

    with pytest.raises(Ended):
        logs.followed(read, WantedLines(level="WARNING", broker=1), show, pause)
    assert shown == ["10000 a", "10001 a", "9000 late", "10001 a", "10002 b"]
    assert [each.since_ms for each in asked] == [0, 5_001, 5_001, 5_002]
    assert {(each.level, each.broker) for each in asked} == {("WARNING", 1)}


def test_since_is_a_span_or_a_time() -> None:
    assert logs.since_of(None, 100.0) == 0
    assert [logs.since_of(text, 100_000.0) for text in ("30s", "2m", "1h", "1d")] == [
        99_970_000,
        99_880_000,
        96_400_000,
        13_600_000,
    ]
    assert logs.since_of("2026-01-31T12:00+00:00", 0) == 1_769_860_800_000
    with pytest.raises(typer.BadParameter):
        logs.since_of("yesterday", 0)
