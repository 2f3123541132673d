"""How a page is rendered, and the words for what could not be asked.

Templates escape every value, whatever its file is called. A value that was never given is an error,
not an empty place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import quote

import jinja2
from kio.schema.errors import ErrorCode
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from raylog.errors import RaylogError

T = TypeVar("T")
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_NOT_AUTHORISED = {
    ErrorCode.topic_authorization_failed: "topic",
    ErrorCode.group_authorization_failed: "group",
    ErrorCode.cluster_authorization_failed: "cluster",
    ErrorCode.transactional_id_authorization_failed: "transactional id",
    ErrorCode.delegation_token_authorization_failed: "delegation token",
}
_FORBIDDEN, _NOT_FOUND, _UNAVAILABLE, _BAD_REQUEST = 403, 404, 503, 400
_MISSING = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.group_id_not_found,
        ErrorCode.transactional_id_not_found,
        ErrorCode.resource_not_found,
    }
)
_INVALID = frozenset({ErrorCode.invalid_config, ErrorCode.invalid_topic_exception, ErrorCode.invalid_group_id})


class PageError(Exception):
    """A page that can't be: the HTTP status, and a sentence for the reader."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a part of a page is missing. ``remedy``: a command that mends it, or empty."""

    text: str
    remedy: str = ""
    status: int = _UNAVAILABLE


def trouble_of(error: RaylogError, needs: str = "") -> Trouble:
    """``needs``: the permission that the question wants, as the options of ``raylog acls add``:
    "--operation Describe --cluster".
    """
    kind = _NOT_AUTHORISED.get(error.code)
    if kind is not None:
        remedy = f"raylog acls add --allow-principal User:NAME {needs}" if needs else ""
        text = f"The user of this console is not authorised for this {kind}: {error}"
        return Trouble(text, remedy, _FORBIDDEN)
    if error.code is ErrorCode.security_disabled:
        return Trouble("The cluster has no authorizer: whoever a listener lets in may do everything.")
    if error.code in _MISSING:
        return Trouble(str(error), "", _NOT_FOUND)
    if error.code in _INVALID:
        return Trouble(str(error), "", _BAD_REQUEST)
    return Trouble(f"The cluster does not answer this: {error}", "raylog status" if error.retriable else "")


def asked(ask: Callable[[], T], needs: str = "") -> tuple[T | None, Trouble | None]:
    """The answer, or why there is none; the rest of the page is shown in either case."""
    try:
        return ask(), None
    except RaylogError as error:
        return None, trouble_of(error, needs)


def size(count: int) -> str:
    """Bytes for people: "1.5 MiB". Negative: not known."""
    if count < 0:
        return "?"
    value = float(count)
    for unit in UNITS:
        if value < 1024 or unit == UNITS[-1]:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes everything")


def moment(at_ms: int) -> str:
    """A time in ms since 1970, in UTC; a dash where it is not known or beyond any calendar."""
    try:
        return "–" if at_ms < 0 else datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(" ", "milliseconds")[:23] + "Z"
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"


def link_to(path: str, **query: object) -> str:
    """A URL of the console with these parameters; None leaves one out."""
    given = [f"{name}={quote(str(value), safe='')}" for name, value in query.items() if value is not None]
    return quote(path) + ("?" + "&".join(given) if given else "")


def environment() -> jinja2.Environment:
    """The templates, which escape everything."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("raylog.console"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"size": size, "moment": moment, "thousands": lambda number: f"{number:,}"}
    made.globals["link"] = link_to
    return made


def page(request: Request, template: str, /, status: int = 200, **values: Any) -> Response:
    """A page of the console. Every template may use ``settings``, ``token`` and ``path``."""
    state = request.app.state
    text = state.templates.get_template(template).render(
        settings=state.settings,
        token=state.token,
        cluster_id=state.view.cluster.address.cluster_id,
        path=request.url.path,
        live_s=values.pop("live_s", 0),
        **values,
    )
    return HTMLResponse(text, status)


def number_of(request: Request, name: str, default: int, least: int = 0, most: int = 2**63 - 1) -> int:
    """A whole number of the query. Raises PageError (400) that names the field and its bounds."""
    text = request.query_params.get(name, "").strip()
    if not text:
        return default
    try:
        value = int(text) if len(text) <= 20 else most + 1
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise PageError(_BAD_REQUEST, f"{name}: {text[:40]!r} is no whole number from {least:,} to {most:,}")
    return value
