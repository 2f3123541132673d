"""What transactions are under way, and who may do what and how much: quotas, users, ACLs."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from raylog.console.overview import NEEDS_CLUSTER
from raylog.console.pages import asked, number_of, page
from raylog.console.view import ClusterView

PAGE_ROWS = 50
ACLS_MAX = 500
NEEDS_CONFIGS = "--operation DescribeConfigs --cluster"


def transactions_page(request: Request) -> Response:
    view: ClusterView = request.app.state.view
    search = request.query_params.get("search", "").strip()
    number = number_of(request, "page", 1, least=1, most=1_000_000)
    there = view.kept("transactions", view.admin.list_transactions)
    found = [each for each in there if search.lower() in each.transactional_id.lower()]
    pages = max(1, -(-len(found) // PAGE_ROWS))
    shown = [each.transactional_id for each in found[(min(number, pages) - 1) * PAGE_ROWS :][:PAGE_ROWS]]
    described, trouble = asked(
        lambda: view.admin.describe_transactions(shown), "--operation Describe --transactional-id '*'"
    )
    return page(
        request,
        "transactions.html",
        live_s=3,
        search=search,
        now_ms=round(time.time() * 1000),
        count=len(found),
        known=len(there),
        number=min(number, pages),
        pages=pages,
        rows=[] if described is None else [described[name] for name in shown],
        troubles=[] if trouble is None else [trouble],
    )


def access_page(request: Request) -> Response:
    view: ClusterView = request.app.state.view
    quotas, no_quotas = asked(lambda: view.kept("quotas", view.admin.describe_quotas), NEEDS_CONFIGS)
    users, no_users = asked(lambda: view.kept("users", view.admin.describe_users), NEEDS_CLUSTER)
    acls, no_acls = asked(lambda: view.kept("acls", view.admin.describe_acls), NEEDS_CLUSTER)
    return page(
        request,
        "access.html",
        live_s=5,
        quotas=quotas,
        users=users,
        acls=None if acls is None else acls[:ACLS_MAX],
        acls_left=0 if acls is None else max(0, len(acls) - ACLS_MAX),
        no_quotas=no_quotas,
        no_users=no_users,
        no_acls=no_acls,
    )
