"""What the tests of the console ask with: HTTP over a socket, cookies and redirects left alone."""

from __future__ import annotations

import http.client
import re
from dataclasses import dataclass
from html import unescape
from typing import Any
from urllib.parse import urlencode, urlsplit

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Page:
    status: int
    headers: dict[str, str]
    html: str

    @property
    def text(self) -> str:
        """What a reader sees, with single spaces."""
        return " ".join(unescape(re.sub(r"<[^>]+>", " ", self.html)).split())

    def rows(self) -> list[list[str]]:
        """The cells of all rows of all tables."""
        return [
            [
                " ".join(unescape(re.sub(r"<[^>]+>", " ", cell)).split())
                for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)
            ]
            for row in re.findall(r"<tr>(.*?)</tr>", self.html, re.DOTALL)
            if "<td" in row
        ]

    def field(self, name: str) -> str:
        found = re.search(rf'name="{name}" value="([^"]*)"', self.html)
        assert found is not None, f"no field {name}"
        return unescape(found[1])


class Browser:
    """``app`` is the console's own, for what a test must know of it."""

    def __init__(self, url: str, app: Any) -> None:
        self.url = url.rstrip("/")
        self.app = app
        self.netloc = urlsplit(url).netloc

    def get(self, path: str, *, headers: dict[str, str] | None = None, **query: object) -> Page:
        return self.ask("GET", path + ("?" + urlencode(query) if query else ""), headers=headers or {})

    def post(self, path: str, fields: dict[str, str], *, headers: dict[str, str] | None = None) -> Page:
        """As a browser sends a form of one of the console's own pages, unless ``headers`` say otherwise."""
        own = {"Content-Type": "application/x-www-form-urlencoded", "Origin": self.url}
        return self.ask("POST", path, body=urlencode(fields).encode(), headers=own | (headers or {}))

    def ask(self, method: str, path: str, *, body: bytes | None = None, headers: dict[str, str] | None = None) -> Page:
        connection = http.client.HTTPConnection(self.netloc, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            html = answer.read().decode()
            return Page(answer.status, {name.lower(): value for name, value in answer.getheaders()}, html)
        finally:
            connection.close()
