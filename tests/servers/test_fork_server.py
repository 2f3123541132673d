"""Server actors are forked from a process that has imported everything; all other workers start in Ray's own way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from raylog.placement import worker_setup
from raylog.placement.groups import WORKER_SETUP
from raylog.placement.local_ray import is_of_a_raylet
from raylog.types import SERVER_PROCESS

pytestmark = pytest.mark.core

PATIENCE_S = 120.0
NOT_IMPORTED = {
    "grpc",
    "hypothesis",
    "matplotlib",
    "numpy",
    "pandas",
    "pyarrow",
    "pydantic",
    "pyspark",
    "rich",
    "typer",
}
MODULES_MAX = 1_280
LINKS = {"raylog.client", "raylog.client.groups", "raylog.client.groups.coordinator_link"}
"""And ``raylog.client.links``: leaders ask transaction coordinators by them."""
CLIENT_SIDE = ("raylog.cli", "raylog.client.", "raylog.data", "raylog.ranges", "raylog.spark", "raylog.testing")
WORKER = """\
import json, os, pathlib, signal, sys
from ray import ObjectRef
report = {
    "pid": os.getpid(), "group": os.getpgid(0), "parent": os.getppid(), "arguments": sys.argv, "mark": os.environ.get("MARK"),
    "drawn": ObjectRef.from_random().hex(), "has_servers": "raylog.server.replica_server" in sys.modules,
    "descriptors": len(os.listdir("/proc/self/fd")), "child_signal": str(signal.getsignal(signal.SIGCHLD)),
}
folder = pathlib.Path(__file__).parent
(folder / "writing" / str(os.getpid())).write_text(json.dumps(report))
os.rename(folder / "writing" / str(os.getpid()), folder / "reports" / str(os.getpid()))
signal.pause()
"""
RAYS_OWN_SETUP = """\
import json, os, pathlib, sys
folder = pathlib.Path(__file__).parent
(folder / "writing" / "rays_own").write_text(json.dumps(sys.argv[1:]))
os.rename(folder / "writing" / "rays_own", folder / "rays_own")
"""
RAYLET = """\
import subprocess, sys
for line in sys.stdin:
    subprocess.Popen(line.rstrip("\\n").split("\\t"))
"""


class Raylet:
    """A process that starts others, as a raylet does, with a folder where their scripts and reports are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("writing", "reports"):
            (folder / name).mkdir()
        (folder / "default_worker.py").write_text(WORKER)
        (folder / "setup_worker.py").write_text(RAYS_OWN_SETUP)
        self.process = subprocess.Popen([sys.executable, "-c", RAYLET], stdin=subprocess.PIPE, text=True)

    def start(self, *options: str, variables: dict[str, str], **context: Any) -> None:
        command = [
            *(sys.executable, worker_setup.__file__, str(self.folder / "default_worker.py")),
            *(f"--raylet-name={self.folder}/raylet", *options, "--language=PYTHON"),
            f"--serialized-runtime-env-context={json.dumps({'env_vars': variables, **context})}",
        ]
        assert self.process.stdin is not None
        self.process.stdin.write("\t".join(command) + "\n")
        self.process.stdin.flush()

    def start_behind_rays_own(self, *options: str, variables: dict[str, str]) -> None:
        """As Ray's own script does, which has made the environment and runs what the actor names as its interpreter."""
        command = [
            *("env", *(f"{name}={value}" for name, value in variables.items())),
            *(sys.executable, "-P", "-m", WORKER_SETUP, str(self.folder / "default_worker.py"), *options),
        ]
        assert self.process.stdin is not None
        self.process.stdin.write("\t".join(command) + "\n")
        self.process.stdin.flush()

    def reports(self, count: int) -> list[dict[str, Any]]:
        """Of the workers, once there are that many."""
        await_true(lambda: len(list((self.folder / "reports").iterdir())) >= count)
        return [json.loads(path.read_text()) for path in sorted((self.folder / "reports").iterdir())]

    def rays_own(self) -> list[str]:
        """What Ray's own script was given, once it has run."""
        await_true((self.folder / "rays_own").exists)
        given: list[str] = json.loads((self.folder / "rays_own").read_text())
        return given

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()


def await_true(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)


@pytest.fixture
def raylet() -> Iterator[Raylet]:
    with tempfile.TemporaryDirectory(prefix="rf") as folder:
        made = Raylet(Path(folder))
        family: list[psutil.Process] = []
        try:
            yield made
        finally:
            family = psutil.Process(made.process.pid).children(recursive=True) if made.process.poll() is None else []
            made.kill()
            for path in (Path(folder) / "reports").iterdir():
                if psutil.pid_exists(int(path.name)):
                    os.kill(int(path.name), signal.SIGKILL)
            psutil.wait_procs(family, timeout=PATIENCE_S)


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, SERVER_PROCESS: "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def server_variables(mark: str = "") -> dict[str, str]:
    return {SERVER_PROCESS: "1", "MARK": mark}


