"""Decisions about ACLs, and what is asked about them: KRaft's AclControlManager.

Each ACL of a request is created by itself, or refused. One that is there already stays, and that is
no error. A filter deletes all that it names. An ACL that two filters of a request name is in the
answer to both. Without an authorizer every request about ACLs is refused by SECURITY_DISABLED.

Answers wait for what was decided before, so that somebody who has created an ACL finds it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import assert_never

from kio.schema.errors import ErrorCode

from raylog.configs import security_configs
from raylog.errors import KafkaError
from raylog.metadata.configuration.acl_requests import (
    AclOutcome,
    AclsCreated,
    AclsDeleted,
    AclsDescribed,
    CreateAcls,
    DeleteAcls,
    DescribeAcls,
)
from raylog.metadata.ledger import Ledger
from raylog.metadata.records import AclCreated, AclDeleted
from raylog.security.acl import AclBinding, AclFilter

SECURITY_DISABLED = "No Authorizer is configured."
_DISABLED = AclOutcome(ErrorCode.security_disabled.value, SECURITY_DISABLED)


class AclDecisions:
    __slots__ = ("_ledger", "_new_uuid")

    def __init__(self, ledger: Ledger, new_uuid: Callable[[], uuid.UUID]) -> None:
        self._ledger = ledger
        self._new_uuid = new_uuid

    def answer(self, request: DescribeAcls | CreateAcls | DeleteAcls) -> AclsDescribed | AclsCreated | AclsDeleted:
        """Decide it; the reply counts when all that was decided is committed."""
        is_disabled = security_configs.authorizer_of(self._ledger.latest.broker_configs) is None
        match request:
            case DescribeAcls(filter):
                if is_disabled:
                    return AclsDescribed((), _DISABLED.error, _DISABLED.message)
                return self._describe(filter)
            case CreateAcls(acls):
                return AclsCreated(tuple(_DISABLED if is_disabled else self._create(acl) for acl in acls))
            case DeleteAcls(filters):
                if is_disabled:
                    return AclsDeleted((_DISABLED,) * len(filters))
                return self._delete(filters)
            case _:
                assert_never(request)

    def _describe(self, filter: AclFilter) -> AclsDescribed:
        try:
            filter.check()
        except KafkaError as error:
            return AclsDescribed((), int(error.code), str(error))
        return AclsDescribed(tuple(self._ledger.latest.acls.matching(filter)))

    def _create(self, acl: AclBinding) -> AclOutcome:
        try:
            acl.check()
        except KafkaError as error:
            return AclOutcome(int(error.code), str(error))
        if acl not in self._ledger.latest.acls.ids:
            self._ledger.add(AclCreated(self._new_uuid(), acl))
        return AclOutcome()

    def _delete(self, filters: tuple[AclFilter, ...]) -> AclsDeleted:
        acls = self._ledger.latest.acls
        outcomes = []
        named: dict[AclBinding, None] = {}
        for filter in filters:
            try:
                filter.check()
            except KafkaError as error:
                outcomes.append(AclOutcome(int(error.code), str(error)))
                continue
            found = acls.matching(filter)
            named.update(dict.fromkeys(found))
            outcomes.append(AclOutcome(deleted=tuple(found)))
        for acl in named:
            self._ledger.add(AclDeleted(acls.ids[acl]))
        return AclsDeleted(tuple(outcomes))
