"""The bytes of the last appends, kept until every in-sync replica has them.

Followers fetch what a leader has just appended, each of them the same bytes: from here they get
them without reading the file. It is a memory only: whatever is not here is in the file too.

Invariants (``check``): appends follow each other without a gap; ``size_bytes`` is their sum and at
most ``BYTES_MAX``.
"""

from __future__ import annotations

from raylog.log.files import Buffer

BYTES_MAX = 4 << 20
"""Per log. Followers that are further behind read from the page cache."""

_Append = tuple[int, bytes, bool]  # the offset behind it, the batches as they are in the file, whether it is only one


class RecentAppends:
    """By base offset, the oldest first."""

    __slots__ = ("_appends", "size_bytes")

    def __init__(self) -> None:
        self._appends: dict[int, _Append] = {}
        self.size_bytes = 0

    def add(self, base_offset: int, next_offset: int, data: bytes, *, is_one_batch: bool) -> None:
        """Keep an append; the oldest go where there is no room."""
        self._appends[base_offset] = (next_offset, data, is_one_batch)
        self.size_bytes += len(data)
        while self.size_bytes > BYTES_MAX:
            self._drop_oldest()

    def drop_below(self, offset: int) -> None:
        """Forget what everybody has: the appends that end at or below ``offset``."""
        while self._appends and next(iter(self._appends.values()))[0] <= offset:
            self._drop_oldest()

    def clear(self) -> None:
        self._appends.clear()
        self.size_bytes = 0

    def read(self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool) -> tuple[Buffer, int] | None:
        """Whole appends from the one that starts at ``offset``, as many as fit, none that reaches
        behind ``end_offset``.

        And the offset behind them. None where that is for the file to answer.
        """
        found = self._appends.get(offset)
        if found is None:
            return None
        next_offset, data, is_one_batch = found
        if next_offset > end_offset or (len(data) > max_bytes and not (at_least_one and is_one_batch)):
            return None
        more = self._appends.get(next_offset)
        if more is None or len(data) + len(more[1]) > max_bytes or more[0] > end_offset:
            return data, next_offset
        parts, size = [data], len(data)
        while more is not None and size + len(more[1]) <= max_bytes and more[0] <= end_offset:
            next_offset = more[0]
            parts.append(more[1])
            size += len(more[1])
            more = self._appends.get(next_offset)
        return b"".join(parts), next_offset

    def _drop_oldest(self) -> None:
        oldest = next(iter(self._appends))
        self.size_bytes -= len(self._appends.pop(oldest)[1])

    def check(self, log_end_offset: int) -> None:
        """Raise AssertionError where an invariant is broken."""
        expected = None
        for base_offset, (next_offset, _, _) in self._appends.items():
            assert expected is None or base_offset == expected, (base_offset, expected)
            assert base_offset < next_offset <= log_end_offset, (base_offset, next_offset, log_end_offset)
            expected = next_offset
        assert expected is None or expected == log_end_offset, (expected, log_end_offset)
        assert self.size_bytes == sum(len(data) for _, data, _ in self._appends.values()) <= BYTES_MAX
