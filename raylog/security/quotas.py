"""Client quotas: whom one applies to, what it limits, and which of several counts (KIP-13, 55, 257,
546, 599, 612).

An entity is a tuple of (type, name), sorted by type. The types are ``user``, ``client-id`` and
``ip``; an ip stands alone. The name None is the default: it applies to all that no other quota
names. Of the quotas with the same key, the first that is there counts, in Kafka's order::

    /config/users/<user>/clients/<client-id>        each user's client has a rate of its own
    /config/users/<user>/clients/<default>          the same
    /config/users/<user>                            all clients of the user share one rate
    /config/users/<default>/clients/<client-id>     each user's client has a rate of its own
    /config/users/<default>/clients/<default>       the same
    /config/users/<default>                         all clients of a user share one rate
    /config/clients/<client-id>                     all users of the client id share one rate
    /config/clients/<default>                       the same

Errors and their messages are those of Kafka's ClientQuotaControlManager and ClientQuotasImage.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
BYTE_RATES: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE)
OF_REQUESTS: Final = (*BYTE_RATES, REQUEST_PERCENTAGE)
"""What whoever serves a request counts."""
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
LONG_MAX: Final = (1 << 63) - 1
INT_MAX: Final = (1 << 31) - 1

Entity = tuple[tuple[str, str | None], ...]
Problem = tuple[ErrorCode, str]


class _Kind(NamedTuple):
    """``most`` None: a fraction is a value, too."""

    name: str
    most: int | None


_KINDS_OF_CLIENTS: Final[Mapping[str, _Kind]] = {
    PRODUCER_BYTE_RATE: _Kind("LONG", LONG_MAX),
    CONSUMER_BYTE_RATE: _Kind("LONG", LONG_MAX),
    REQUEST_PERCENTAGE: _Kind("DOUBLE", None),
    CONTROLLER_MUTATION_RATE: _Kind("DOUBLE", None),
}
_KINDS_OF_IPS: Final[Mapping[str, _Kind]] = {CONNECTION_CREATION_RATE: _Kind("INT", INT_MAX)}
KEYS: Final = (*_KINDS_OF_CLIENTS, *_KINDS_OF_IPS)


def entity_of(parts: Mapping[str, str | None]) -> Entity:
    return tuple(sorted(parts.items()))


def entity_problem(parts: Iterable[tuple[str, str | None]]) -> Problem | None:
    """Why these (type, name) are no entity; None if they are one."""
    seen: dict[str, str | None] = {}
    for kind, name in parts:
        if kind in seen:
            return _invalid(f"Invalid client quota entity, specified entity type {kind} more than once.")
        if kind not in (USER, CLIENT_ID, IP):
            return _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            return _invalid(f"Empty {kind} not supported")
        seen[kind] = name
    if not seen:
        return _invalid("Invalid empty client quota entity")
    if IP in seen:
        if len(seen) > 1:
            return _invalid("Invalid quota entity combination, IP entity should not be combined with User or ClientId")
        if seen[IP] is not None and not _is_address(str(seen[IP])):
            return _invalid(f"{seen[IP]} is not a valid IP or resolvable host.")
    return None


def value_problem(entity: Entity, key: str, value: float | None) -> Problem | None:
    """Why the entity can't have this quota; None if it can. The value None removes it."""
    kinds = _KINDS_OF_IPS if entity[0][0] == IP else _KINDS_OF_CLIENTS
    kind = kinds.get(key)
    if value is None:  # as in Kafka, whatever the key is
        return None
    if kind is None:
        return _invalid(f"Invalid configuration key {key}")
    if not value > 0:
        return _invalid(f"Quota {key} must be greater than 0")
    if kind.most is not None:
        if value > kind.most:
            return _invalid(
                f"Proposed value for {key} is too large for {'an' if kind.name == 'INT' else 'a'} {kind.name}."
            )
        if value % 1.0 > 1e-6:
            return _invalid(f"{key} cannot be a fractional value.")
    return None


def _invalid(message: str) -> Problem:
    return ErrorCode.invalid_request, message


def _is_address(text: str) -> bool:
    """A name is refused: which address it has is nothing that a controller decides."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


class MatchType(IntEnum):
    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


class QuotaComponent(NamedTuple):
    """One part of a filter. ``match_type`` is Kafka's number, known or not."""

    entity_type: str
    match_type: int
    match: str | None = None


def filter_problem(components: Iterable[QuotaComponent]) -> Problem | None:
    """Why nothing can be looked for by these; None if it can."""
    seen: set[str] = set()
    for kind, match_type, match in components:
        if not kind:
            return _invalid("Invalid empty entity type.")
        if kind in seen:
            return _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in (USER, CLIENT_ID, IP):
            return ErrorCode.unsupported_version, f"Unsupported entity type {kind}"
        if match_type not in MatchType._value2member_map_:
            return _invalid(f"Unknown match type {match_type}")
        name = f"MATCH_TYPE_{MatchType(match_type).name}"
        if match_type == MatchType.EXACT and match is None:
            return _invalid(f"Request specified {name}, but set match string to null.")
        if match_type != MatchType.EXACT and match is not None:
            return _invalid(f"Request specified {name}, but also specified a match string.")
        seen.add(kind)
    if IP in seen and len(seen) > 1:
        return _invalid(
            "Invalid entity filter component combination. IP filter component should not be used with user or "
            "clientId filter component."
        )
    return None


