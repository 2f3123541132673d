"""The small files beside a metadata log, each kept twice: the term and vote, the log's end, the
process's number.

::

    quorum-state    {"version": 1, "term": 3, "voted_for": "<directory id>" or null, "crc": "<hex>"}
                    of a recovering voter: {"version": 2, …, "recovering_term": 2, "crc": "<hex>"}
    log-end         {"version": 1, "index": 7, "term": 3, "crc": "<hex>"}
    incarnation     {"version": 1, "incarnation": 1700…, "crc": "<hex>"}
    <name>.copy     the same again
    ../<folder>.incarnation    once more: the others go by it, and would take the process for an older one if it was lost with the
                    folder on a machine whose clock has been set back

The ``crc`` of a text is the CRC-32C of the text without it. A folder of an older raylog has no
copies; they are written when it is opened.

Of two whole copies the later one counts. A voter's term only grows, and within a term it goes from
no vote to one vote, so the later state is the one of the higher term, then the one that has a vote.
Both copies are durable before anybody is told: a crash between the two leaves the state before,
which was answered by, or the new one, which nobody has heard of. Whoever reads them makes them
equal before it says anything, so from then on either of them may be lost. An older raylog that runs
in between leaves the copies as they are: they protect again when this one has opened the folder.

A copy that is missing or damaged is written anew from the other one, and ``notices`` says so. If
neither is whole the file is refused by name, except for ``log-end``: a loss of power may leave that
one behind, or damaged, but never ahead of the log. So the greater of its two copies counts.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

from crc32c import crc32c

from raylog.errors import DiskError
from raylog.log.files import File, Files
from raylog.raft.messages import HardState

STATE_NAME = "quorum-state"
END_NAME = "log-end"
INCARNATION_NAME = "incarnation"
COPY_SUFFIX = ".copy"
VERSION = 1
RECOVERING_VERSION = 2
"""Of a ``quorum-state`` that says that its voter is recovering: an older raylog would let it vote."""

_END_BYTES = 128  # of ``log-end``, filled up with spaces
_Content = TypeVar("_Content")


class StateFiles:
    """The files of one folder. ``notices`` collects what was found damaged, for the log of the
    process.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self.notices: list[str] = []
        self._files = files
        self._directory = directory
        self._end_files: list[File] = []

    def _paths(self, name: str) -> tuple[str, ...]:
        inside = f"{self._directory}/{name}", f"{self._directory}/{name}{COPY_SUFFIX}"
        return (*inside, f"{self._directory}.{name}") if name == INCARNATION_NAME else inside

    def _read(self, name: str, decode: Callable[[bytes, str], _Content]) -> tuple[list[_Content], dict[str, str]]:
        """What the whole copies hold, and by path what is wrong with the others. DiskError for a
        newer version.
        """
        found: list[_Content] = []
        wrong: dict[str, str] = {}
        for path in self._paths(name):
            content = b""
            try:
                content = self._files.read_file(path)
                found.append(decode(content, path))
            except FileNotFoundError:
                wrong[path] = "is missing"
            except (ValueError, KeyError, TypeError, AttributeError):
                wrong[path] = f"is corrupt: {content[:80]!r}"
        if found:
            self.notices += [f"{path} {what}; it is written anew from its other copy" for path, what in wrong.items()]
        return found, wrong

    def _write(self, name: str, content: bytes) -> None:
        for path in self._paths(name):
            self._files.write_file(path, content)

    # ------------------------------------------------------------------ term and vote

    @property
    def has_state(self) -> bool:
        return any(self._files.exists(path) for path in self._paths(STATE_NAME))

    def read_state(self) -> HardState:
        """The later of the two copies; both hold it durably when this returns. DiskError if neither
        can be read.
        """
        found, wrong = self._read(STATE_NAME, _decode_state)
        if not found:
            path, what = next((each for each in wrong.items() if "corrupt" in each[1]), next(iter(wrong.items())))
            if what == "is missing":
                what += ": this voter has forgotten its votes"
            raise DiskError(f"{path} {what}; bring it back from a copy, or take this voter out")
        latest = max(found, key=_lateness)
        if wrong or any(each != latest for each in found):
            self.write_state(latest)
        return latest

    def write_state(self, state: HardState) -> None:
        """Durable in both copies when it returns."""
        self._write(STATE_NAME, encode_state(state))

    # ------------------------------------------------------------------ the log's end

    def read_end(self) -> tuple[int, int] | None:
        """Term and index; None if a loss of power, or an older raylog, has left nothing to go by."""
        try:
            found, _ = self._read(END_NAME, _decode_end)
        except DiskError:
            return None
        return max(found, default=None)

    def note_end(self, term: int, index: int, *, flush: bool = False) -> None:
        """Overwritten in place, in one page each: a file that takes another's place would make the
        next flush dearer.
        """
        for path in self._paths(END_NAME)[len(self._end_files) :]:
            self._end_files.append(self._files.open(path, create=True))
        text = _with_crc({"version": VERSION, "index": index, "term": term})
        for file in self._end_files:
            file.write_at(0, text.rstrip().ljust(_END_BYTES - 1) + b"\n")
            if flush:
                file.flush()

    # ------------------------------------------------------------------ the process's number

    def claim_incarnation(self, clock: int) -> int:
        """``clock``, or the number after the last one that was claimed; durable when it returns."""
        found, wrong = self._read(INCARNATION_NAME, _decode_incarnation)
        for path, what in wrong.items():
            if not found and what != "is missing":
                raise DiskError(f"{path} {what}; remove it if this machine's clock has not been set back")
        claimed = max(clock, max(found, default=0) + 1)
        self._write(INCARNATION_NAME, _with_crc({"version": VERSION, "incarnation": claimed}))
        return claimed

    def close(self) -> None:
        for file in self._end_files:
            file.close()


