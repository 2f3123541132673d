"""Groups, transactions and access in the console; and what a change has to bring."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from raylog.testing import Kafka

pytestmark = pytest.mark.core


@pytest.fixture
def readers(kafka: Kafka) -> Iterator[str]:
    """A group that has read 4 of 10 records of its own topic and has no members."""
    from raylog.client.sync import AdminClient

    topic = "read-by-readers"
    with AdminClient(kafka.address) as admin:
        if topic not in admin.list_topics():
            kafka.create_topic(topic, 1)
            kafka.write(topic, *(b"%d" % number for number in range(10)))
        admin.alter_group_offsets("readers", {(topic, 0): 4})
        yield "readers"


def listed(console: Any, group: str) -> list[str]:
    """The group's row in the list of groups, once the list that was kept is asked for again."""
    from raw_requests import eventually

    rows: Any = eventually(
        lambda: [row for row in console.get("/groups").rows() if row[0] == group], "the group is listed"
    )
    return rows[0]


def test_lag_is_log_end_minus_committed(inside: Any, readers: str) -> None:
    page = inside.get("/group", id=readers)
    assert page.rows()[0] == ["read-by-readers", "0", "4", "10", "6", "–"]
    assert "6 records behind" in page.text
    row = listed(inside, readers)
    assert row[1] == "Empty" and row[4] == "6"
    inside.app.state.lags.sample()
    assert "readers" in inside.get("/topics/read-by-readers").text


def test_lag_counts_topics_that_are_newer_than_the_kept_answer(kafka: Kafka) -> None:
    from raylog.client.sync import AdminClient
    from raylog.cluster import Cluster
    from raylog.console.lag_history import lags_of
    from raylog.console.view import ClusterView

    view = ClusterView(Cluster(kafka.address), clock=lambda: 0.0)  # what is kept never gets too old
    try:
        assert "just-created" not in view.topics()
        kafka.create_topic("just-created", 1)
        kafka.write("just-created", b"0", b"1", b"2")
        with AdminClient(kafka.address) as admin:
            admin.alter_group_offsets("quick", {("just-created", 0): 1})
        (lag,) = lags_of(view, ["quick"])["quick"]
        assert (lag.committed, lag.end, lag.lag) == (1, 3, 2)
    finally:
        view.close()


def test_lag_over_time_is_a_line(inside: Any, readers: str) -> None:
    listed(inside, readers)
    sampler = inside.app.state.lags
    sampler.sample()
    sampler.sample()
    page = inside.get("/group", id=readers)
    line = page.html.partition('<polyline class="line" points="')[2].partition('"')[0]
    assert len(line.split()) >= 2 and {point.split(",")[1] for point in line.split()} == {"65.6"}, line
    assert "the console starts" not in page.text


def test_members_are_shown_with_what_they_read(kafka: Kafka, inside: Any) -> None:
    import raylog

    cluster = raylog.connect(bootstrap_servers=kafka.bootstrap)
    with cluster.consumer(group_id="with-members", client_id="<b>bold</b>") as consumer:
        consumer.subscribe(["payments"])
        while not consumer.assignment():
            consumer.poll(0.1)
        page = inside.get("/group", id="with-members")
        assert "Stable" in page.text and "<b>bold</b>" not in page.html and "<b>bold</b> at" in page.text
        reset = inside.get("/group/reset", id="with-members", to="earliest")
        assert reset.status == 400 and "stop its members first" in reset.text


def test_a_reset_says_what_will_happen_and_then_does_just_that(inside: Any, readers: str) -> None:
    plan = inside.get("/group/reset", id=readers, to="offset", value="7")
    assert plan.rows() == [["read-by-readers", "0", "4", "7", "3 records are skipped"]]
    assert inside.get("/group", id=readers).rows()[0][2] == "4", "a plan changes nothing"
    fields = {name: plan.field(name) for name in ("token", "id", "moves")}
    done = inside.post("/group/reset", fields)
    assert (done.status, done.headers["location"]) == (303, "/group?id=readers&done=yes")
    assert inside.get("/group", id=readers).rows()[0][2] == "7"
    again = inside.post("/group/reset", fields)
    assert again.status == 409 and "is 7 now, not 4" in again.text


@pytest.mark.parametrize(
    ("to", "value", "after"),
    [
        ("earliest", "", "0"),
        ("latest", "", "10"),
        ("shift", "-3", "1"),
        ("shift", "100", "10"),
        ("time", "2001-01-01T00:00:00Z", "0"),
        ("duration", "P9000D", "0"),
    ],
)
def test_each_rule_has_a_plan(inside: Any, readers: str, to: str, value: str, after: str) -> None:
    assert inside.get("/group/reset", id=readers, to=to, value=value).rows()[0][3] == after


