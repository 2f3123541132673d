"""``make matrix``: raylog's wheel beside each supported release of Python, Ray and PySpark.

Each row has an environment of its own, made by ``uv``, and runs its smoke tests there, each in a
process. The results are the table of ``docs/platforms.md``; the exit code is 1 if a row is red.

::

    python tests/matrix/matrix.py                 # every row
    python tests/matrix/matrix.py ray-2.37 py313  # those whose names contain one of these
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "platforms.md"
BEGIN, END = "<!-- matrix -->\n", "<!-- end -->"
SMOKE_TIMEOUT_S = 300
UV = [sys.executable, "-m", "uv"]
CLUSTER, UP, DISKS, DATA = "cluster", "up", "disks", "data"
SPARK, RAYDP, CLIENT, ACROSS = "spark", "raydp", "client", "across"
EXTRA_OF = {
    CLUSTER: "ray",
    UP: "ray",
    DISKS: "ray",
    DATA: "data",
    SPARK: "spark",
    RAYDP: "raydp",
    CLIENT: None,
    ACROSS: None,
}
HOST = "ray==2.60.0"  # of the cluster whose clients are in other environments


@dataclass(frozen=True, slots=True)
class Row:
    """One environment. ``smokes``: what runs in it. ``pins``: requirements beside raylog's own."""

    python: str
    smokes: tuple[str, ...]
    pins: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return " ".join([f"py{self.python.replace('.', '')}", *(pin.replace("==", "-") for pin in self.pins)])


@dataclass(slots=True)
class Result:
    row: Row
    versions: dict[str, str] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)
    """Of each smoke test: "ok", or the last line that it said."""

    @property
    def is_green(self) -> bool:
        return bool(self.outcomes) and all(each == "ok" for each in self.outcomes.values())


RAYS = ("2.37.0", "2.40.0", "2.44.1", "2.46.0", "2.49.2", "2.52.1", "2.55.1", "2.58.1", "2.60.0")
ON_RAY = CLUSTER, UP, DISKS, DATA
ROWS = (
    *(Row("3.11", ON_RAY, (f"ray=={ray}",)) for ray in RAYS),
    Row("3.12", ON_RAY, ("ray==2.37.0",)),
    Row("3.12", ON_RAY, ("ray==2.60.0",)),
    Row("3.13", ON_RAY, ("ray==2.46.0",)),
    Row("3.13", ON_RAY, ("ray==2.60.0",)),
    Row("3.14", ON_RAY, ("ray==2.60.0",)),
    *(
        Row("3.11", (SPARK,), (f"pyspark=={spark}",))
        for spark in ("3.5.0", "3.5.9", "4.0.5", "4.1.4", "4.2.1", "4.3.0")
    ),
    Row("3.11", (SPARK, RAYDP), ("pyspark==3.5.7", "ray==2.60.0")),
    Row("3.13", (SPARK,), ("pyspark==4.1.4",)),
    Row("3.14", (SPARK,), ("pyspark==4.3.0",)),
    *(Row(python, (CLIENT, ACROSS)) for python in ("3.11", "3.12", "3.13", "3.14")),
)


