"""What a fuzzer's sessions are made of, who may send what, and the page of its results."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from pathlib import Path

from acl_cases import USUAL, _filled
from fed_frames import SESSION_BYTES_MAX, WHO, is_harmless, kept_frames, mixed, seeds, session, split, who_of
from fuzz_report import GROWTH_BYTES_MAX, Report, page
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema

from raylog.wire.frames import client_id_field, encode_request

SEEDS = seeds(uuid.UUID(int=7))
FRAMES = [frame for each in SEEDS for frame in split(each[1:])[0]]


@given(st.sampled_from(WHO), st.lists(st.binary(max_size=40), max_size=8))
def test_a_session_is_its_frames(who: str, frames: list[bytes]) -> None:
    data = session(who, frames)
    assert who_of(data) == who
    assert split(data[1:]) == (frames, b"")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 2**32))
def test_whatever_is_changed_is_a_session(data: bytes, seed: int) -> None:
    found = mixed(random.Random(seed), data, FRAMES)
    assert 0 < len(found) <= SESSION_BYTES_MAX
    assert who_of(found) in WHO


def test_what_a_fuzzer_has_kept_is_frames(tmp_path: Path) -> None:
    assert kept_frames(tmp_path / "nowhere") == []
    (tmp_path / "one").write_bytes(session("open", [b"frame one", b"short", b"frame two"]))
    (tmp_path / "two").write_bytes(session("sasl", [b"frame one"]))
    assert kept_frames(tmp_path) == [b"frame one", b"frame two"]


def test_a_super_user_creates_nothing() -> None:
    def creation(validate_only: bool) -> bytes:
        body = _filled(load_request_schema(19, 5), {**USUAL, "validate_only": validate_only})
        return b"".join(encode_request(body, 7, client_id_field("fuzz")))[4:]

    assert is_harmless(creation(True))
    assert not is_harmless(creation(False))
    assert not is_harmless(next(each for each in FRAMES if each[:2] == b"\0\x14"))  # DeleteTopics


def test_the_page_has_the_last_run_of_each_kind() -> None:
    report = Report(frames=Counter(open=3), outcomes=Counter(none=2), seconds=1.5, edges=17, kept=4, slowest_cpu_s=0.02)
    assert Report.of_json(report.as_json()) == report
    text = page({"random": None, "guided": ("make fuzz-guided", report)})
    assert "It has not run here." in text
    assert "17 edges covered, 4 sessions kept" in text and "FINDINGS: none" in text


def test_growth_and_bad_outcomes_are_findings() -> None:
    report = Report(outcomes=Counter({"an answer to nothing": 2, "none": 5}), grown_bytes=GROWTH_BYTES_MAX + 1)
    report.judge()
    assert list(report.findings) == ["an answer to nothing", "memory has grown by 96 MiB"]