@pytest.mark.parametrize(
    ("to", "value"),
    [
        ("offset", ""),
        ("offset", "-1"),
        ("offset", "1" * 30),
        ("shift", "x"),
        ("time", "tomorrow"),
        ("duration", "P"),
        ("duration", "P" + "9" * 90 + "D"),
        ("nowhere", ""),
    ],
)
def test_a_rule_with_a_bad_value_is_refused_in_words(inside: Any, readers: str, to: str, value: str) -> None:
    page = inside.get("/group/reset", id=readers, to=to, value=value)
    assert page.status == 400 and "That can't be" in page.text, page.text


def test_a_change_needs_the_token_of_the_process_and_the_same_origin(inside: Any, readers: str) -> None:
    plan = inside.get("/group/reset", id=readers, to="latest")
    fields = {name: plan.field(name) for name in ("token", "id", "moves")}
    assert inside.post("/group/reset", fields | {"token": "x"}).status == 403
    assert inside.post("/group/reset", {"id": readers, "moves": fields["moves"]}).status == 403
    assert inside.post("/group/reset", fields, headers={"Origin": "http://evil.example"}).status == 403
    assert inside.post("/group/reset", fields, headers={"Origin": "null"}).status == 403
    body, kind = b"token=x", {"Content-Type": "application/x-www-form-urlencoded"}
    assert inside.ask("POST", "/group/reset", body=body, headers=kind).status == 403, "no Origin at all"
    assert inside.get("/group", id=readers).rows()[0][2] == "4"


@pytest.mark.parametrize("moves", ["", "x", "topic 0 1", "topic 0 - -1", "topic 0 1 2 3", "<b> 0 1 2"])
def test_moves_that_no_page_has_made_are_refused(inside: Any, readers: str, moves: str) -> None:
    token = inside.app.state.token
    assert inside.post("/group/reset", {"token": token, "id": readers, "moves": moves}).status == 400


def test_a_form_without_end_is_refused(inside: Any) -> None:
    assert inside.post("/group/reset", {"token": "x" * (1 << 20)}).status == 413
    many = "&".join(f"f{number}=" for number in range(10_001)).encode()
    page = inside.ask("POST", "/group/reset", body=many, headers={"Origin": inside.url})
    assert page.status == 400 and "at most 10,000 fields" in page.text


def test_a_read_only_console_shows_a_plan_and_refuses_to_do_it(kafka: Kafka, readers: str) -> None:
    from console_server import serving

    from raylog.cluster import Cluster

    with serving(Cluster(kafka.address), is_read_only=True) as browser:
        plan = browser.get("/group/reset", id=readers, to="latest")
        assert plan.rows()[0][3] == "10" and "<button class" not in plan.html and "read-only" in plan.text
        moves = {"token": browser.app.state.token, "id": readers, "moves": "read-by-readers 0 4 10"}
        refused = browser.post("/group/reset", moves)
        assert refused.status == 403 and "--read-only" in refused.text
        assert browser.get("/group", id=readers).rows()[0][2] == "4"


def test_transactions_that_are_under_way_are_shown(kafka: Kafka, inside: Any) -> None:
    from raylog.client.sync import Producer

    with Producer(kafka.address, transactional_id="<i>tx</i>") as producer:
        with producer.transaction():
            producer.send("payments", b"within").result()
            row = next(row for row in inside.get("/transactions").rows() if row[0] == "<i>tx</i>")
            assert row[1] == "Ongoing" and row[6] == "payments-0"
        assert "<i>tx" not in inside.get("/transactions").html
    assert inside.get("/transactions", search="nothing").rows() == []


def test_quotas_and_users_are_shown(kafka: Kafka, inside: Any) -> None:
    from raw_requests import eventually

    from raylog.client.sync import AdminClient

    with AdminClient(kafka.address) as admin:
        admin.alter_quotas({"client-id": "<u>slow</u>"}, {"producer_byte_rate": 1_048_576})
        admin.set_user("alice", "a password")
    eventually(lambda: "alice" in inside.get("/access").text, "the console shows the user")
    page = inside.get("/access")
    assert ["client-id <u>slow</u>", "producer_byte_rate", "1,048,576"] in page.rows() and "<u>" not in page.html
    assert any(row[0] == "alice" and "SCRAM-SHA-256" in row[1] for row in page.rows())


def test_events_have_a_time_line(kafka: Kafka, inside: Any) -> None:
    page = inside.get("/events")
    assert page.status == 200 and page.html.count("<circle") >= 2
    assert "topic-created" in page.text
    only = inside.get("/events", kind="topic-*", about="PAYM")
    assert "payments" in only.text and "topic-created orders" not in only.text
    assert "No event matches" in inside.get("/events", kind="<script>").text
