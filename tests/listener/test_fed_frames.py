"""Sessions fed to a Broker's connections, before and after authentication: only answers, refusals and ends (``fed_frames``).

``make fuzz-guided`` has a fuzzer choose more of them. Here they are the fuzzer's first ones, and what hypothesis makes of these.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fed_frames import FRAME_CPU_S_MAX, WHO, Feeder, mixed, seeds, session
from fuzz_report import Report
from hostile_frames import TOKENS, real_frames, sasl_frames
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_requests import eventually

from raylog.kafka import table
from raylog.wire.request import Request

pytestmark = pytest.mark.core


class Fed:
    def __init__(self, clients: Any, report: Report) -> None:
        self.server = clients.running.launcher.servers[0].router.server
        self.report = report
        self.feeder = Feeder(self.server, report.findings)
        self.frames = [*real_frames(clients.topic_id), *sasl_frames(TOKENS)]
        self.seeds = seeds(clients.topic_id)

    def metadata(self) -> bytes:
        return session("open", [next(each for each in self.frames if each[:4] == b"\0\3\0\1")])


@pytest.fixture(scope="module")
def cluster_fed() -> Iterator[Fed]:
    import sys

    sys.path.insert(0, str(Path(__file__).parent))
    try:
        from fuzz import fuzzed_cluster
    finally:
        del sys.path[0]
    report = Report()
    with fuzzed_cluster(report) as clients:
        found = Fed(clients, report)
        yield found
        found.feeder.close()


@pytest.fixture
def fed(cluster_fed: Fed) -> Iterator[Fed]:
    cluster_fed.report.findings.clear()
    yield cluster_fed
    cluster_fed.report.findings.clear()


def test_the_first_sessions_are_answered_or_refused(fed: Fed) -> None:
    for data in fed.seeds:
        fed.feeder.feed(data)
    assert not fed.report.findings
    assert set(fed.feeder.frames) == set(WHO)
    assert fed.feeder.outcomes["none"] > 100
    assert fed.feeder.outcomes["topic_authorization_failed"] and fed.feeder.outcomes["the connection is closed"]
    assert fed.feeder.slowest_cpu_s < FRAME_CPU_S_MAX


@settings(
    max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(number=st.integers(0, 10_000), seed=st.integers(0, 2**32), times=st.integers(1, 6))
def test_changed_sessions_are_answered_or_refused(fed: Fed, number: int, seed: int, times: int) -> None:
    chance, data = random.Random(seed), fed.seeds[number % len(fed.seeds)]
    for _ in range(times):
        data = mixed(chance, data, fed.frames)
    fed.feeder.feed(data)
    assert not fed.report.findings
    eventually(lambda: not fed.server.in_flight_bytes, "nothing to be held")  # a connection that was aborted ends next


def test_a_handler_that_fails_is_a_finding(fed: Fed, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(request: Request) -> None:
        raise KeyError("nobody expects it")

    monkeypatch.setitem(fed.server.handlers, table.METADATA.key, fails)
    fed.feeder.feed(fed.metadata())
    assert [each for each in fed.report.findings if "API 3 failed [KeyError" in each]


def test_an_answer_that_no_client_reads_is_a_finding(fed: Fed, monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(request: Request) -> None:
        request.connection.send_reply(request, [b"\0\0\0\6", b"\0\0\0\0", b"\x7f\xff"])

    monkeypatch.setitem(fed.server.handlers, table.METADATA.key, answers)
    fed.feeder.feed(fed.metadata())
    assert [each for each in fed.report.findings if "API 3 in version 1 that no client reads" in each]


def test_an_answer_to_nothing_is_a_finding(fed: Fed, monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(request: Request) -> None:
        request.connection.send_reply(request, [b"\0\0\0\4", b"\0\0\0\x63"])

    monkeypatch.setitem(fed.server.handlers, table.METADATA.key, answers)
    fed.feeder.feed(fed.metadata())
    assert fed.report.findings["an answer to nothing"] == 1


def test_an_error_that_leaves_the_connection_is_a_finding(fed: Fed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(fed.server), "handler_of", lambda self, header: {}[header.api_key])
    fed.feeder.feed(fed.metadata())
    assert [each for each in fed.report.findings if "the connection raises KeyError" in each]


def test_a_request_that_is_kept_is_not_waited_for(fed: Fed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fed.server.handlers, table.METADATA.key, lambda request: None)
    waited = fed.feeder.outcomes["it waits"]
    fed.feeder.feed(fed.metadata())
    assert fed.feeder.outcomes["it waits"] == waited + 1
    assert not fed.report.findings
