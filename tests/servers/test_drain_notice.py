"""A Broker process asks until it hears that its node is about to go, and says so to every controller that it meets."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from raylog.control.session import FromActor, NodeLeaving
from raylog.disks.disk import encode_id, format_disk
from raylog.server import broker_server
from raylog.server.broker_server import BrokerServer
from raylog.server.spec import ServerSpec


def test_a_notice_is_asked_for_until_it_comes_and_told_to_every_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory_id = uuid.UUID(int=5)
    cluster_id = encode_id(uuid.UUID(int=4))
    format_disk(
        tmp_path / "disk",
        cluster_id=cluster_id,
        broker_id=0,
        rack=None,
        controllers=[],
        secret="s",
        directory_id=directory_id,
    )
    answers: Iterator[bool | Exception] = iter([False, RuntimeError("the head is away"), False, True])

    def node_is_leaving() -> bool:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    sent: list[FromActor] = []

    async def run() -> None:
        spec = ServerSpec(0, directory_id, str(tmp_path / "disk"), "127.0.0.1", 1)
        server = BrokerServer(spec, node_is_leaving=node_is_leaving)
        monkeypatch.setattr(server._session, "send", sent.append)
        server._session_changed(True)
        assert not sent, "nothing is known yet"
        await server._await_notice(node_is_leaving)
        assert sent == [NodeLeaving()] and next(answers, None) is None, "it is not asked for again"
        server._session_changed(False)
        server._session_changed(True)
        assert sent == [NodeLeaving()] * 2, "the next controller hears of it, too"

    monkeypatch.setattr(broker_server, "NOTICE_POLL_S", 0)
    asyncio.run(run())
