"""kcat through the Brokers' listeners: produce, consume, metadata, offsets, as a shell does it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable

import pytest

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(shutil.which("kcat") is None, reason="no kcat on this machine"),
]

NewTopicOf = Callable[..., str]


def kcat(*arguments: str, stdin: str = "") -> str:
    done = subprocess.run(["kcat", *arguments], input=stdin, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_lines_go_in_and_come_out_with_keys_and_headers(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    lines = "".join(f"k{number}:line {number}\n" for number in range(1_000))
    kcat("-b", bootstrap, "-P", "-t", topic, "-p", "0", "-K:", "-H", "from=kcat", "-z", "lz4", stdin=lines)
    assert kcat("-b", bootstrap, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%k:%s\n") == lines
    last = kcat("-b", bootstrap, "-C", "-t", topic, "-o", "-1", "-e", "-q", "-f", "%o %h %s\n")
    assert last == "999 from=kcat line 999\n"


def test_metadata_names_the_brokers_and_partitions(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic(2)
    found = json.loads(kcat("-b", bootstrap, "-L", "-J", "-t", topic))
    assert {each["name"] for each in found["brokers"]} == set(bootstrap.split(","))
    (described,) = found["topics"]
    assert [each["partition"] for each in described["partitions"]] == [0, 1]
    assert all(len(each["replicas"]) == 3 for each in described["partitions"])


def test_offsets_are_found_by_time(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    kcat("-b", bootstrap, "-P", "-t", topic, "-p", "0", stdin="one\ntwo\n")
    assert kcat("-b", bootstrap, "-Q", "-t", f"{topic}:0:0").strip() == f"{topic} [0] offset 0"
    assert kcat("-b", bootstrap, "-Q", "-t", f"{topic}:0:-1").strip() == f"{topic} [0] offset 2"
