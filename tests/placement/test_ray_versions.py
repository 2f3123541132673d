"""A Ray of another version, or on another Python, is named with what to do; the complaints are Ray's own."""

from __future__ import annotations

import pytest

from raylog.placement.ray_connection import other_version

COMPLAINT = """Version mismatch: The cluster was started with:
    Ray: {}
    Python: {}
This process on node 192.0.2.2 was started with:
    Ray: {}
    Python: {}
"""


@pytest.mark.parametrize(
    ("versions", "says"),
    [
        (("2.60.0", "3.11.7", "2.58.1", "3.11.7"), "is 2.60.0, and this program has 2.58.1: install ray==2.60.0 here"),
        (("2.60.0", "3.11.7", "2.60.0", "3.12.1"), "on Python 3.11.7, and this program on 3.12.1: run it on 3.11.7"),
        (("2.60.0", "3.11.7", "2.60.0", "3.11.7"), "is another version"),
    ],
)
def test_the_versions_of_the_complaint_are_told_with_what_to_do(versions: tuple[str, ...], says: str) -> None:
    told = other_version("10.0.0.1:6379", COMPLAINT.format(*versions))
    assert says in told and "10.0.0.1:6379" in told and "bootstrap_servers" in told
    assert "\n" not in told


def test_a_complaint_in_other_words_is_passed_on() -> None:
    assert "(Version mismatch: nobody knows)" in other_version("here", "Version mismatch:\nnobody knows")
