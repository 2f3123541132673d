"""Finding a Java that Spark runs on, with stand-ins for what a machine may have."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raylog.errors import ClusterError
from raylog.spark import installed, java

pytestmark = pytest.mark.spark


def stand_in(home: Path, version: str) -> Path:
    """A ``java`` that says its version."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(0o755)
    return home


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A machine without Java and without the extra, but for what the test puts there."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    return monkeypatch


def test_without_a_java_the_error_says_what_to_do(machine: Any) -> None:
    with pytest.raises(ClusterError, match=r"found none: install it with pip install \"raylog\[spark\]\""):
        java.java_home()


@pytest.mark.parametrize(("told", "major"), [("17.0.9", 17), ("1.8.0_402", 8), ("21", 21), ("11.0.2", 11)])
def test_versions_are_read_as_java_tells_them(tmp_path: Path, told: str, major: int) -> None:
    assert java.java_version(stand_in(tmp_path / "java", told) / "bin" / "java") == major
    assert java.java_version(tmp_path / "nothing") is None


def test_a_java_that_is_too_new_is_passed_over(machine: Any, tmp_path: Path) -> None:
    machine.setenv("JAVA_HOME", str(stand_in(tmp_path / "new", "21.0.1")))
    with pytest.raises(ClusterError, match="has Java 21"):
        java.java_home()
    fit = stand_in(tmp_path / "fit", "17.0.2")
    machine.setenv("PATH", str(fit / "bin"))
    assert java.java_home() == fit


@pytest.mark.parametrize(
    ("pyspark_version", "fit", "unfit"), [("3.5.7", ("1.8", "11", "17"), "21"), ("4.1.4", ("17", "21"), "11")]
)
def test_a_session_on_a_java_that_its_pyspark_does_not_run_on_is_refused(
    pyspark_version: str, fit: tuple[str, ...], unfit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyspark

    def session(version: str) -> Any:
        told = SimpleNamespace(getProperty=lambda name: {"java.specification.version": version}[name])
        return SimpleNamespace(_jvm=SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(System=told))))

    monkeypatch.setattr(pyspark, "__version__", pyspark_version)
    for version in fit:
        installed.check_java(session(version))
    with pytest.raises(ClusterError, match=rf"runs on Java {unfit}, .* start it with Java 17"):
        installed.check_java(session(unfit))


def test_a_pyspark_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    monkeypatch.setattr(pyspark, "__version__", "3.4.4")
    with pytest.raises(ClusterError, match=r"pyspark 3\.4\.4 is not supported, 3\.5 and later are: pip install"):
        installed.require_pyspark()
    monkeypatch.setattr(pyspark, "__version__", "4.3.0.dev1")
    installed.require_pyspark()
    with pytest.raises(ClusterError, match=r"do not come up with pyspark 4\.3\.0\.dev1: pip install pyspark==3\.5\.7"):
        installed.require_raydp()
    monkeypatch.setattr(pyspark, "__version__", "3.5.7")
    installed.require_raydp()


@pytest.mark.parametrize(("package", "extra"), [("pyspark", "spark"), ("raydp", "raydp")])
def test_a_package_that_is_missing_is_named_with_its_extra(
    package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "find_spec", lambda name: None if name == package else find_spec(name))
    with pytest.raises(ClusterError, match=rf"{package} is not installed: pip install \"raylog\[{extra}\]\""):
        installed.require_raydp()


def test_the_java_that_is_used_is_first_on_the_path(machine: Any, tmp_path: Path) -> None:
    new, fit = stand_in(tmp_path / "new", "21"), stand_in(tmp_path / "fit", "17.0.2")
    machine.setenv("PATH", str(new / "bin"))
    machine.setenv("JAVA_HOME", str(fit))
    assert java.use_java() == fit
    assert os.environ["PATH"].split(os.pathsep) == [str(fit / "bin"), str(new / "bin")]
    java.use_java()
    assert len(os.environ["PATH"].split(os.pathsep)) == 2