def test_server_actors_are_forked_from_one_process_that_has_imported_the_servers(raylet: Raylet) -> None:
    for number in range(3):
        raylet.start(f"--worker-id={number}", variables=server_variables("all the same"))
    reports = raylet.reports(3)
    script, name = str(raylet.folder / "default_worker.py"), f"--raylet-name={raylet.folder}/raylet"
    assert sorted(each["arguments"] for each in reports) == [[script, name, f"--worker-id={n}"] for n in range(3)]
    assert all(each["has_servers"] for each in reports)
    (server,) = {each["parent"] for each in reports}
    assert psutil.Process(server).ppid() == raylet.process.pid


def test_in_a_ray_of_somebody_elses_they_are_forked_behind_rays_own_script(raylet: Raylet) -> None:
    name = f"--raylet-name={raylet.folder}/raylet"
    for number in range(3):
        raylet.start_behind_rays_own(name, f"--worker-id={number}", variables=server_variables("all the same"))
    reports = raylet.reports(3)
    script = str(raylet.folder / "default_worker.py")
    assert sorted(each["arguments"] for each in reports) == [[script, name, f"--worker-id={n}"] for n in range(3)]
    assert all(each["has_servers"] and each["mark"] == "all the same" for each in reports)
    (server,) = {each["parent"] for each in reports}
    assert psutil.Process(server).ppid() == raylet.process.pid


def test_what_cannot_be_forked_behind_rays_own_script_starts_as_ray_would_have_started_it(raylet: Raylet) -> None:
    raylet.start_behind_rays_own("--worker-id=1", variables=server_variables())
    (report,) = raylet.reports(1)
    assert report["arguments"][1:] == ["--worker-id=1"] and not report["has_servers"]
    assert report["parent"] == raylet.process.pid


def test_a_forked_process_is_its_own_groups_leader_and_keeps_nothing_of_the_fork_server(raylet: Raylet) -> None:
    for _ in range(2):
        raylet.start(variables=server_variables())
    for each in raylet.reports(2):
        assert each["group"] == each["pid"]
        assert each["descriptors"] <= 4  # the three standard ones, and that of the folder that is listed
        assert each["child_signal"] == str(signal.SIG_DFL)


def test_forked_processes_draw_different_ids(raylet: Raylet) -> None:
    for _ in range(3):
        raylet.start(variables=server_variables())
    assert len({each["drawn"] for each in raylet.reports(3)}) == 3


@pytest.mark.parametrize("name", ["RAY_JOB_ID", "MARK"])
def test_a_worker_with_another_environment_has_another_fork_server(raylet: Raylet, name: str) -> None:
    for value in ("01000000", "02000000"):
        raylet.start(variables=server_variables() | {name: value})
    reports = raylet.reports(2)
    assert len({each["parent"] for each in reports}) == 2
    if name == "MARK":
        assert {each["mark"] for each in reports} == {"01000000", "02000000"}


def test_the_fork_server_ends_with_its_raylet(raylet: Raylet) -> None:
    raylet.start(variables=server_variables())
    (report,) = raylet.reports(1)
    server = psutil.Process(report["parent"])
    raylet.kill()
    server.wait(PATIENCE_S)
    assert psutil.pid_exists(report["pid"]), "what becomes of a worker is Ray's affair"


def test_the_fork_server_ends_when_none_of_its_processes_is_left_for_a_while(tmp_path: Path) -> None:
    script = tmp_path / "default_worker.py"
    script.write_text("import os, time; time.sleep(1); os._exit(0)")
    program = f"""\
import os, socket, time
from raylog.actors import fork_server
fork_server.IDLE_MS = 100
listener = socket.socket(socket.AF_UNIX)
listener.bind({str(tmp_path / "s")!r})
listener.listen()
lock = os.open({str(tmp_path / "lock")!r}, os.O_CREAT | os.O_RDWR)
fork_server.main([str(lock), str(listener.detach()), str(os.pidfd_open(os.getppid())), {str(script)!r}])
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("it had waited for its processes")
"""
    assert run(program).strip() == "it had waited for its processes"


def test_after_the_death_of_the_fork_server_the_next_worker_becomes_one(raylet: Raylet) -> None:
    raylet.start(variables=server_variables())
    (first,) = raylet.reports(1)
    os.kill(first["parent"], signal.SIGKILL)
    raylet.start(variables=server_variables())
    parents = {each["parent"] for each in raylet.reports(2) if each["pid"] != first["pid"]}
    assert parents and first["parent"] not in parents


