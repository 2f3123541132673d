"""The files of a stream's ledger."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.errors import ConfigError
from raylog.ranges.entries import StreamEntry, first
from raylog.ranges.ledger import STREAM_FILE, StreamLedger, entry_of, lines_of, local_path
from raylog.ranges.splitting import OffsetRange
from raylog.types import TopicPartition

pytestmark = pytest.mark.spark

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
STREAM = {"topics": ["t"], "starting_offsets": "earliest"}
START = first({"t": "id"}, {T0: 5, T1: 0})
NEXT = StreamEntry(1, {"t": "id"}, {T0: 9, T1: 0}, (OffsetRange("t", 0, 5, 9),))


def test_a_stream_goes_on_after_its_newest_entry(tmp_path: Path) -> None:
    ledger = StreamLedger(str(tmp_path / "new" / "ledger"), STREAM)
    assert ledger.last is None
    ledger.append(START, [])
    ledger.append(NEXT, list(NEXT.ranges))
    ledger.close()
    again = StreamLedger(str(tmp_path / "new" / "ledger"), STREAM)
    assert again.last == NEXT and again.numbers() == [0, 1]
    again.close()


def test_only_whole_entries_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = StreamLedger(str(tmp_path), STREAM)
    ledger.append(START, [])

    def crash(*names: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", crash)
    with pytest.raises(KeyboardInterrupt):
        ledger.append(NEXT, [])
    monkeypatch.undo()
    ledger.close()
    again = StreamLedger(str(tmp_path), STREAM)
    assert again.last == START and again.numbers() == [0]
    again.append(NEXT, [])
    again.close()


def test_entries_are_forgotten_but_for_the_newest(tmp_path: Path) -> None:
    ledger = StreamLedger(str(tmp_path), STREAM)
    for number in range(4):
        ledger.append(StreamEntry(number, {}, {T0: number}), [])
    ledger.forget_below(2)
    assert ledger.numbers() == [2, 3]
    ledger.forget_below(100)
    assert ledger.numbers() == [3]
    ledger.close()


def test_the_ledger_of_another_stream_is_refused(tmp_path: Path) -> None:
    StreamLedger(str(tmp_path), STREAM).close()
    with pytest.raises(
        ConfigError, match=r"belongs to a stream with topics=\['t'\]: give this one a checkpoint of its own"
    ):
        StreamLedger(str(tmp_path), STREAM | {"topics": ["u"]})
    StreamLedger(str(tmp_path), STREAM).close()


def test_the_ledger_of_another_version_is_refused(tmp_path: Path) -> None:
    StreamLedger(str(tmp_path), STREAM).close()
    path = tmp_path / STREAM_FILE
    assert json.loads(path.read_text()) == {"version": 2, **STREAM}
    path.write_text(json.dumps(STREAM))
    with pytest.raises(
        ConfigError, match=r"has version 1, this raylog reads version 2\. Continue with that raylog, or give"
    ):
        StreamLedger(str(tmp_path), STREAM)


def test_a_file_that_is_no_entry_is_named(tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}.jsonl").write_text('{"topic": "t"}\n')
    with pytest.raises(ConfigError, match=r"00000000000000000000\.jsonl is not an entry of a stream's ledger"):
        StreamLedger(str(tmp_path), STREAM)


def test_one_process_at_a_time_writes_a_ledger(tmp_path: Path) -> None:
    ledger = StreamLedger(str(tmp_path), STREAM)
    script = f"from raylog.ranges.ledger import StreamLedger\nStreamLedger({str(tmp_path)!r}, {STREAM!r}).close()"
    refused = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert refused.returncode != 0 and "is being written by another process" in refused.stderr
    ledger.close()
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0


def test_losses_reach_a_task_where_there_is_nothing_to_read() -> None:
    lines = lines_of(StreamEntry(3, {"t": "id"}, {T0: 4, T1: 6}, (), ("all is lost",)), []).splitlines()
    assert [json.loads(line)["losses"] for line in lines] == [["all is lost"]] * 2


def test_tasks_are_told_ranges_hosts_and_losses(tmp_path: Path) -> None:
    ledger = StreamLedger(str(tmp_path), STREAM)
    ledger.append(START, [])
    near = OffsetRange("t", 0, 5, 9, ("a", "b"))
    ledger.append(NEXT, [near])
    ((part, line),) = ledger.parts(1)
    assert part == near and json.loads(line)["losses"] == []
    assert ledger.parts(0) == []
    with pytest.raises(FileNotFoundError):
        ledger.parts(2)
    ledger.close()


names = st.text(st.characters(codec="utf-8"), min_size=1)
keys = st.builds(TopicPartition, names, st.integers(0, 100))
offsets = st.integers(0, 2**63 - 1)
ranges = st.builds(
    lambda key, start, length, hosts: OffsetRange(*key, start, start + length, hosts),
    keys,
    offsets,
    st.integers(1, 10**6),
    st.lists(names).map(tuple),
)


@given(
    st.builds(
        StreamEntry,
        st.integers(0),
        st.dictionaries(names, names),
        st.dictionaries(keys, offsets),
        st.lists(ranges).map(tuple),
    )
)
def test_an_entry_comes_back_as_it_was_written(entry: StreamEntry) -> None:
    assert entry_of(lines_of(entry, list(entry.ranges))) == entry


def test_a_path_may_be_a_file_uri_and_nothing_that_is_no_file_system() -> None:
    assert local_path("file:///mnt/a%20b") == local_path("/mnt/a b") == Path("/mnt/a b")
    with pytest.raises(ConfigError, match="file system that all nodes share"):
        local_path("s3://bucket/x")
