"""What site-packages get: raylog with its two linked packages and its kernel, and nothing named actors or placement beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.core


def test_the_two_links_are_committed_relative_links() -> None:
    assert (ROOT / "raylog" / "actors").readlink() == Path("../actors")
    assert (ROOT / "raylog" / "placement").readlink() == Path("../placement")


def test_the_wheel_holds_raylog_and_nothing_else_at_the_top(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"raylog"}
    for wanted in ("raylog/__init__.py", "raylog/py.typed", "raylog/actors/__init__.py", "raylog/placement/planner.py"):
        assert wanted in names
    (entry_points,) = [name for name in names if name.endswith("entry_points.txt")]
    assert "raylog = raylog.cli.entry:main" in zipfile.ZipFile(wheel).read(entry_points).decode()
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_every_module_of_the_checkout_but_the_simulators_is_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {
        f"{prefix}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, prefix in (("raylog", "raylog"), ("actors", "raylog/actors"), ("placement", "raylog/placement"))
        for path in (ROOT / folder).rglob("*.py")
    }
    simulator = {each for each in modules if each.startswith("raylog/simulator/")}
    assert simulator and modules - names == simulator and names.isdisjoint(simulator)


def test_one_wheel_with_the_kernel_serves_every_python_of_the_platform(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"raylog/records/kernel.c", "raylog/records/kernel_bytes.h", "raylog/records/kernel_writing.h"} <= set(names)
    assert ("raylog/records/_kernel.so" in names) == (shutil.which("cc") is not None)


def test_a_machine_without_a_compiler_gets_a_wheel_without_the_kernel_and_one_line_about_it(
    source: Path, tmp_path: Path, build_wheel: Callable[..., tuple[Path, str]]
) -> None:
    shutil.rmtree(source / "build", ignore_errors=True)
    built, said = build_wheel(source, tmp_path / "dist", PATH=str(tmp_path), CC="")
    assert "raylog/records/_kernel.so" not in zipfile.ZipFile(built).namelist()
    assert "raylog is installed without its C kernel: no C compiler" in said
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from raylog.records import kernel\n"
        "from raylog.records.arrow_reading import read_arrow\n"
        "from raylog.records.codec import encode_values\n"
        "assert kernel.__file__.startswith(sys.argv[1])\n"
        "print(read_arrow(encode_values([b'x', b'y'], timestamp_ms=1)).batches[0].column('value').to_pylist())\n"
        "print(kernel.description())\n"
    )
    with zipfile.ZipFile(built) as archive:
        archive.extractall(tmp_path / "site")
    run = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "site"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines() == [
        "[b'x', b'y']",
        "packaged codec (slower); the C kernel is not built: no C compiler was found when raylog was installed",
    ]
    assert run.stderr.count("several times slower") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "platform", "first_bytes"),
    [
        ("", "linux_x86_64", b"\x7fELF"),
        ("aarch64", "linux_aarch64", b"\x7fELF"),
        ("macos-arm64", "macosx_11_0_arm64", b"\xcf\xfa\xed\xfe\x0c\x00\x00\x01"),
        ("macos-x86_64", "macosx_10_13_x86_64", b"\xcf\xfa\xed\xfe\x07\x00\x00\x01"),
    ],
)
def test_without_a_compiler_ziglang_builds_the_kernel_for_this_and_for_other_platforms(
    source: Path, tmp_path: Path, target: str, platform: str, first_bytes: bytes
) -> None:
    shutil.rmtree(source / "build", ignore_errors=True)
    environment = os.environ | {"PATH": str(tmp_path), "CC": "", "RAYLOG_TARGET": target}
    command = [sys.executable, "-m", "uv", "build", "--wheel", "--out-dir", tmp_path / "dist", source]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = (tmp_path / "dist").glob(f"raylog-*-py3-none-{platform}.whl")
    assert zipfile.ZipFile(built).read("raylog/records/_kernel.so").startswith(first_bytes), done.stderr


def test_an_installed_wheel_imports_all_three_and_no_bare_name(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", target, wheel],
        check=True,
        capture_output=True,
    )
    assert {each.name for each in target.iterdir() if each.name in ("actors", "placement")} == set()
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import raylog, raylog.actors, raylog.placement, raylog.placement.planner\n"
        "for module in (raylog, raylog.actors, raylog.placement): assert module.__file__.startswith(sys.argv[1])\n"
        "for bare in ('actors', 'placement'):\n"
        "    try: __import__(bare)\n"
        "    except ModuleNotFoundError: pass\n"
        "    else: raise SystemExit(f'{bare} is importable')\n"
    )
    subprocess.run([sys.executable, "-c", program, target], check=True, cwd=tmp_path)


@pytest.mark.parametrize("bare", ["actors", "placement"])
def test_the_bare_name_is_refused_from_the_projects_root(bare: str) -> None:
    run = subprocess.run([sys.executable, "-c", f"import {bare}"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 1
    assert f"import raylog.{bare}, not {bare}" in run.stderr


def test_the_editable_install_imports_the_linked_packages(tmp_path: Path) -> None:
    program = (
        "import raylog.actors, raylog.placement.planner, pathlib\n"
        "print(pathlib.Path(raylog.placement.__file__).resolve().parent)"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(run.stdout.strip()) == ROOT / "placement"
