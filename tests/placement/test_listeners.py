"""``listeners`` and ``advertised.listeners``: what they mean, and what is refused."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from raylog.disks.disk import (
    Reservation,
    differs,
    format_disk,
    open_disk,
    read_reservation,
    reserve_disk,
    set_listeners,
    with_listeners,
)
from raylog.errors import ConfigError, DiskError
from raylog.placement.resources import advertisement
from raylog.server.disk_work import format_folder, promise
from raylog.types import Endpoint
from raylog.wire.listeners import Listeners, default_listeners, listeners_of, listeners_of_brokers


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


def test_each_broker_is_given_its_own_or_all_look_from_one_port_on() -> None:
    assert listeners_of_brokers(2, None, None) == [None, None]
    assert listeners_of_brokers(2, ["a:1"], None) == [Listeners(Endpoint("a", 1))] * 2
    assert listeners_of_brokers(2, ["a:1", "a:2"], ["b:3", "b:4"]) == [
        Listeners(Endpoint("a", 1), Endpoint("b", 3)),
        Listeners(Endpoint("a", 2), Endpoint("b", 4)),
    ]


@pytest.mark.parametrize(("listeners", "advertised"), [(["a:1"] * 3, None), (["a:1"], ["b:1"]), (None, ["b:1", "b:2"])])
def test_numbers_that_do_not_fit_are_refused(listeners: list[str] | None, advertised: list[str] | None) -> None:
    with pytest.raises(ConfigError, match="listeners"):
        listeners_of_brokers(2, listeners, advertised)


def test_what_is_wanted_is_written_to_all_disks_of_a_broker_and_nothing_else(tmp_path: Path) -> None:
    disks = [
        format_disk(tmp_path / str(at), cluster_id="c", broker_id=broker, rack=None, controllers=[], secret="s")
        for at, broker in enumerate((0, 0, 1, 2))
    ]
    wanted = [Listeners(Endpoint("a", 1)), None]
    assert [differs(disk, wanted) for disk in disks] == [True, True, False, False]
    changed = set_listeners(disks, wanted)
    assert [disk.listeners for disk in changed] == [wanted[0], wanted[0], None, None]
    assert not any(differs(disk, wanted) for disk in changed)


def test_what_a_node_says_of_a_blank_folder_is_kept_when_it_is_formatted(tmp_path: Path) -> None:
    listeners = listeners_of("0.0.0.0:9092", "kafka.example:19092")
    advertisement([tmp_path], listeners=listeners)
    reserved = reserve_disk(tmp_path)
    assert reserved.listeners == listeners
    promised = promise(tmp_path, Reservation(reserved.directory_id, None, "c", 0), [])
    assert promised.listeners == listeners and read_reservation(tmp_path) == promised
    format_folder(tmp_path, promised, secret="s", controllers=[])
    assert open_disk(tmp_path).listeners == listeners
    advertisement([tmp_path], listeners=Listeners(None))
    assert open_disk(tmp_path).listeners == Listeners(None), "a formatted one takes them over, too"
    advertisement([tmp_path])
    assert open_disk(tmp_path).listeners == Listeners(None)


def test_a_disk_whose_listeners_make_no_sense_is_damaged(tmp_path: Path) -> None:
    disk = format_disk(tmp_path / "d", cluster_id="c", broker_id=0, rack=None, controllers=[], secret="s")
    properties = disk.path / "meta.properties"
    properties.write_text(properties.read_text() + "listeners=SSL://a:1\n")
    with pytest.raises(DiskError, match="SSL is not spoken"):
        open_disk(disk.path)
