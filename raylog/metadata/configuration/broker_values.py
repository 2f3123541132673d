"""The values that brokers' configs have in a metadata image: what a cluster was started with, what
was set while it ran, and which of them are in force.

Precedence, from the first that counts (A20): a broker's own value, the value that was set for all
brokers, what the last start said, what the nodes' disks say. The last two are *static*, and the
cluster's as a whole. Defaults are not here.

Invariant: ``in_force`` is what ``static`` and ``dynamic`` give together, with no empty map.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from raylog.metadata.records import BrokerConfigChanged, StaticConfigsChanged, StaticSource


@dataclass(slots=True)
class BrokerValues:
    """``dynamic`` and ``in_force`` are by broker id; None: for all brokers."""

    static: dict[StaticSource, dict[str, str]] = field(default_factory=dict)
    dynamic: dict[int | None, dict[str, str]] = field(default_factory=dict)
    in_force: dict[int | None, dict[str, str]] = field(default_factory=dict)

    def copy(self) -> BrokerValues:
        return BrokerValues(
            {source: dict(configs) for source, configs in self.static.items()},
            {broker: dict(configs) for broker, configs in self.dynamic.items()},
            {broker: dict(configs) for broker, configs in self.in_force.items()},
        )

    def all_static(self) -> dict[str, str]:
        """What a start's value hides of the nodes' is left out."""
        return {**self.static.get(StaticSource.NODES, {}), **self.static.get(StaticSource.START, {})}

    def apply(self, record: BrokerConfigChanged | StaticConfigsChanged) -> None:
        if isinstance(record, StaticConfigsChanged):
            self.static.pop(record.source, None)
            if record.configs:
                self.static[record.source] = dict(record.configs)
            self._put_in_force(None)
        else:
            self._change(record)

    def _change(self, record: BrokerConfigChanged) -> None:
        configs = self.dynamic.setdefault(record.broker_id, {})
        if record.value is None:
            configs.pop(record.key, None)
        else:
            configs[record.key] = record.value
        if not configs:
            del self.dynamic[record.broker_id]
        self._put_in_force(record.broker_id)

    def forget(self, broker_id: int) -> None:
        self.dynamic.pop(broker_id, None)
        self.in_force.pop(broker_id, None)

    def _put_in_force(self, broker_id: int | None) -> None:
        configs = dict(self.dynamic.get(broker_id, {}))
        if broker_id is None:
            configs = {**self.all_static(), **configs}
        self.in_force.pop(broker_id, None)
        if configs:
            self.in_force[broker_id] = configs

    def static_records(self) -> Iterator[StaticConfigsChanged]:
        for source in StaticSource:
            if source in self.static:
                yield StaticConfigsChanged(source, in_order(self.static[source]))

    def dynamic_records(self) -> Iterator[BrokerConfigChanged]:
        """Those of all brokers first."""
        for named, configs in sorted(self.dynamic.items(), key=lambda each: -1 if each[0] is None else each[0]):
            yield from (BrokerConfigChanged(named, key, value) for key, value in sorted(configs.items()))

    def check(self) -> None:
        assert all(self.static.values()) and all(self.dynamic.values()), f"an empty map stands in {self}"
        again = BrokerValues(self.static, self.dynamic)
        for named in {None, *self.dynamic}:
            again._put_in_force(named)
        assert again.in_force == self.in_force, f"{self.in_force} are in force, not {again.in_force}"


def in_order(configs: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """As a record has them."""
    return tuple(sorted(configs.items()))
