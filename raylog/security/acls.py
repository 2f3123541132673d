"""All ACLs of a cluster, found by what they apply to without looking at the others.

They are kept by kind and name of their resource, and there by principal. The prefixes of a kind are
found by trying the starts of a name that are as long as some prefix is.

Invariants: ``ids`` is the inverse of ``by_id``; the other maps hold just these ACLs, and no empty
one; ``_lengths`` counts the names of prefixes by their length.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping

from raylog.security.acl import WILDCARD, AclBinding, AclFilter
from raylog.security.permissions import Operation, PatternType, PermissionType, Resource

ByPrincipal = dict[str, dict[AclBinding, None]]


class Acls:
    """``by_id`` has each ACL once. ``changes`` counts what was added and removed."""

    __slots__ = ("_lengths", "_literal", "_prefixed", "by_id", "changes", "ids")

    def __init__(self, acls: Mapping[uuid.UUID, AclBinding] | None = None) -> None:
        self.by_id: dict[uuid.UUID, AclBinding] = {}
        self.ids: dict[AclBinding, uuid.UUID] = {}
        self._literal: dict[tuple[Resource, str], ByPrincipal] = {}
        self._prefixed: dict[tuple[Resource, str], ByPrincipal] = {}
        self._lengths: dict[Resource, dict[int, int]] = {}
        self.changes = 0
        for id, acl in (acls or {}).items():
            self.add(id, acl)

    def __eq__(self, other: object) -> bool:
        return self.by_id == other.by_id if isinstance(other, Acls) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.by_id)

    def __repr__(self) -> str:
        return f"Acls({self.by_id})"

    def copy(self) -> Acls:
        return Acls(self.by_id)

    def add(self, id: uuid.UUID, acl: AclBinding) -> None:
        assert id not in self.by_id and acl not in self.ids, f"{acl} is there already"
        self.changes += 1
        self.by_id[id] = acl
        self.ids[acl] = id
        kept = self._kept(acl)
        key = (acl.resource, acl.name)
        if key not in kept and acl.pattern is PatternType.PREFIXED:
            lengths = self._lengths.setdefault(acl.resource, {})
            lengths[len(acl.name)] = lengths.get(len(acl.name), 0) + 1
        kept.setdefault(key, {}).setdefault(acl.principal, {})[acl] = None

    def remove(self, id: uuid.UUID) -> None:
        acl = self.by_id.pop(id)
        self.changes += 1
        del self.ids[acl]
        kept = self._kept(acl)
        key = (acl.resource, acl.name)
        by_principal = kept[key]
        del by_principal[acl.principal][acl]
        if not by_principal[acl.principal]:
            del by_principal[acl.principal]
        if by_principal:
            return
        del kept[key]
        if acl.pattern is PatternType.PREFIXED:
            lengths = self._lengths[acl.resource]
            lengths[len(acl.name)] -= 1
            if not lengths[len(acl.name)]:
                del lengths[len(acl.name)]

    def _kept(self, acl: AclBinding) -> dict[tuple[Resource, str], ByPrincipal]:
        return self._literal if acl.pattern is PatternType.LITERAL else self._prefixed

    def matching(self, filter: AclFilter) -> list[AclBinding]:
        """In a fixed order."""
        return sorted(acl for acl in self.ids if filter.matches(acl))

    def about(self, resource: Resource, name: str) -> list[ByPrincipal]:
        """The ACLs that apply to that resource, by principal."""
        keys = (name,) if name == WILDCARD else (name, WILDCARD)
        found = [each for key in keys if (each := self._literal.get((resource, key))) is not None]
        for length in self._lengths.get(resource, ()):
            if length <= len(name) and (each := self._prefixed.get((resource, name[:length]))) is not None:
                found.append(each)
        return found

    def of_operation(
        self, operation: Operation, resource: Resource, principals: Iterable[str], hosts: Iterable[str]
    ) -> Iterator[AclBinding]:
        """The ACLs that name this operation, or all, on resources of that kind."""
        hosts = tuple(hosts)
        for kept in (self._literal, self._prefixed):
            for (kind, _), by_principal in kept.items():
                if kind is resource:
                    for principal in principals:
                        for acl in by_principal.get(principal, ()):
                            if acl.operation in (operation, Operation.ALL) and acl.host in hosts:
                                yield acl

    def check(self) -> None:
        assert {acl: id for id, acl in self.by_id.items()} == self.ids, "the ids of ACLs are wrong"
        again = Acls(self.by_id)
        assert (again._literal, again._prefixed) == (self._literal, self._prefixed), "the index of ACLs is wrong"
        kept = {kind: lengths for kind, lengths in self._lengths.items() if lengths}
        assert again._lengths == kept, f"prefixes are {again._lengths} long, not {kept}"
        for acl in self.ids:
            assert acl.pattern in (PatternType.LITERAL, PatternType.PREFIXED), f"{acl}"
            assert acl.permission in (PermissionType.DENY, PermissionType.ALLOW), f"{acl}"
