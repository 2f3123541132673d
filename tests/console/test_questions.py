"""How often the console asks its cluster: pages that are open at the same time share what they ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from raylog.testing import Kafka

pytestmark = pytest.mark.core


@pytest.fixture
def asked(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Counter[str]]]:
    """A console whose clock stands, and that samples only when it is told; and what it asks, by the name of the call."""
    from console_server import serving
    from raw_requests import eventually

    import raylog
    from raylog.client.sync import AdminClient
    from raylog.console import lag_history

    with AdminClient(kafka.address) as admin:
        for number in range(3):
            admin.alter_group_offsets(f"asking-{number}", {("orders", number): 0})
    monkeypatch.setattr(lag_history, "EVERY_S", 3_600.0)
    monkeypatch.setattr(lag_history, "RECENT_S", 3_600.0)
    with serving(raylog.connect(bootstrap_servers=kafka.bootstrap)) as browser:
        eventually(browser.app.state.lags.recent, "the first sample")
        counts: Counter[str] = Counter()
        view = browser.app.state.view
        for name in ("list_groups", "list_group_offsets", "list_offsets", "describe_topics", "describe_log_dirs"):
            monkeypatch.setattr(view.admin, name, counted(counts, name, getattr(view.admin, name)))
        monkeypatch.setattr(view, "_clock", lambda: 1e9)
        browser.app.state.lags.sample()
        counts.clear()
        yield browser, counts


def counted(counts: Counter[str], name: str, ask: Any) -> Any:
    def asking(*arguments: Any, **options: Any) -> Any:
        counts[name] += 1
        return ask(*arguments, **options)

    return asking


def test_the_list_of_groups_and_the_readers_of_a_topic_are_those_of_the_last_sample(
    asked: tuple[Any, Counter[str]],
) -> None:
    browser, counts = asked
    listed = {row[0]: row for row in browser.get("/groups").rows()}
    assert listed["asking-1"][4] == "0"
    assert "/group?id=asking-1" in browser.get("/topics/orders").html
    assert counts["list_group_offsets"] == 0 and counts["list_groups"] == 0
    assert counts["list_offsets"] == 2, "the first and the last offsets on the topic's own page"


def test_a_group_that_the_last_sample_lacks_is_asked_for_alone(
    asked: tuple[Any, Counter[str]], kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    from raylog.client.sync import AdminClient

    browser, counts = asked
    with AdminClient(kafka.address) as admin:
        admin.alter_group_offsets("asking-later", {("orders", 0): 0})
    monkeypatch.setattr(browser.app.state.view, "_clock", lambda: 2e9)
    assert "asking-later" in {row[0] for row in browser.get("/groups").rows()}
    assert counts["list_group_offsets"] == counts["list_offsets"] == 1


def test_a_reset_is_seen_in_the_list_at_once(asked: tuple[Any, Counter[str]], kafka: Kafka) -> None:
    browser, _ = asked
    kafka.write("orders", b"1", b"2", partition=2)
    plan = browser.get("/group/reset", id="asking-2", to="offset", value="1")
    done = browser.post("/group/reset", {name: plan.field(name) for name in ("token", "id", "moves")})
    assert done.status == 303
    assert {row[0]: row[4] for row in browser.get("/groups").rows()}["asking-2"] == "1"


def test_a_sample_that_is_too_old_does_not_count(
    asked: tuple[Any, Counter[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from raylog.console import lag_history

    browser, counts = asked
    monkeypatch.setattr(lag_history, "RECENT_S", 0.0)
    browser.get("/groups")
    assert counts["list_group_offsets"] >= 3
