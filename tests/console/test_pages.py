"""The console's pages over HTTP, against brokers in this process: overview, topics, messages, tail."""

from __future__ import annotations

from typing import Any

import pytest

from raylog.testing import Kafka

pytestmark = pytest.mark.core


def test_the_overview_says_who_is_there_and_that_all_is_well(kafka: Kafka, inside: Any) -> None:
    page = inside.get("/")
    assert page.status == 200
    assert "All is well" in page.text and "2 of 2 brokers" in page.text
    assert "Broker 0 has the active controller" in page.text
    brokers = [row for row in page.rows() if row[1] == "live" and len(row) == 7]
    assert [row[0] for row in brokers] == ["0", "1"]
    assert sum(int(row[5]) for row in brokers) == 4, "partitions that somebody leads"
    assert "topic-created orders" in page.text


def test_from_outside_the_overview_says_what_kafkas_protocol_lacks(outside: Any) -> None:
    page = outside.get("/")
    assert page.status == 200
    assert "2 of 2 brokers" in page.text and "All is well" in page.text
    assert "Kafka's protocol has no request for events" in page.text
    assert "Processes" not in page.text


def test_topics_are_searched(inside: Any) -> None:
    assert [row[0] for row in inside.get("/topics").rows()] == ["orders", "payments"]
    found = inside.get("/topics", search="ORD")
    assert [row[:3] for row in found.rows()] == [["orders", "3", "2"]]
    assert "1 of 2 topics" in found.text
    assert inside.get("/topics", search="nothing").rows() == []


def test_a_topic_shows_its_partitions_and_configs(kafka: Kafka, inside: Any) -> None:
    kafka.write("payments", b"one", b"two")
    page = inside.get("/topics/payments")
    partition = page.rows()[0]
    assert partition[0] == "0" and partition[4] in ("0, 1", "1, 0") and partition[5:7] == ["0", "2"]
    configs = {row[0]: row[1] for row in page.rows() if len(row) == 3}
    assert configs["min.insync.replicas"] == "1" and "retention.ms" in configs


def test_messages_are_shown_from_an_end_an_offset_and_a_time(kafka: Kafka, inside: Any) -> None:
    first = kafka.write("orders", *(b"%d" % number for number in range(100)), partition=1)
    newest = inside.get("/topics/orders/messages", count=3)
    assert [f"offset {first + number}" in newest.text for number in (96, 97, 98, 99)] == [False, True, True, True]
    assert newest.text.index(f"offset {first + 99}") < newest.text.index(f"offset {first + 97}")
    page = inside.get("/topics/orders/messages", **{"from": "offset", "offset": first + 10, "count": 2, "partition": 1})
    assert f"offset {first + 10}" in page.text and f"offset {first + 12}" not in page.text
    assert "the read stopped at 2 records" in page.text
    assert f"at=1%3A{first + 12}" in page.html, "where the next page goes on"
    further = inside.get("/topics/orders/messages", **{"from": "at", "at": f"1:{first + 12}", "count": 2})
    assert f"offset {first + 12}" in further.text and f"offset {first + 14}" not in further.text
    late = inside.get("/topics/orders/messages", **{"from": "time", "time": "2099-01-01T00:00:00Z"})
    assert "0 shown of 0" in late.text
    early = inside.get("/topics/orders/messages", **{"from": "time", "time": "2001-01-01T00:00:00Z", "count": 1})
    assert "1 shown" in early.text


def test_messages_are_filtered_by_key_value_and_header(kafka: Kafka, inside: Any) -> None:
    from raylog.client.sync import Producer

    with Producer(kafka.address) as producer:
        producer.send("payments", b'{"amount": 12}', key=b"alice", headers=[("trace", b"abc")]).result()
        producer.send("payments", b"\x00\x01\x02\xff", key=b"bob", headers=[("trace", None)]).result()
    shown = inside.get("/topics/payments/messages", key="alic")
    assert "1 shown" in shown.text and '"amount": 12' in shown.text and "JSON" in shown.text
    assert "1 shown" in inside.get("/topics/payments/messages", value="amount").text
    assert "1 shown" in inside.get("/topics/payments/messages", header="trace=ab").text
    assert "2 shown" in inside.get("/topics/payments/messages", header="trace").text
    assert "00 01 02 ff" in inside.get("/topics/payments/messages", key="bob").text
    assert "matches" in inside.get("/topics/payments/messages", key="nobody").text


