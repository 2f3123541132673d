"""``listeners`` and ``advertised.listeners``: what they mean, and what is refused."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from raylog.errors import ConfigError, DiskError
from raylog.placement.disks import format_disk, open_disk, with_listeners
from raylog.placement.listeners import Listeners, default_listeners, listeners_of
from raylog.types import Endpoint


@pytest.mark.parametrize(
    ("text", "bind"),
    [
        ("127.0.0.1:9092", Endpoint("127.0.0.1", 9092)),
        ("PLAINTEXT://kafka.example:19092", Endpoint("kafka.example", 19092)),
        ("[::1]:9092", Endpoint("::1", 9092)),
        (":0", Endpoint("0.0.0.0", 0)),
        ("none", None),
    ],
)
def test_what_is_listened_on(text: str, bind: Endpoint | None) -> None:
    found = listeners_of(text)
    assert found is not None and found.bind == bind


@pytest.mark.parametrize(
    ("listeners", "advertised"),
    [
        ("SSL://a:1", None),
        ("a:1,b:2", None),
        ("a", None),
        ("a:x", None),
        ("a:70000", None),
        ("a:1", "b:0"),
        ("a:1", "0.0.0.0:9"),
        (None, "b:1"),
        ("none", "b:1"),
    ],
)
def test_what_cannot_be_is_refused(listeners: str | None, advertised: str | None) -> None:
    with pytest.raises(ConfigError, match="listeners"):
        listeners_of(listeners, advertised)


def test_clients_are_told_what_was_bound_unless_something_else_is_advertised() -> None:
    bound = Endpoint("127.0.0.1", 9093)
    assert default_listeners("127.0.0.1").advertised_for(bound) == bound
    assert Listeners(bound, Endpoint("outside", 1)).advertised_for(bound) == Endpoint("outside", 1)
    everywhere = Endpoint("0.0.0.0", 9092)
    assert Listeners(everywhere).advertised_for(everywhere) == Endpoint(socket.gethostname(), 9092)


def test_a_disk_keeps_its_brokers_listeners(tmp_path: Path) -> None:
    disk = format_disk(tmp_path / "d", cluster_id="c", broker_id=0, rack=None, controllers=[], secret="s")
    assert disk.listeners is None
    listeners = listeners_of("PLAINTEXT://[::1]:9092", "kafka.example:19092")
    assert with_listeners(disk, listeners).listeners == open_disk(disk.path).listeners == listeners
    assert with_listeners(disk, Listeners(None)).listeners == Listeners(None)
    assert with_listeners(disk, None).listeners is None


def test_a_disk_whose_listeners_make_no_sense_is_damaged(tmp_path: Path) -> None:
    disk = format_disk(tmp_path / "d", cluster_id="c", broker_id=0, rack=None, controllers=[], secret="s")
    properties = disk.path / "meta.properties"
    properties.write_text(properties.read_text() + "listeners=SSL://a:1\n")
    with pytest.raises(DiskError, match="SSL is not spoken"):
        open_disk(disk.path)
