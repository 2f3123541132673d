"""Schemas that a registry has given, kept; and how long a reader waits for one that is not there yet.

A thread asks for each schema, once however many readers want it, and makes it ready to decode. A
reader waits a bounded time in all for all that it wants (``ReaderPatience``): what has not come by then
is shown as bytes, and the answer is kept for the next reader. While the registry is away nobody waits at all:
``AWAY_S`` after each failure somebody's question tries it again, in the background.

Invariants: at most ``ASKING_MAX`` threads ask; what is kept has at most ``KEPT_MAX`` schemas and
``KEPT_BYTES_MAX`` bytes of text, and the refusals that are kept are at most ``REFUSED_MAX``. A schema's
id always means the same schema, so one that is kept never grows old.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Protocol

from raylog.schemas.registry import ANSWER_S, RegistryAwayError
from raylog.schemas.wire_format import NotDecodedError

logger = logging.getLogger("raylog.schemas")

WAIT_S: Final = 2.0
ASKED_MAX: Final = 20
"""New schemas that one reader asks for."""
ASKING_MAX: Final = 8
AWAY_S: Final = 5.0
REFUSED_S: Final = 10.0
REFUSED_MAX: Final = 1_000
KEPT_MAX: Final = 1_000
KEPT_BYTES_MAX: Final = 64 << 20


class ReadySchema(Protocol):
    """A schema that decodes. ``size_bytes``: of its text and of what it refers to."""

    @property
    def size_bytes(self) -> int: ...

    def decode(self, payload: bytes) -> tuple[str, Any]:
        """What to call it, such as "Avro shop.Order", and a value for JSON. Raises NotDecodedError, and
        what a library raises of bytes that are wrong.
        """
        ...


@dataclass(slots=True)
class ReaderPatience:
    """What one reader has left: a page, or what one poll of a consumer brought."""

    seconds: float = WAIT_S
    questions: int = ASKED_MAX


class SchemaCache:
    """``ask`` blocks and raises NotDecodedError. Usable from any thread."""

    def __init__(self, ask: Callable[[int], ReadySchema], clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, ReadySchema] = OrderedDict()
        self._kept_bytes = 0
        self._refused: OrderedDict[int, tuple[float, str]] = OrderedDict()
        self._asking: dict[int, Future[ReadySchema]] = {}
        self._away: str | None = None
        self._away_until = 0.0

    def schema(self, schema_id: int, patience: ReaderPatience) -> ReadySchema:
        """The schema, or NotDecodedError with why it isn't there."""
        with self._lock:
            found = self._kept.get(schema_id)
            if found is not None:
                self._kept.move_to_end(schema_id)
                return found
            self._raise_refusal(schema_id)
            is_away = self._away is not None
            answer = self._asked(schema_id, patience)
        if is_away:
            raise NotDecodedError(f"{self._away or 'the schema registry answers again'}; it is asked again now")
        return _waited(answer, patience)

    def _raise_refusal(self, schema_id: int) -> None:
        """If it is known that there is no answer now."""
        now_s = self._clock()
        until_s, reason = self._refused.get(schema_id, (0.0, ""))
        if now_s < until_s:
            raise NotDecodedError(reason)
        if self._away is not None and now_s < self._away_until:
            raise NotDecodedError(self._away)

    def _asked(self, schema_id: int, patience: ReaderPatience) -> Future[ReadySchema]:
        """The answer that is under way, or a new one."""
        under_way = self._asking.get(schema_id)
        if under_way is not None:
            return under_way
        if patience.questions <= 0:
            raise NotDecodedError(f"more than {ASKED_MAX} schemas would be asked for at once")
        if len(self._asking) >= ASKING_MAX:
            raise NotDecodedError("the schema registry is being asked for many schemas already")
        patience.questions -= 1
        answer: Future[ReadySchema] = Future()
        self._asking[schema_id] = answer
        thread = threading.Thread(target=self._fetch, args=(schema_id, answer), name=f"schema-{schema_id}", daemon=True)
        thread.start()
        return answer

    def _fetch(self, schema_id: int, answer: Future[ReadySchema]) -> None:
        try:
            found = self._ask(schema_id)
        except NotDecodedError as error:
            self._refuse(schema_id, error)
            answer.set_exception(error)
            return
        except Exception as error:  # of a library, about a schema that somebody has registered
            logger.warning("schema %d cannot be used", schema_id, exc_info=True)
            refusal = NotDecodedError(f"schema {schema_id} cannot be used: {type(error).__name__}")
            self._refuse(schema_id, refusal)
            answer.set_exception(refusal)
            return
        self._keep(schema_id, found)
        answer.set_result(found)

    def _refuse(self, schema_id: int, error: NotDecodedError) -> None:
        now_s = self._clock()
        with self._lock:
            del self._asking[schema_id]
            if isinstance(error, RegistryAwayError):
                self._away, self._away_until = str(error), now_s + AWAY_S
                return
            self._away = None
            self._refused[schema_id] = (now_s + REFUSED_S, str(error))
            self._refused.move_to_end(schema_id)
            while len(self._refused) > REFUSED_MAX:
                self._refused.popitem(last=False)

    def _keep(self, schema_id: int, found: ReadySchema) -> None:
        with self._lock:
            del self._asking[schema_id]
            self._away = None
            self._kept[schema_id] = found
            self._kept_bytes += found.size_bytes
            while len(self._kept) > KEPT_MAX or (self._kept_bytes > KEPT_BYTES_MAX and len(self._kept) > 1):
                _, oldest = self._kept.popitem(last=False)
                self._kept_bytes -= oldest.size_bytes


def _waited(answer: Future[ReadySchema], patience: ReaderPatience) -> ReadySchema:
    begun_s = time.monotonic()
    try:
        return answer.result(max(0.0, patience.seconds))
    except TimeoutError:
        raise NotDecodedError(f"the schema registry has not answered yet; it has {ANSWER_S:.0f} s") from None
    finally:
        patience.seconds -= time.monotonic() - begun_s
