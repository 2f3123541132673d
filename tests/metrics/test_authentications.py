"""What clients do at a listener with SASL, as the metrics count it."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode
from outside import listener
from raw_requests import eventually
from sasl_client import SaslClient, Scram
from scraping import open_metrics, scraped

from raylog.client.sync import AdminClient
from raylog.metrics import table
from raylog.testing.in_process import cluster
from raylog.wire.listeners import listeners_of

pytestmark = pytest.mark.core

MECHANISM = "SCRAM-SHA-256"


def test_clients_that_authenticate_and_those_that_fail_are_counted_apart() -> None:
    with cluster(brokers=1, listeners=listeners_of("SASL_PLAINTEXT://127.0.0.1:0")) as running:
        with AdminClient(running.address) as admin:
            admin.set_user("alice", "a secret")
        server = running.launcher.servers[0].router._sasl
        eventually(lambda: len(server._credentials()) > 0, "the broker knows the user")
        at = open_metrics(running, 1)[0]

        def counts() -> tuple[float, float]:
            found, series = scraped(at), ("SASL_PLAINTEXT",)
            named = (table.SUCCESSFUL_AUTHENTICATIONS, table.FAILED_AUTHENTICATIONS)
            return tuple(found.get(each.name, {}).get(series, 0) for each in named)  # type: ignore[return-value]

        def answered(password: str) -> ErrorCode:
            client = SaslClient(listener(running, 0))
            client.handshake(MECHANISM)
            scram = Scram("alice", password, MECHANISM)
            code: ErrorCode = client.token(scram.final(client.token(scram.first()).auth_bytes)).error_code
            client.socket.close()
            return code

        assert answered("a secret") is ErrorCode.none
        assert counts() == (1, 0)
        assert answered("a guess") is answered("another") is ErrorCode.sasl_authentication_failed
        assert counts() == (1, 2)
