"""How the command ends: help that answers, exit codes, one clear line, no traceback unless asked for."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from raylog.cli import cluster as cluster_commands
from raylog.cli import main as main_module
from raylog.cli.main import EXIT_CODES, app, main
from raylog.disks.disk import format_disk, open_disk, with_listeners
from raylog.errors import ClusterError
from raylog.wire.listeners import listeners_of


def ends(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    """Exit code, stdout and stderr of a command line."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    captured = capsys.readouterr()
    return end.value.code, captured.out, captured.err


PRINTS_JSON_ANYWAY = {("verifiable-producer",), ("verifiable-consumer",)}
"""Each line is an event in JSON, as with Kafka's tools of these names: there is no text to choose instead."""


def tree(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command by the words that call it. A group has commands."""
    if isinstance(command, TyperGroup):
        for name, each in command.commands.items():
            yield from tree(each, (*path, name))
    else:
        yield path, command


COMMANDS = dict(tree(get_command(app)))
each_command = pytest.mark.parametrize("words", COMMANDS, ids=" ".join)


def test_there_are_commands_to_look_at() -> None:
    assert len(COMMANDS) > 40 and set(COMMANDS) > PRINTS_JSON_ANYWAY


@each_command
def test_every_command_has_help_and_json(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ends(capsys, *words, "--help")
    assert code == 0
    assert ("--json" in out) != (words in PRINTS_JSON_ANYWAY) and "Usage: raylog" in out
    assert len(out.splitlines()) > 5


@each_command
def test_a_command_that_ends_with_1_by_itself_says_when(words: tuple[str, ...]) -> None:
    callback = inspect.unwrap(COMMANDS[words].callback)
    if "typer.Exit(1)" in inspect.getsource(callback):
        assert "Exits with 1" in (callback.__doc__ or "")


def test_the_exit_codes_are_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = ends(capsys, "--help")
    said = " ".join(out.split())
    for code, meaning in EXIT_CODES.items():
        assert f"{code} {meaning}" in said


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends(capsys, "--version")[:2] == (0, "raylog 0.1.0\n")


@pytest.mark.parametrize("arguments", [("bogus",), ("topics", "bogus"), ("status", "--bogus"), ("dump-log",)])
def test_wrong_use_exits_with_2_and_says_where_help_is(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ends(capsys, *arguments)
    assert code == 2 and out == "" and "-h" in err


def test_no_arguments_show_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ends(capsys)
    assert "doctor" in out + err and code in (0, 2)


def test_an_expected_error_is_one_line_and_a_traceback_only_with_debug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_cluster(*_: object) -> None:
        raise ClusterError("no cluster under x:\n  start one with `raylog up`")

    monkeypatch.setattr(cluster_commands, "find_cluster", no_cluster)
    assert ends(capsys, "status") == (1, "", "raylog: no cluster under x: start one with `raylog up`\n")
    monkeypatch.setenv("RAYLOG_DEBUG", "1")
    with pytest.raises(ClusterError):
        main(["status"])


def test_an_interrupt_exits_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster_commands, "find_cluster", interrupted)
    assert ends(capsys, "status")[0] == 130


def test_sigterm_interrupts_a_command_which_cleans_up_and_exits_with_143(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    cleaned: list[str] = []

    def terminated(*_: object) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            cleaned.append("up")

    monkeypatch.setattr(cluster_commands, "find_cluster", terminated)
    assert ends(capsys, "status")[0] == 143 and cleaned == ["up"]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("system", "machine", "python", "says"),
    [
        ("win32", "AMD64", (3, 12, 1), "with Python 3.12"),
        ("linux", "aarch64", (3, 10, 0), "aarch64 with Python 3.10"),
        ("linux", "x86_64", (3, 15, 0), "Python 3.15"),
    ],
)
def test_another_platform_gets_one_sentence_and_exit_1(
    system: str,
    machine: str,
    python: tuple[int, int, int],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stand_in = types.SimpleNamespace(platform=system, version_info=python, exit=sys.exit, stdout=sys.stdout)
    monkeypatch.setattr(main_module, "sys", stand_in)
    monkeypatch.setattr(main_module.platform, "machine", lambda: machine)
    code, out, err = ends(capsys, "--version")
    assert code == 1 and out == "" and err.count("\n") == 1
    assert err.startswith("raylog runs on Linux and macOS with Python 3.11 to 3.14; this is") and says in err


def test_node_resources_prints_what_ray_start_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    disk = format_disk(tmp_path / "broker-0", cluster_id="c", broker_id=0, rack=None, controllers=[], secret="s")
    expected = {f"raylog:disk:{disk.directory_id}": 1000, f"raylog:folder:{disk.directory_id}:{disk.path}": 1}
    for folder in (disk.path, tmp_path):
        code, out, _ = ends(capsys, "node", "resources", str(folder))
        assert code == 0 and json.loads(out) == expected
    code, out, err = ends(capsys, "node", "resources", str(tmp_path / "none"))
    assert code == 1 and out == "" and "there is no folder" in err


def test_node_resources_gives_a_blank_folder_its_id_and_rack_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d" / "disk-0").mkdir(parents=True)
    code, out, _ = ends(capsys, "node", "resources", str(tmp_path / "d"), "--rack", "r1")
    assert code == 0 and len(json.loads(out)) == 2
    again = ends(capsys, "node", "resources", str(tmp_path / "d" / "disk-0"))
    assert again[:2] == (0, out), "it says the same at every start of the node"
    disk = format_disk(tmp_path / "d" / "disk-0", cluster_id="c", broker_id=0, rack=None, controllers=[], secret="s")
    assert f"raylog:disk:{disk.directory_id}" in json.loads(out) and disk.rack == "r1"
    assert ends(capsys, "node", "resources", str(tmp_path / "d"))[:2] == (0, out)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    code, _, err = ends(capsys, "node", "resources", str(tmp_path / "thesis"))
    assert code == 1 and "files that are not raylog's" in err


@pytest.mark.core
def test_help_comes_at_once_and_imports_neither_ray_nor_arrow() -> None:
    program = (
        "import sys\n"
        "from raylog.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'ray', 'pyarrow', 'pandas'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr


@pytest.mark.core
def test_a_reader_that_leaves_early_causes_no_noise(tmp_path: Path) -> None:
    log = tmp_path / "leader-epoch-checkpoint"
    log.write_text("0\n20000\n" + "".join(f"{epoch} {epoch}\n" for epoch in range(20000)))
    command = f"{sys.executable} -m raylog.cli.main dump-log {log} | head -1"
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0 and run.stderr == "" and run.stdout.startswith("Dumping")


def test_node_resources_takes_configs_and_listeners_of_a_properties_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text("listeners=PLAINTEXT://:9095\nnum.partitions=4\nnode.id=3\n")
    disk = format_disk(tmp_path / "broker-0", cluster_id="c", broker_id=0, rack=None, controllers=[], secret="s")
    code, _, err = ends(capsys, "node", "resources", str(disk.path), "--config", str(properties))
    assert code != 0 and "PLAINTEXT://0.0.0.0:9095: everyone who can connect there could do everything" in err
    code, _, err = ends(capsys, "node", "resources", str(disk.path), "--config", str(properties), "--insecure")
    assert code == 0 and "node.id has no effect" in err and "may read, write and delete everything" in err
    code, _, err = ends(capsys, "node", "resources", str(disk.path))
    assert code != 0 and "give --insecure" in err, "the disk remembers the listener, and nobody's word"
    kept = open_disk(disk.path)
    assert dict(kept.configs) == {"num.partitions": "4"} and str(kept.listeners) == "0.0.0.0:9095"


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("listeners=SASL_SSL://:0\n", "SASL_SSL has no certificate"),
        ("listeners=PLAINTEXT://:0\n", "or, if the network itself keeps strangers out, give --insecure"),
        ("listeners=SSL://:0\nssl.keystore.location=/x.jks\n", "openssl pkcs12 -in store.p12"),
        (
            "listeners=SSL://:0\nssl.keystore.type=PEM\nssl.keystore.location=/nowhere.pem\n",
            "/nowhere.pem cannot be read",
        ),
    ],
)
def test_up_refuses_listeners_that_cannot_be_before_it_starts_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: str, why: str
) -> None:
    properties, folder = tmp_path / "server.properties", tmp_path / "cluster"
    properties.write_text(lines)
    code, _, err = ends(capsys, "up", str(folder), "--config", str(properties))
    assert code != 0 and why in err and not folder.exists()


def test_up_refuses_an_open_listener_that_only_its_disk_names_before_it_starts_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = format_disk(tmp_path / "broker-0", cluster_id="c", broker_id=0, rack=None, controllers=[], secret="s")
    with_listeners(disk, listeners_of("0.0.0.0:0"))

    def no_ray(*_: object) -> str:
        raise AssertionError("a Ray was started")

    monkeypatch.setattr("raylog.cli.cluster.start_ray", no_ray)
    monkeypatch.setattr("raylog.cli.cluster.running_ray", lambda: None)
    code, _, err = ends(capsys, "up", str(tmp_path), "--brokers", "1")
    assert code != 0 and "PLAINTEXT://0.0.0.0:0: everyone who can connect there" in err


@pytest.mark.parametrize(("entry", "imported"), [("main", "typer"), ("demo", "rich")])
def test_who_interrupts_the_imports_sees_no_traceback(tmp_path: Path, entry: str, imported: str) -> None:
    (tmp_path / f"{imported}.py").write_text("raise KeyboardInterrupt\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", f"from raylog.cli.entry import {entry}; {entry}()", "status"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_command_is_the_one_that_is_imported() -> None:
    done = subprocess.run([sys.executable, "-m", "raylog.cli.entry", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("raylog "), done