def test_one_message_has_a_page_of_its_own(kafka: Kafka, inside: Any) -> None:
    offset = kafka.write("orders", b"x" * 5_000, partition=2)
    in_list = inside.get("/topics/orders/messages", partition=2)
    assert "Cut: 2.0 KiB of 4.9 KiB are shown" in in_list.text and "x" * 2_001 not in in_list.html
    assert "x" * 5_000 in inside.get(f"/topics/orders/messages/2/{offset}").html
    missing = inside.get(f"/topics/orders/messages/2/{offset + 1}")
    assert missing.status == 404 and "has no record with offset" in missing.text


def test_the_tail_shows_what_has_come_since(kafka: Kafka, inside: Any) -> None:
    page = inside.get("/topics/payments/tail")
    at = page.html.partition('data-at="')[2].partition('"')[0]
    kafka.write("payments", b"fresh")
    records = inside.get("/topics/payments/tail/records", at=at)
    assert "fresh" in records.text and records.html.count("<article") == 1
    at = records.html.partition('data-at="')[2].partition('"')[0]
    assert inside.get("/topics/payments/tail/records", at=at).html.count("<article") == 0
    kafka.write("payments", *(b"%d" % number for number in range(300)))
    behind = inside.get("/topics/payments/tail/records", at=at)
    assert behind.html.count("<article") == 100 and behind.text.index(" 299 ") < behind.text.index(" 298 ")


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/topics/none-such", 404, "none-such"),
        ("/topics/" + "x" * 300, 400, "at most 249"),
        ("/topics?page=0", 400, "no whole number from 1"),
        ("/topics?page=" + "9" * 99, 400, "no whole number"),
        ("/topics?page=1e3", 400, "1e3"),
        ("/topics/orders/messages?from=nowhere", 400, "nowhere"),
        ("/topics/orders/messages?count=501", 400, "to 500"),
        ("/topics/orders/messages?from=offset&offset=-1", 400, "-1"),
        ("/topics/orders/messages?from=time&time=yesterday", 400, "yesterday"),
        ("/topics/orders/messages?partition=3", 404, "has no partition 3"),
        ("/topics/orders/messages?partition=x", 400, "partition"),
        ("/topics/orders/messages?from=at&at=0:1,", 400, "partition:offset"),
        ("/topics/orders/messages?from=at&at=7:1", 404, "has no partition 7"),
        ("/topics/orders/messages?key=" + "k" * 1_001, 400, "at most 1,000"),
        ("/topics/orders/messages/9/0", 404, "has no partition 9"),
        ("/topics/orders/messages/0/" + "9" * 40, 400, "63 bits"),
        ("/topics/orders/tail/records?at=", 400, "partition:offset"),
        ("/group?id=", 400, "give the name"),
        ("/group?id=none-such", 404, "no group"),
        ("/group/reset?id=none-such", 404, "no group"),
        ("/groups?page=x", 400, "page"),
        ("/transactions?page=-1", 400, "page"),
        ("/nowhere", 404, "no such page"),
        ("/static/../app.py", 404, ""),
        ("/static/%2e%2e/app.py", 404, ""),
    ],
)
def test_bad_input_is_answered_in_words(inside: Any, path: str, status: int, words: str) -> None:
    page = inside.get(path)
    assert page.status == status and words in page.text, page.text[-500:]
    assert "Traceback" not in page.text


def test_offsets_beyond_a_log_are_brought_into_it(kafka: Kafka, inside: Any) -> None:
    page = inside.get("/topics/orders/messages", **{"from": "offset", "offset": 2**63 - 1})
    assert page.status == 200 and "0 shown of 0" in page.text


def test_a_status_through_the_listeners_asks_no_other_admin_and_no_answer_twice(kafka: Kafka) -> None:
    import raylog
    from raylog.console.view import ClusterView

    handle = raylog.connect(bootstrap_servers=kafka.bootstrap)
    view = ClusterView(handle, clock=lambda: 0.0)
    try:
        topics, log_dirs = view.topics(), view.log_dirs()
        kafka.create_topic("after-the-answer", 1)
        state = view.status()
        assert [each["name"] for each in state["topics"]] == sorted(topics)
        assert {each["id"] for each in state["brokers"]} == set(log_dirs)
    finally:
        view.close()
