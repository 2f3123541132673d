"""What processes that hold replicas are told of client quotas, as a text among their settings.

Programs that know the cluster's secret talk to these processes without a Broker between, and are no
users: of all quotas, those of client ids alone can be about them. The text is JSON::

    {"windows": 11, "window_ms": 1000, "quotas": [["report", "producer_byte_rate", 1048576.0], …]}

The client id null is the default. Where no quota can be about such a program there is no text.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from raylog.security.quotas import BYTE_RATES, CLIENT_ID, ClientQuotas

SETTING: Final = "client.quotas"
"""The name among the settings. No config has it, and a process that does not know it ignores it."""


class ToldQuotas(NamedTuple):
    quotas: ClientQuotas
    windows: int
    window_ms: int


def as_text(quotas: ClientQuotas, windows: int, window_ms: int) -> str | None:
    """The text; None if there is nothing to tell."""
    told = [
        (entity[0][1], key, value)
        for entity, key, value in quotas.each()
        if key in BYTE_RATES and len(entity) == 1 and entity[0][0] == CLIENT_ID
    ]
    return json.dumps({"windows": windows, "window_ms": window_ms, "quotas": told}) if told else None


def from_text(text: str) -> ToldQuotas:
    told = json.loads(text)
    quotas = ClientQuotas()
    for client_id, key, value in told["quotas"]:
        quotas.set(((CLIENT_ID, client_id),), key, value)
    return ToldQuotas(quotas, told["windows"], told["window_ms"])
