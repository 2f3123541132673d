"""The controller's Kafka APIs for client quotas (KIP-546). As in ``admin``, each entry of ``APIS``
is two translations.
"""

from __future__ import annotations

from typing import Any

from raylog.kafka import table
from raylog.metadata.requests import ControllerReply, Request
from raylog.metadata.users import quota_requests
from raylog.security.quotas import Entity, QuotaComponent
from raylog.server.apis.api import Api, answer
from raylog.server.apis.entities import CODES, NO_DELAY


def _alter_request(body: Any, version: int) -> Request:
    return quota_requests.AlterClientQuotas(
        tuple(
            quota_requests.QuotaAlteration(
                tuple((part.entity_type, part.entity_name) for part in entry.entity),
                tuple((each.key, None if each.remove else float(each.value)) for each in entry.ops),
            )
            for entry in body.entries
        ),
        body.validate_only,
    )


def _altered_entity(body: Any, reply: ControllerReply, version: int) -> Any:
    cls, module = answer(table.ALTER_CLIENT_QUOTAS, version)
    assert isinstance(reply, quota_requests.ClientQuotasAltered), reply
    entries = tuple(
        module.EntryData(error_code=CODES[each.error], error_message=each.message, entity=_parts(module, each.entity))
        for each in reply.outcomes
    )
    return cls(throttle_time=NO_DELAY, entries=entries)


def _describe_request(body: Any, version: int) -> Request:
    components = (QuotaComponent(each.entity_type, int(each.match_type), each.match) for each in body.components)
    return quota_requests.DescribeClientQuotas(tuple(components), body.strict)


def _described_entity(body: Any, reply: ControllerReply, version: int) -> Any:
    cls, module = answer(table.DESCRIBE_CLIENT_QUOTAS, version)
    assert isinstance(reply, quota_requests.ClientQuotasDescribed), reply
    entries = tuple(
        module.EntryData(
            entity=_parts(module, entity), values=tuple(module.ValueData(key=key, value=value) for key, value in values)
        )
        for entity, values in reply.found
    )
    return cls(
        throttle_time=NO_DELAY,
        error_code=CODES[reply.error],
        error_message=reply.message,
        entries=None if reply.error else entries,
    )


def _parts(module: Any, entity: Entity) -> tuple[Any, ...]:
    return tuple(module.EntityData(entity_type=kind, entity_name=name) for kind, name in entity)


APIS = (
    Api(table.ALTER_CLIENT_QUOTAS, _alter_request, _altered_entity),
    Api(table.DESCRIBE_CLIENT_QUOTAS, _describe_request, _described_entity),
)
