"""A server that no further try would start ends the start of a cluster at once, in words that name what it lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import raylog.testing
from raylog.errors import ClusterError
from raylog.kafka import table
from raylog.listener.router import Router

pytestmark = pytest.mark.core


def test_a_broker_without_a_handler_for_one_of_its_apis_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = Router._handlers

    def without_fetch(self: Router, *parts: Any) -> Mapping[Any, Any]:
        return {spec: handler for spec, handler in handlers(self, *parts).items() if spec is not table.FETCH}

    monkeypatch.setattr(Router, "_handlers", without_fetch)
    with pytest.raises(ClusterError, match=r"a server cannot start: .*Fetch"), raylog.testing.broker():
        pass
