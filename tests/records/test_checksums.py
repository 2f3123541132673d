"""How many batches of a buffer are whole: the kernel's walk and Python's say the same."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raylog.records import checksums, kernel
from raylog.records.batch import batches
from raylog.records.checksums import whole_batches
from raylog.records.codec import encode_values

SETTINGS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("kind", [bytes, bytearray])
@SETTINGS
@given(
    sizes=st.lists(st.integers(0, 600), min_size=1, max_size=12),
    skipped=st.integers(0, 11),
    flipped=st.none() | st.tuples(st.integers(0, 1 << 20), st.integers(0, 7)),
)
def test_batches_are_whole_up_to_the_one_with_a_changed_bit(kind, is_native, sizes, skipped, flipped):
    data = bytearray(b"".join(bytes(encode_values([b"v" * size], timestamp_ms=0)) for size in sizes))
    starts = [view.position for view in batches(bytes(data))] + [len(data)]
    start = starts[min(skipped, len(sizes) - 1)]
    damaged = len(data)
    if flipped is not None:
        position = start + flipped[0] % (len(data) - start)
        damaged = max(each for each in starts if each <= position)
        within = position - damaged
        if within in range(8) or within in range(12, 16):
            damaged = len(data)  # no checksum covers base offset and leader epoch
        data[position] ^= 1 << flipped[1]
    with pytest.MonkeyPatch.context() as patch:
        if not is_native:
            patch.setattr(checksums.kernel, "loaded", lambda: None)
        assert is_native <= (kernel.loaded() is not None)
        end, last = whole_batches(kind(data), start, len(data))
    assert end == damaged
    assert last == (max(each for each in starts if each < end) if end > start else start)
