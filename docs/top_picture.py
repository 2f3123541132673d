"""Draws the picture of ``raylog top`` from a running cluster: ``python docs/top_picture.py``.

It starts a Ray, and on it a cluster of three brokers and three controllers, whose processes are real
ones; has a producer write and a group read; looks twice as ``raylog top`` does; and writes its page as
``docs/top.svg``. Chromium draws that as PNG: ``chromium --headless=new --screenshot docs/top.svg``.
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

import raylog
from raylog.cli.top_figures import PageOrder, Row, figures
from raylog.cli.top_looks import take_look
from raylog.cli.top_page import page
from raylog.client.admin.admin import NewTopic
from raylog.cluster import Cluster
from raylog.types import TopicPartition

FILE = Path(__file__).parent / "top.svg"
COLUMNS, LINES = 116, 54
TOPICS = {"orders": 9, "payments": 3, "page-views": 20, "shipments": 1}
"""Records that a round writes, by topic."""
PARTITIONS = 6
INTERVAL_S = 2.0
FONTS = "'DejaVu Sans Mono', Menlo, Consolas, monospace"


@contextmanager
def load(handle: Cluster) -> Iterator[None]:
    """Records flow meanwhile: they are written, and a group reads them."""
    over, reads = threading.Event(), threading.Event()

    def write() -> None:
        number = 0
        with handle.producer() as producer:
            while not over.wait(0.01):
                for topic, count in TOPICS.items():
                    for _ in range(count):
                        number += 1
                        value = f'{{"number": {number}, "customer": "c{number % 97}", "amount": {number * 7 % 500}.5}}'
                        producer.send(topic, value.encode(), key=f"c{number % 97}".encode())

    def read() -> None:
        with handle.consumer(group_id="dashboard", auto_offset_reset="latest") as consumer:
            consumer.subscribe(["orders", "page-views"])
            while not over.is_set():
                if consumer.poll(0.05):
                    reads.set()

    threads = [threading.Thread(target=each) for each in (write, read)]
    for each in threads:
        each.start()
    try:
        assert reads.wait(120), "nothing is read"
        yield
    finally:
        over.set()
        for each in threads:
            each.join()


def look(handle: Cluster) -> Row:
    """The document of a cluster under load."""
    with handle.admin() as admin:
        admin.create_topics([NewTopic(name, PARTITIONS, 3) for name in TOPICS])
        with load(handle):
            for group, share in (("billing", 0.9), ("search-index", 0.4)):
                keys = [TopicPartition("orders", number) for number in range(PARTITIONS)]
                ends = admin.list_offsets(dict.fromkeys(keys, "latest"))
                offsets = {(key.topic, key.partition): int(end.offset * share) for key, end in ends.items()}
                admin.alter_group_offsets(group, offsets)
            before = take_look(handle, admin)
            time.sleep(INTERVAL_S)
            return figures(before, take_look(handle, admin), PageOrder())


def picture(document: Row) -> str:
    """An SVG that loads nothing from elsewhere: rich's own names fonts of another site."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(page(document, PageOrder(), height=LINES))
    svg = console.export_svg(title="raylog top")
    svg = re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)
    return re.sub(r"font-family: [^;]*;", f"font-family: {FONTS};", svg)


def main(file: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="rltop") as folder:
        handle = raylog.init(Path(folder) / "data", brokers=3, controllers=3, ray_address="local")
        try:
            svg = picture(look(handle))
        finally:
            handle.shutdown()
    assert "http" not in svg.replace("http://www.w3.org", "").replace("https://www.textualize.io", ""), (
        "it loads something"
    )
    file.write_text(svg)
    print(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FILE)
