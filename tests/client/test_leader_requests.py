"""Questions to leaders that nobody can answer in time end with one clear error and leave nothing behind."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
from scripted_cluster import ScriptedCluster

from raylog.client.sync import AdminClient
from raylog.errors import ClientTimeoutError

pytestmark = pytest.mark.core

LIST_OFFSETS = 2


def test_a_question_whose_time_is_over_leaves_no_search_behind(scripted: Callable[..., ScriptedCluster]) -> None:
    cluster = scripted()
    cluster.stop(0)
    cluster.stop(1)
    with (
        AdminClient(cluster.address, default_api_timeout_ms=5, request_timeout_ms=2_000) as admin,
        pytest.raises(ClientTimeoutError, match="no answer within 5 ms"),
    ):
        admin.list_offsets({("t", 0): "latest"})
    gc.collect()  # a coroutine that was never awaited is a warning now, and a warning is an error