def build_wheel(folder: Path) -> Path:
    subprocess.run([*UV, "build", "--quiet", "--wheel", "--out-dir", folder, ROOT], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def run(row: Row, wheel: Path, folder: Path) -> Result:
    """Make the row's environment and run its smoke tests there."""
    result = Result(row)
    extras = {extra for smoke in row.smokes if (extra := EXTRA_OF[smoke]) is not None}
    home = folder / re.sub(r"\W+", "-", row.name)
    trouble = make(home, row.python, wheel, extras, row.pins)
    if trouble is not None:
        result.outcomes["install"] = trouble
        return result
    result.versions = installed(home)
    for smoke in row.smokes:
        script = HERE / f"smoke_{smoke}.py"
        own = home / "bin" / "python"
        if smoke == ACROSS:
            host = folder / "host"
            trouble = None if host.exists() else make(host, "3.11", wheel, {"ray"}, (HOST,))
            result.outcomes[smoke] = trouble or outcome(host / "bin" / "python", script, own)
        else:
            result.outcomes[smoke] = outcome(own, script)
    return result


def make(home: Path, version: str, wheel: Path, extras: Iterable[str], pins: Iterable[str]) -> str | None:
    """Make an environment; why it cannot be made, if so."""
    named = ",".join(sorted(extras))
    wanted = f"raylog[{named}] @ {wheel.as_uri()}" if named else str(wheel)
    for command in (
        [*UV, "venv", "--quiet", "--python", python(version), home],
        [*UV, "pip", "install", "--quiet", "--python", home, wanted, *pins],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            return last_line(done.stderr)
    return None


def python(version: str) -> str:
    """An interpreter of pyenv's, if it has one of that version, or one that ``python.sh`` has got;
    else uv finds or downloads one.
    """
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = sorted(root.glob(f"versions/{version}.*/bin/python"))
    got = ROOT / "build" / f"python-{version}"
    if not found and (got / "ready").exists():
        found = [got / "unpacked" / "usr" / "bin" / f"python{version}"]
    return str(found[-1]) if found else version


def can_be_had(version: str) -> bool:
    """Whether there is such an interpreter, or uv can download one."""
    return any(
        not subprocess.run([*UV, "python", verb, python(version)], capture_output=True).returncode
        for verb in ("find", "install")
    )


def get_python(version: str) -> None:
    """Have ``python.sh`` get it; what keeps it from that is said, and its rows get red."""
    print(f"getting Python {version}", flush=True)
    subprocess.run(["sh", HERE / "python.sh", version], stdout=subprocess.DEVNULL, check=False)


def outcome(*command: Path) -> str:
    """Run a smoke test, which finds no Ray that runs here already: "ok", or the last line that it said."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "RAY", "VIRTUAL"))}
    with (
        tempfile.TemporaryDirectory(prefix="rlm", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile("w+") as said,
    ):
        environment["RAY_TMPDIR"] = folder
        process = subprocess.Popen(command, stdout=said, stderr=said, env=environment, start_new_session=True)
        try:
            code = process.wait(SMOKE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_group(process)
        said.seek(0)
        text = said.read()
    if code == 0:
        return "ok"
    print(text, file=sys.stderr)
    return f"no end within {SMOKE_TIMEOUT_S} s" if code is None else last_line(text)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End what a smoke test has left, with all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no word")


def installed(home: Path) -> dict[str, str]:
    """The versions in an environment, by name."""
    listed = subprocess.run([*UV, "pip", "freeze", "--python", home], capture_output=True, text=True, check=True)
    return dict(line.split("==", 1) for line in listed.stdout.splitlines() if "==" in line)


def table(results: Iterable[Result]) -> str:
    lines = ["| Python | Ray | PySpark | pyarrow | tried | outcome |", "|---|---|---|---|---|---|"]
    for result in results:
        versions = [result.versions.get(name, "") for name in ("ray", "pyspark", "pyarrow")]
        bad = [f"**{smoke}: {each}**" for smoke, each in result.outcomes.items() if each != "ok"]
        lines.append(
            f"| {' | '.join([result.row.python, *versions])} | {', '.join(result.row.smokes)} | {'; '.join(bad) or 'ok'} |"
        )
    return "\n".join(lines) + "\n"


def write_page(results: Sequence[Result]) -> None:
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END, 1)[1]
    commit = subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    said = f"Written by `make matrix` at {commit.strip()}, on {date.today()}.\n\n"
    PAGE.write_text(f"{before}{BEGIN}{said}{table(results)}{END}{after}")


def main(names: Sequence[str]) -> int:
    rows = [row for row in ROWS if not names or any(name in row.name for name in names)]
    results = []
    with tempfile.TemporaryDirectory(prefix="rlm") as folder:
        wheel = build_wheel(Path(folder))
        for version in sorted({row.python for row in rows}):
            if not can_be_had(version):
                get_python(version)
        for row in rows:
            began = time.monotonic()
            results.append(run(row, wheel, Path(folder)))
            said = ", ".join(f"{smoke}: {each}" for smoke, each in results[-1].outcomes.items())
            print(f"{row.name}: {said} ({time.monotonic() - began:.0f} s)", flush=True)
    if not names:
        write_page(results)
    return 0 if all(result.is_green for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