@pytest.mark.parametrize(
    ("variables", "context"),
    [
        ({}, {}),
        ({SERVER_PROCESS: "1", "PATH": "/more:${PATH}"}, {}),
        ({SERVER_PROCESS: "1"}, {"command_prefix": ["nice"]}),
        ({SERVER_PROCESS: "1"}, {"py_executable": "python of a container"}),
    ],
    ids=["no server", "a variable in a value", "a prefix", "another interpreter"],
)
def test_every_other_worker_is_set_up_by_rays_own_script(
    raylet: Raylet, variables: dict[str, str], context: dict[str, Any]
) -> None:
    raylet.start("--worker-id=1", variables=variables, **context)
    worker, _, worker_id, language, given = raylet.rays_own()
    assert [worker, worker_id, language] == [
        *(str(raylet.folder / "default_worker.py"), "--worker-id=1", "--language=PYTHON")
    ]
    assert json.loads(given.partition("=")[2]) == {"env_vars": variables, **context}
    assert not list((raylet.folder / "reports").iterdir())


def test_a_worker_in_java_is_set_up_by_rays_own_script(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho started: $*\n")
    java.chmod(0o755)
    done = subprocess.run(
        [
            *(
                sys.executable,
                worker_setup.__file__,
                "-Dray.raylet.node-manager-port=1",
                "io.ray.runtime.DefaultWorker",
            ),
            *("--language=JAVA", "--serialized-runtime-env-context={}"),
        ],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("started: ") and "io.ray.runtime.DefaultWorker" in done.stdout, done


def test_a_fork_server_that_may_not_fork_leaves_all_workers_to_ray(tmp_path: Path) -> None:
    script, lock = tmp_path / "default_worker.py", tmp_path / "lock"
    script.write_text("import sys; print('fresh', sys.argv[1:], 'raylog' in sys.modules)")
    program = f"""\
import os, socket
from raylog.actors import fork_server
fork_server.PRELOADED = (*fork_server.PRELOADED, "raylog.actors.ray_classes")
lock = os.open({str(lock)!r}, os.O_CREAT | os.O_RDWR)
listener = socket.socket(socket.AF_UNIX)
fork_server.main([str(lock), str(listener.detach()), str(os.pidfd_open(os.getppid())), {str(script)!r}, "--one"])
"""
    assert run(program).strip() == "fresh ['--one'] False"
    assert "random" in lock.read_text()
    refused = f"""\
from raylog.placement import worker_setup
worker_setup.be_forked({str(tmp_path / "x")!r}, [], {{}})
print("goes another way")
"""
    (tmp_path / "x.lock").write_text("a reason")
    assert run(refused).strip() == "goes another way"


def test_a_process_that_has_imported_the_servers_may_be_forked() -> None:
    assert run("from raylog.actors import fork_server as f; f.preload(); print(f.why_not_fork())").strip() == "None"


def test_a_process_with_threads_may_not_be_forked() -> None:
    program = "import threading, time; threading.Thread(target=time.sleep, args=(9,), daemon=True).start()"
    assert "thread" in run(f"{program}\nfrom raylog.actors.fork_server import why_not_fork\nprint(why_not_fork())")


def test_what_servers_import_stays_within_its_budget() -> None:
    program = """\
import json, sys
from raylog.actors.import_trimming import spare_imports_in_servers
spare_imports_in_servers()
from raylog.actors.fork_server import preload
preload()
print(json.dumps(sorted(name for name, module in sys.modules.items() if module is not None)))
"""
    imported = json.loads(run(program))
    assert not NOT_IMPORTED & {name.partition(".")[0] for name in imported}
    others = [name for name in imported if name not in LINKS and not name.startswith("raylog.client.links")]
    assert not [name for name in others if name.startswith(CLIENT_SIDE)]
    assert len(imported) <= MODULES_MAX


def test_the_setup_of_a_worker_imports_neither_ray_nor_raylogs_modules() -> None:
    program = f"""\
import runpy, sys
runpy.run_path({worker_setup.__file__!r})
print(*(name for name in sys.modules if name.partition(".")[0] in ("ray", "raylog")))
"""
    assert run(program).strip() == ""


def test_the_variable_that_marks_server_processes_is_the_same_in_both_places() -> None:
    assert worker_setup.SERVER_PROCESS == SERVER_PROCESS


def test_a_process_that_no_raylet_has_started_is_not_one_of_a_raylet() -> None:
    assert not is_of_a_raylet(os.getpid())
