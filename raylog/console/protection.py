"""What a browser has to prove before a page answers, and the headers of every answer.

- The host that the browser names is one of the console's, where it is bound to loopback: a page of
  a stranger cannot reach the console by a name of its own that leads to 127.0.0.1.
- The password, if there is one, by HTTP's Basic scheme.
- A change (any method but GET and HEAD) comes from a page of the same origin, as the browser says
  in ``Origin`` or ``Sec-Fetch-Site``; its form also has the token that only pages of this process
  know (``app.changing``). In read-only mode there are no changes.
- A body has at most ``BODY_BYTES_MAX`` bytes.

No answer may load, frame or run anything that the console does not serve itself.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES_MAX: Final = 1 << 20
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers would send no Origin with a form
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Protection:
    """Around the whole app. ``hosts``: the names by which it may be reached; None: any."""

    def __init__(self, app: ASGIApp, *, hosts: frozenset[str] | None, password: str | None, is_read_only: bool) -> None:
        self._app = app
        self._hosts = hosts
        self._password = None if password is None else password.encode()
        self._is_read_only = is_read_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_protected)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._hosts is not None and _name_of(host) not in self._hosts:
            known = ", ".join(sorted(self._hosts))
            return PlainTextResponse(f"This console is reached as {known} only.\n", 421)
        if self._password is not None and not _is_password(headers.get("authorization", ""), self._password):
            challenge = {"WWW-Authenticate": 'Basic realm="raylog console", charset="UTF-8"'}
            return PlainTextResponse("The console wants its password (any user name).\n", 401, challenge)
        if scope["method"] in ("GET", "HEAD"):
            return None
        if self._is_read_only:
            return PlainTextResponse("This console is read-only: it was started with --read-only.\n", 403)
        if not _is_same_origin(headers, f"{scope['scheme']}://{host}"):
            return PlainTextResponse("A change has to come from a page of this console.\n", 403)
        if not headers.get("content-length", "").isdecimal() or int(headers["content-length"]) > BODY_BYTES_MAX:
            return PlainTextResponse(f"A form has a length, of at most {BODY_BYTES_MAX:,} bytes.\n", 413)
        return None


def _name_of(host: str) -> str:
    """The name in a Host header, without the port and the brackets of an IPv6 address."""
    name = host.lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0]


def _is_password(authorization: str, password: bytes) -> bool:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return False
    try:
        given = base64.b64decode(encoded, validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(given, password)


def _is_same_origin(headers: Headers, own: str) -> bool:
    """Browsers send Origin with each form that is posted; one that does not has to say Sec-Fetch-Site."""
    origin = headers.get("origin")
    return origin == own if origin is not None else headers.get("sec-fetch-site") == "same-origin"