class AppliedQuota(NamedTuple):
    """The quota that counts. Requests with the same ``user`` and ``client_id`` share one rate; None:
    whoever it is.
    """

    limit: float
    user: str | None
    client_id: str | None


class ClientQuotas:
    """All quotas of a cluster. ``revision`` changes with each of them.

    Invariants: each entity has at least one value; ``_by_key`` has the same values.
    """

    __slots__ = ("_by_key", "revision", "values")

    def __init__(self, values: Mapping[Entity, Mapping[str, float]] | None = None) -> None:
        self.values: dict[Entity, dict[str, float]] = {}
        self._by_key: dict[str, dict[Entity, float]] = {}
        self.revision = 0
        for entity, each in (values or {}).items():
            for key, value in each.items():
                self.set(entity, key, value)

    def __eq__(self, other: object) -> bool:
        return self.values == other.values if isinstance(other, ClientQuotas) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"ClientQuotas({self.values})"

    def copy(self) -> ClientQuotas:
        return ClientQuotas(self.values)

    def set(self, entity: Entity, key: str, value: float) -> None:
        self.values.setdefault(entity, {})[key] = value
        self._by_key.setdefault(key, {})[entity] = value
        self.revision += 1

    def remove(self, entity: Entity, key: str) -> None:
        del self.values[entity][key]
        del self._by_key[key][entity]
        if not self.values[entity]:
            del self.values[entity]
        if not self._by_key[key]:
            del self._by_key[key]
        self.revision += 1

    def has(self, *keys: str) -> bool:
        """Whether there is a quota for one of them."""
        return any(key in self._by_key for key in keys)

    def of_client(self, key: str, user: str, client_id: str) -> AppliedQuota | None:
        """The quota that counts for this user with this client id; None if there is none."""
        values = self._by_key.get(key)
        if values is None:
            return None
        for entity, shared_by in _candidates(user, client_id):
            limit = values.get(entity)
            if limit is not None:
                return AppliedQuota(limit, *shared_by)
        return None

    def of_client_id(self, key: str, client_id: str) -> AppliedQuota | None:
        """The same for a program that is no user."""
        values = self._by_key.get(key, {})
        limit = values.get(((CLIENT_ID, client_id),), values.get(((CLIENT_ID, None),)))
        return None if limit is None else AppliedQuota(limit, None, client_id)

    def of_address(self, address: str) -> float | None:
        """How many connections per second this address may open; None: as many as it likes."""
        values = self._by_key.get(CONNECTION_CREATION_RATE)
        if values is None:
            return None
        return values.get(((IP, address),), values.get(((IP, None),)))

    def matching(
        self, components: Iterable[QuotaComponent], *, strict: bool
    ) -> Iterator[tuple[Entity, dict[str, float]]]:
        """The entities that have each type of a filter, with the name that it asks for. ``strict``:
        and no other type. In a fixed order.
        """
        wanted = list(components)
        for entity in sorted(self.values, key=_in_order):
            parts = dict(entity)
            if strict and len(parts) != len(wanted):
                continue
            if all(
                each.entity_type in parts
                and (each.match_type == MatchType.SPECIFIED or parts[each.entity_type] == each.match)
                for each in wanted
            ):
                yield entity, self.values[entity]

    def each(self) -> Iterator[tuple[Entity, str, float]]:
        """In a fixed order."""
        for entity in sorted(self.values, key=_in_order):
            yield from ((entity, key, value) for key, value in sorted(self.values[entity].items()))

    def check(self) -> None:
        assert ClientQuotas(self.values)._by_key == self._by_key, "the index of quotas is wrong"
        for entity, values in self.values.items():
            assert values and entity == tuple(sorted(entity)), f"{entity} has {values}"
            assert entity_problem(entity) is None, f"{entity_problem(entity)}"


def _in_order(entity: Entity) -> list[tuple[str, bool, str]]:
    return [(kind, name is not None, name or "") for kind, name in entity]


def _candidates(user: str, client_id: str) -> Iterator[tuple[Entity, tuple[str | None, str | None]]]:
    """The entities that may have the quota of a client, the first to count first, and whose rates
    are shared.
    """
    both = (user, client_id)
    yield ((CLIENT_ID, client_id), (USER, user)), both
    yield ((CLIENT_ID, None), (USER, user)), both
    yield ((USER, user),), (user, None)
    yield ((CLIENT_ID, client_id), (USER, None)), both
    yield ((CLIENT_ID, None), (USER, None)), both
    yield ((USER, None),), (user, None)
    yield ((CLIENT_ID, client_id),), (None, client_id)
    yield ((CLIENT_ID, None),), (None, client_id)
