"""Who gets in at the console, what its user may see, what strangers may put into it, and a cluster that
goes away.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from raylog.errors import ConfigError
from raylog.testing import Kafka, broker

pytestmark = pytest.mark.core
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;"


def basic(password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"any:{password}".encode()).decode()}


def test_nothing_of_a_strangers_page_may_run_or_frame_the_console(inside: Any) -> None:
    for path in ("/", "/topics", "/nowhere", "/static/console.js", "/topics/none-such"):
        headers = inside.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"
        assert "server" not in headers


def test_pages_have_no_script_style_or_address_of_elsewhere(inside: Any) -> None:
    for path in (
        "/",
        "/topics",
        "/topics/orders",
        "/topics/orders/tail",
        "/groups",
        "/events",
        "/access",
        "/transactions",
    ):
        html = inside.get(path).html
        assert " style=" not in html and "<style" not in html and " onclick" not in html
        assert "http://" not in html and "https://" not in html
        assert html.count("<script") == html.count('<script src="/static/') == 2


def test_a_name_that_leads_to_loopback_does_not_reach_the_console(inside: Any) -> None:
    assert inside.get("/", headers={"Host": "evil.example"}).status == 421
    assert inside.get("/", headers={"Host": "[::1]:1"}).status == 200
    assert inside.get("/", headers={"Host": "LOCALHOST:99"}).status == 200


def test_a_password_keeps_others_out(kafka: Kafka) -> None:
    from console_server import serving

    from raylog.cluster import Cluster

    with serving(Cluster(kafka.address), password="correct horse") as browser:
        refused = browser.get("/")
        assert refused.status == 401 and refused.headers["www-authenticate"].startswith("Basic ")
        assert "orders" not in refused.html
        for wrong in ("wrong horse", "", "correct hors\u00e9"):
            assert browser.get("/", headers=basic(wrong)).status == 401
        for malformed in ("Basic", "Basic %%%", "Bearer correct horse", "Basic Y29ycmVjdA=="):
            assert browser.get("/static/console.js", headers={"Authorization": malformed}).status == 401
        assert browser.get("/", headers=basic("correct horse")).status == 200


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"host": "0.0.0.0"}, "--password-file"),
        ({"host": "192.0.2.1"}, "--insecure"),
        ({"host": "raylog.example"}, "--insecure"),
        ({"password": "short"}, "fewer than 8"),
        ({"certificate": Path("a.pem")}, "go together"),
    ],
)
def test_an_address_that_strangers_reach_is_refused(settings: dict[str, Any], words: str) -> None:
    from raylog.console.serving import ConsoleSettings

    with pytest.raises(ConfigError, match=words):
        ConsoleSettings(**settings).checked()


def test_what_strangers_could_do_is_said() -> None:
    from raylog.console.serving import ConsoleSettings

    assert "Every program of this machine" in ConsoleSettings().checked()[0]
    assert ConsoleSettings(password="correct horse").checked() == []
    open_to_all = ConsoleSettings(host="0.0.0.0", is_insecure=True)
    assert "everyone who can connect" in open_to_all.checked()[0] and open_to_all.hosts is None
    assert "can be read on the network" in ConsoleSettings(host="0.0.0.0", password="correct horse").checked()[0]


def test_hostile_keys_values_headers_and_groups_are_only_text(kafka: Kafka, inside: Any) -> None:
    from raw_requests import eventually

    from raylog.client.sync import AdminClient, Producer

    with Producer(kafka.address) as producer:
        sent = producer.send("payments", HOSTILE.encode(), key=HOSTILE.encode(), headers=[(HOSTILE, HOSTILE.encode())])
        offset = sent.result().offset
    with AdminClient(kafka.address) as admin:
        admin.alter_group_offsets(HOSTILE, {("payments", 0): 0})
    pages = [
        inside.get("/topics/payments/messages", key=HOSTILE, value=HOSTILE, header=HOSTILE),
        inside.get(f"/topics/payments/messages/0/{offset}"),
        inside.get("/topics/payments/tail", key=HOSTILE),
        inside.get("/topics/payments/tail/records", at=f"0:{offset}"),
        eventually(
            lambda: "alert(1)" in (page := inside.get("/topics/payments")).html and page, "the group of the topic"
        ),
        inside.get("/groups", search=HOSTILE),
        inside.get("/group", id=HOSTILE),
        inside.get("/group/reset", id=HOSTILE, to="latest", value=HOSTILE),
    ]
    for page in pages:
        assert page.status == 200
        assert "<script>alert" not in page.html and "<img" not in page.html
        assert "alert(1)" in page.html
    for path in ("/topics", "/transactions", "/events", "/topics/" + HOSTILE.replace("/", ""), "/group"):
        page = inside.get(path.replace(" ", "%20").replace('"', "%22"), search=HOSTILE, about=HOSTILE, id=HOSTILE + "x")
        assert "<script>alert" not in page.html and "<img" not in page.html


def test_a_group_with_any_name_has_its_page(kafka: Kafka, inside: Any) -> None:
    from raw_requests import eventually

    from raylog.client.sync import AdminClient

    name = "../a/b?c=d&e#f%41 ü\n"
    with AdminClient(kafka.address) as admin:
        admin.alter_group_offsets(name, {("payments", 0): 0})
    assert inside.get("/group", id=name).rows()[0][0] == "payments"

    def listed() -> str:
        """Empty while the console still shows the list that it kept from another test."""
        return str(
            inside.get("/groups", search="c=d").html.partition('<td class="name"><a href="')[2].partition('"')[0]
        )

    link = eventually(listed, "the group in the list")
    assert inside.get(link.replace("&amp;", "&")).rows()[0][0] == "payments"


def test_a_large_message_is_cut_and_its_size_is_said() -> None:
    from console_server import serving

    from raylog.client.sync import Producer
    from raylog.cluster import Cluster

    size = 100_000_000
    with broker(topics={"large": 1}, configs={"message.max.bytes": size + 1_000}) as kafka:
        with Producer(kafka.address, max_request_size=size + 1_000, buffer_memory=2 * size) as producer:
            producer.send("large", b"y" * size, partition=0).result()
        with serving(Cluster(kafka.address)) as browser:
            page = browser.get("/topics/large/messages")
            assert "2.0 KiB of 95.4 MiB are shown" in page.text and len(page.html) < 20_000
            alone = browser.get("/topics/large/messages/0/0")
            assert "256.0 KiB of 95.4 MiB are shown" in alone.text and len(alone.html) < 300_000


def test_a_console_without_rights_says_what_is_missing() -> None:
    from console_server import serving

    import raylog

    with broker(
        topics={"orders": 1, "secret": 1},
        security="SASL_PLAINTEXT",
        users={"viewer": "a password"},
        authorizer=True,
    ) as kafka:
        options = kafka.client_options("viewer")
        bootstrap = options.pop("bootstrap.servers")
        with serving(raylog.connect(bootstrap_servers=bootstrap, options=options)) as browser:
            assert browser.get("/topics").rows() == []
            refused = browser.get("/topics/secret")
            assert refused.status == 403 and "Not authorised" in refused.text
            access = browser.get("/access")
            assert access.text.count("is not authorised") == 3
            assert "raylog acls add --allow-principal User:NAME --operation Describe --cluster" in access.text
            kafka.allow("viewer", "Describe", topic="orders")
            assert browser.get("/topics/orders").status == 200, "what may be seen is shown"
            assert "DescribeConfigs --topic orders" in browser.get("/topics/orders").text, "what may not is named"
            assert browser.get("/topics/orders/messages").status in (200, 403)
            kafka.write("orders", b"for readers")
            unread = browser.get("/topics/orders/messages")
            assert unread.status == 403 and "for readers" not in unread.html
            kafka.allow("viewer", "Read", topic="orders")
            assert "for readers" in browser.get("/topics/orders/messages").text
            assert browser.get("/topics/secret/messages").status == 403


def test_a_broker_that_dies_is_said_and_the_page_goes_on(tmp_path: Path) -> None:
    from contextlib import ExitStack

    from console_server import serving
    from raw_requests import eventually

    from raylog.client.admin.admin import NewTopic
    from raylog.cluster import Cluster
    from raylog.testing.in_process import cluster

    running_cluster = ExitStack()
    running = running_cluster.enter_context(cluster(2, folder=tmp_path))
    handle = Cluster(running.address)
    with running_cluster, handle.admin() as admin, serving(handle) as browser:
        admin.create_topics([NewTopic("orders", 4, 2)])

        def seen(words: str) -> Any:
            page = browser.get("/")
            return page if words in page.text else None

        eventually(lambda: seen("All is well"), "all is well at first")
        builds = dict(running.launcher.build)

        def unless_gone(kind: str) -> Any:
            def build(spec: Any) -> Any:
                if spec.node_id >> 16 == 1:
                    raise OSError("this broker is gone")
                return builds[kind](spec)

            return build

        running.launcher.build = {kind: unless_gone(kind) for kind in builds}
        for node in [node for node in running.launcher.servers if node >> 16 == 1]:
            running.crash(node)
        page = eventually(lambda: seen("broker 1 : it is away"), "the death of broker 1")
        assert page.status == 200 and "raylog up" in page.text
        assert "a replica is away or behind" in eventually(lambda: seen("under-replicated :"), "ISRs without it").text
        running_cluster.close()
        gone = eventually(lambda: (page := browser.get("/")).status == 503 and page, "the end of the cluster")
        assert "does not answer" in gone.text
        topics = browser.get("/topics")
        assert topics.status == 503 and 'data-seconds="3"' in topics.html, "the page goes on asking"