# ------------------------------------------------------------------ bytes


def refuse_newer(version: int, path: str, known: int = VERSION) -> None:
    if version > known:
        raise DiskError(f"{path} is of version {version}; this raylog reads up to {known}: use the newer one")


def encode_state(state: HardState) -> bytes:
    voted_for = None if state.voted_for is None else str(state.voted_for)
    fields: dict[str, object] = {"version": VERSION, "term": state.term, "voted_for": voted_for}
    if state.recovering_term is not None:
        fields |= {"version": RECOVERING_VERSION, "recovering_term": state.recovering_term}
    return _with_crc(fields)


def read_state(content: bytes, path: str) -> HardState:
    """The term and vote in a file's bytes; DiskError if they are damaged."""
    try:
        return _decode_state(content, path)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DiskError(f"{path} is corrupt: {content[:80]!r}") from None


def _lateness(state: HardState) -> tuple[int, bool, bool]:
    """Of two states of one voter. Where only the recovery tells them apart, the one that does not
    vote counts.
    """
    return state.term, state.voted_for is not None, state.recovering_term is not None


def _with_crc(fields: dict[str, object]) -> bytes:
    crc = crc32c(json.dumps(fields).encode())
    return json.dumps(fields | {"crc": f"{crc:08x}"}).encode() + b"\n"


def _checked(content: bytes, *names: str) -> dict[str, Any]:
    """The fields of such a text. ValueError if its bytes are not what was written; older ones have
    no checksum, and these names.
    """
    fields: dict[str, Any] = json.loads(content)
    crc = fields.pop("crc", None)
    if crc is None and fields.keys() != {"version", *names}:
        raise ValueError("there is no checksum")
    if crc is not None and crc != f"{crc32c(json.dumps(fields).encode()):08x}":
        raise ValueError("the checksum is wrong")
    return fields


def _decode_state(content: bytes, path: str) -> HardState:
    fields = _checked(content, "term", "voted_for")
    refuse_newer(int(fields["version"]), path, RECOVERING_VERSION)
    voted_for, recovering_term = fields["voted_for"], fields.get("recovering_term")
    return HardState(
        int(fields["term"]),
        None if voted_for is None else uuid.UUID(voted_for),
        None if recovering_term is None else int(recovering_term),
    )


def _decode_end(content: bytes, path: str) -> tuple[int, int]:
    fields = _checked(content, "index", "term")
    refuse_newer(int(fields["version"]), path)
    return int(fields["term"]), int(fields["index"])


def _decode_incarnation(content: bytes, path: str) -> int:
    fields = _checked(content, "incarnation")
    refuse_newer(int(fields["version"]), path)
    return int(fields["incarnation"])
