"""How raylog is built: setuptools' own backend, and one shared library compiled from ``raylog/records/kernel.c``.

The library has no Python in it, so one wheel serves every supported Python (``py3-none-linux_x86_64``). The compiler is ``$CC``,
``cc``, ``gcc`` or ``clang``, whichever is found first; a machine without one gets the pip package ``ziglang`` for the time of the
build. Where nothing compiles the build goes on without the library, says so, and raylog converts records by its packaged codec
instead (``raylog doctor`` shows which).

``$RAYLOG_TARGET`` names another platform to build a wheel for, by ``ziglang``: a processor for Linux, as in
``RAYLOG_TARGET=aarch64 python -m build``, or ``macos-arm64`` or ``macos-x86_64``.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FLAGS = ("-std=c11", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")


MACOS = {  # the names of ziglang and of wheels, each with the oldest macOS that CPython 3.11 to 3.14 run on
    "macos-arm64": ("aarch64-macos.11.0", "macosx_11_0_arm64"),
    "macos-x86_64": ("x86_64-macos.10.13", "macosx_10_13_x86_64"),
}


def target() -> str:
    """The processor that the library is for, or the name of a macOS."""
    return os.environ.get("RAYLOG_TARGET") or platform.machine()


def is_crossed() -> bool:
    return target() != platform.machine()


def compilers() -> list[list[str]]:
    """The commands to try, best first."""
    zig_target, _ = MACOS.get(target(), (f"{target()}-linux-gnu.2.17", ""))
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", zig_target]
    zigs = [zig] if sys.platform == "linux" and importlib.util.find_spec("ziglang") is not None else []
    if is_crossed():
        return zigs
    found = [shlex.split(os.environ["CC"])] if os.environ.get("CC") else []
    found += [[path] for name in ("cc", "gcc", "clang") if (path := shutil.which(name))]
    return found + zigs


def compile_kernel(source: Path, library: Path, flags: Sequence[str] = FLAGS) -> str | None:
    """Compile the library; None if that worked, else what went wrong."""
    trouble = ["no C compiler (cc, gcc, clang or the pip package ziglang)"]
    sources = (source, *sorted(source.parent.glob("kernel_*.h")))
    digest = zlib.crc32(b"".join(each.read_bytes() for each in sources))  # as raylog/records/kernel.py has it
    library.parent.mkdir(parents=True, exist_ok=True)
    for compiler in compilers():
        command = [*compiler, *flags, f"-DRK_DIGEST={digest}u", "-shared", "-o", str(library), str(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            trouble.append(f"{compiler[0]}: {error}")
            continue
        if done.returncode == 0:
            return None
        trouble.append(f"{' '.join(compiler)}: {done.stderr.strip()[-500:]}")
    return trouble[-1]


class BuildKernel(build_ext):
    """Compiles the one extension by hand: it is a plain library, and its name carries no Python."""

    def get_ext_filename(self, fullname: str) -> str:
        return f"{fullname.replace('.', os.sep)}.so"

    def build_extension(self, ext: Any) -> None:
        library = Path(self.get_ext_fullpath(ext.name))
        library.unlink(missing_ok=True)
        trouble = compile_kernel(Path(ext.sources[0]), library)
        if trouble is not None:
            print(f"raylog is installed without its C kernel: {trouble}", file=sys.stderr)


class PlainLibraryWheel(bdist_wheel):
    """A wheel for every Python of this platform."""

    def get_tag(self) -> tuple[str, str, str]:
        _, of_macos = MACOS.get(target(), ("", f"linux_{target()}"))
        return "py3", "none", of_macos if is_crossed() else super().get_tag()[2]


# ------------------------------------------------------------------ the backend's hooks


def _compiler_required() -> list[str]:
    has_one = os.environ.get("CC") or any(shutil.which(name) for name in ("cc", "gcc", "clang"))
    return [] if has_one and not is_crossed() else ["ziglang"]


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_compiler_required()]


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    return [*build_meta.get_requires_for_build_editable(config_settings), *_compiler_required()]


build_wheel = build_meta.build_wheel
build_editable = build_meta.build_editable
build_sdist = build_meta.build_sdist
get_requires_for_build_sdist = build_meta.get_requires_for_build_sdist
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable
