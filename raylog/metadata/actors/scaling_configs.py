"""The configs of scaling by itself (``scaling``), as they are in force: names, defaults, and what
they may be together.

The table entries are ``broker_configs``'; all of them are the cluster's as a whole. Ratios are
shares of one core.
"""

from __future__ import annotations

from collections.abc import Mapping

from raylog.configs.broker_configs import BROKER_CONFIGS, SCALING_BUSY, SCALING_IDLE
from raylog.metadata.actors.host_loads import Bounds
from raylog.metadata.image import MetadataImage


def in_force(image: MetadataImage) -> Bounds:
    """What holds now."""
    set_for_all = image.broker_configs.get(None, {})
    return Bounds(
        is_on=bool(_value(set_for_all, "actor.scaling.enable")),
        busy_per_mille=round(_value(set_for_all, SCALING_BUSY) * 1_000),
        idle_per_mille=round(_value(set_for_all, SCALING_IDLE) * 1_000),
        busy_ms=int(_value(set_for_all, "actor.scaling.busy.ms")),
        idle_ms=int(_value(set_for_all, "actor.scaling.idle.ms")),
        backoff_ms=int(_value(set_for_all, "actor.scaling.backoff.ms")),
        actors_max=int(_value(set_for_all, "actor.scaling.actors.max")),
    )


def _value(configs: Mapping[str, str], name: str) -> float:
    config = BROKER_CONFIGS[name]
    value = config.parse(configs.get(name, config.default))
    assert isinstance(value, (int, float)), f"{name} is no number"
    return value
