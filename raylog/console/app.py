"""The table of pages, what becomes of errors, and what every change has to bring.

A page is a plain function in a thread: it may block on the cluster. An error that has a name becomes
a page that says it, with the status of HTTP that fits; the browser's script goes on asking.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from raylog.console import access, groups, messages, overview, timeline, topics
from raylog.console.lag_history import LagSampler
from raylog.console.pages import PageError, Trouble, environment, page, trouble_of
from raylog.console.protection import Protection
from raylog.console.serving import ConsoleSettings
from raylog.console.view import ClusterView
from raylog.errors import RaylogError
from raylog.schemas.decoding import SchemaDecoder

Fields = Mapping[str, str]
Change = Callable[[Request, Fields], Response]
FORM_FIELDS_MAX = 10_000


def console_app(view: ClusterView, settings: ConsoleSettings, decoder: SchemaDecoder | None = None) -> Starlette:
    """The app. It closes the view when it ends. ``decoder``: of a schema registry, if there is one."""

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        sampler: LagSampler = app.state.lags
        sampler.start()
        try:
            yield
        finally:
            await run_in_threadpool(sampler.stop)
            await run_in_threadpool(view.close)

    app = Starlette(
        routes=[
            Route("/", overview.overview_page),
            Route("/topics", topics.topics_page),
            Route("/topics/{topic}", topics.topic_page),
            Route("/topics/{topic}/messages", messages.messages_page),
            Route("/topics/{topic}/messages/{partition:int}/{offset:int}", messages.message_page),
            Route("/topics/{topic}/tail", messages.tail_page),
            Route("/topics/{topic}/tail/records", messages.tail_records),
            Route("/groups", groups.groups_page),
            Route("/group", groups.group_page),
            Route("/group/reset", groups.reset_page),
            Route("/group/reset", changing(groups.reset), methods=["POST"]),
            Route("/transactions", access.transactions_page),
            Route("/access", access.access_page),
            Route("/events", timeline.events_page),
            Mount("/static", StaticFiles(packages=[("raylog.console", "static")])),
        ],
        middleware=[
            Middleware(
                Protection,
                hosts=settings.hosts,
                password=settings.password,
                is_read_only=settings.is_read_only,
            )
        ],
        exception_handlers={
            RaylogError: _of_cluster,
            PageError: _of_page,
            HTTPException: _of_http,
        },
        lifespan=life,
    )
    app.state.view = view
    app.state.settings = settings
    app.state.decoder = decoder
    app.state.templates = environment()
    app.state.token = secrets.token_urlsafe(32)
    app.state.lags = LagSampler(view)
    return app


def changing(change: Change) -> Callable[[Request], Awaitable[Response]]:
    """A page that changes something: its form has to bring the token of this process. Fields that
    a form has twice count once.
    """

    async def answer(request: Request) -> Response:
        body = (await request.body()).decode("utf-8", "replace")
        try:
            parsed = parse_qs(body, keep_blank_values=True, max_num_fields=FORM_FIELDS_MAX)
        except ValueError:
            raise PageError(400, f"A form has at most {FORM_FIELDS_MAX:,} fields.") from None
        fields = {name: values[0] for name, values in parsed.items()}
        if not hmac.compare_digest(fields.get("token", "").encode(), request.app.state.token.encode()):
            raise PageError(
                403, "This form is older than the console's process: go back, reload the page and try again."
            )
        return await run_in_threadpool(change, request, fields)

    return answer


def _of_cluster(request: Request, error: Exception) -> Response:
    assert isinstance(error, RaylogError), error
    return _trouble_page(request, trouble_of(error))


def _of_page(request: Request, error: Exception) -> Response:
    assert isinstance(error, PageError), error
    return _trouble_page(request, Trouble(str(error), status=error.status))


def _of_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), error
    words = {404: "There is no such page.", 405: "This page takes no such request."}
    return _trouble_page(request, Trouble(words.get(error.status_code, error.detail), status=error.status_code))


def _trouble_page(request: Request, trouble: Trouble) -> Response:
    return page(request, "trouble.html", trouble.status, trouble=trouble, live_s=3)
