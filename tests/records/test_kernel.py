"""Which library is used as the kernel, and what is said where there is none."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from raylog.records import kernel

pytestmark = pytest.mark.core

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def build_kernel() -> ModuleType:
    if shutil.which("cc") is None:
        pytest.skip("no cc on this machine")
    spec = importlib.util.spec_from_file_location("build_kernel", ROOT / "build_kernel.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["kernel.c", "kernel_writing.h"])
def test_a_library_made_of_another_source_is_not_used(build_kernel: ModuleType, tmp_path: Path, name: str) -> None:
    same, other = tmp_path / "same.so", tmp_path / "other.so"
    assert build_kernel.compile_kernel(kernel.SOURCE, same, ["-O0", "-fPIC"]) is None
    assert kernel.Kernel(same).measure(None, 0, kernel.byref(kernel.Sizes())) == kernel.OK
    sources = [shutil.copy(source, tmp_path) for source in kernel.SOURCE.parent.glob("kernel*.[ch]")]
    changed = tmp_path / name
    changed.write_bytes(changed.read_bytes() + b"\n")
    assert len(sources) == 3
    assert build_kernel.compile_kernel(tmp_path / "kernel.c", other, ["-O0", "-fPIC"]) is None
    with pytest.raises(kernel.UnusableKernel, match=r"other\.so was built from another source"):
        kernel.Kernel(other)


def test_what_is_no_library_is_not_used(tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"\x7fELF, but no more")
    with pytest.raises(kernel.UnusableKernel, match=r"broken\.so cannot be loaded"):
        kernel.Kernel(broken)


def test_a_source_that_does_not_compile_is_told_by_the_compilers_own_words(
    build_kernel: ModuleType, tmp_path: Path
) -> None:
    bad = tmp_path / "kernel.c"
    bad.write_text("this is no C")
    assert "error" in build_kernel.compile_kernel(bad, tmp_path / "bad.so")


def test_the_kernel_can_be_turned_off_and_says_so_once() -> None:
    program = (
        "import logging; from raylog.records import kernel\n"
        "assert kernel.loaded() is None and kernel.loaded() is None\n"
        "print(kernel.description())"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {kernel.ENVIRONMENT: "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "packaged codec (slower); the C kernel is turned off by RAYLOG_KERNEL=0\n"
    assert run.stderr.count("several times slower") == 1
    assert logging.getLogger("raylog.records") is kernel.logger
