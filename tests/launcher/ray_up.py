"""``ray up cluster.yaml`` over SSH, on this machine alone: ``make ray-up``. Needs root, for namespaces.

Two machines are made of one: each is an sshd of the test's own on a loopback address, in a PID namespace (so that ``ray stop`` there
sees nobody else's processes) with a folder of its own where the other has its; both are in one network namespace, whose
loopback interface is all there is. Ray's launcher runs the cluster.yaml of this repository, with the values marked CHANGE put in,
from a third place. Keys are made for the test; nobody's known_hosts, home or Ray is touched.

Shown, in this order: a cluster of two blank disks, replication factor 2 with one replica on each machine; records written on one
machine and read on the other; the console on the head, which wants its password, before and after Ray has lost its state; ``ray up``
on the running cluster, with and without a restart of Ray, loses nothing; ``ray down`` ends Ray's head; ``ray up`` without anything
that Ray knew brings everything back from the disks; what ends Ray everywhere; and a Ray that ran on the machine before is alive
afterwards. ``make ray-up TLS=1``: all of it with the file's lines for TLS between raylog's processes, too.
"""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
NAMESPACE = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
HEAD, WORKER = "127.0.0.2", "127.0.0.3"
CONSOLE = 8900
RECORDS = 2_000
PATIENCE_S = 240.0
PACKAGES = {
    "curl": "curl",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "rsync": "rsync",
}
SEARCHED = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/local/sbin"


def main() -> int:
    has_tls = "--tls" in sys.argv
    if sys.argv[1:2] == ["--inside"]:
        return inside(Path(sys.argv[2]), has_tls)
    reason = obstacle()
    if reason is not None:
        print(f"make ray-up cannot run here: {reason}", file=sys.stderr)
        return 1
    folder = Path(tempfile.mkdtemp(prefix="rlup"))
    try:
        with a_ray_that_ran_before(folder) as is_alive:
            command = [*NAMESPACE[:2], "--net", *NAMESPACE[2:], sys.executable, __file__, "--inside", str(folder)]
            command += ["--tls"] if has_tls else []
            code = subprocess.run(command, env=clean_environment(folder)).returncode
            if not is_alive():
                print("FAILED: the Ray that ran before is gone")
                return 1
            say("the Ray that ran before is alive")
            return code
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def obstacle() -> str | None:
    """Why this machine cannot run it, None if it can. Installs what is missing where that is ours to do."""
    if os.getuid() != 0:
        return "it makes namespaces and starts an sshd, which is root's to do"
    if subprocess.run([*NAMESPACE, "--net", "true"], capture_output=True).returncode != 0:
        return "namespaces are not allowed (a container without CAP_SYS_ADMIN?)"
    missing = sorted({package for name, package in PACKAGES.items() if shutil.which(name, path=SEARCHED) is None})
    if missing and shutil.which("apt-get"):
        say(f"installing {', '.join(missing)}")
        subprocess.run(["apt-get", "update", "-qq"], check=False, stdout=subprocess.DEVNULL)
        subprocess.run(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing],
            check=False,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        )
    missing = sorted(name for name in PACKAGES if shutil.which(name, path=SEARCHED) is None)
    return f"{', '.join(missing)} is not installed, and could not be" if missing else None


def clean_environment(folder: Path) -> dict[str, str]:
    """Without anything of Ray's or raylog's, and with a home of its own."""
    home = folder / "laptop"
    home.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY", "SSH_"))}
    return kept | {
        "HOME": str(home),
        "RAY_TMPDIR": str(home),
        "RAY_USAGE_STATS_ENABLED": "0",
        "PATH": f"{BIN}:{SEARCHED}",
    }


@contextmanager
def a_ray_that_ran_before(folder: Path) -> Iterator[Callable[[], bool]]:
    """A head on this machine, outside of every namespace; yields whether all its processes still run."""
    home = folder / "before"
    home.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        str(BIN / "ray"),
        "start",
        "--head",
        "--block",
        f"--port={port}",
        "--node-ip-address=127.0.0.1",
        "--num-cpus=1",
    ]
    command += [
        "--include-dashboard=false",
        "--object-store-memory=80000000",
        "--disable-usage-stats",
        f"--temp-dir={home}",
    ]
    with (folder / "before.log").open("w") as log:
        process = subprocess.Popen(
            command,
            env=clean_environment(folder) | {"RAY_TMPDIR": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    family: list[psutil.Process] = []
    try:
        eventually(lambda: "Ray runtime started" in (folder / "before.log").read_text(), "a Ray outside")
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        servers = [each for each in family if each.name() in ("raylet", "gcs_server")]
        assert len(servers) == 2, servers

        def is_alive() -> bool:
            with socket.socket() as probe:
                return all(each.is_running() for each in servers) and probe.connect_ex(("127.0.0.1", port)) == 0

        yield is_alive
    finally:
        process.terminate()
        _, stubborn = psutil.wait_procs(
            [psutil.Process(process.pid), *family] if process.poll() is None else family, 30
        )
        for each in stubborn:
            each.kill()


# ------------------------------------------------------------------ inside the network namespace


def inside(folder: Path, has_tls: bool) -> int:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    keys(folder)
    config = folder / "cluster.yaml"
    config.write_text(filled_in(ROOT / "cluster.yaml", folder, has_tls))
    if has_tls:
        make_certificates(folder)
    with machine(folder, "head", HEAD), machine(folder, "worker", WORKER):
        ray("up", "--yes", "--no-config-cache", config)
        first = cluster(folder)
        say(f"cluster {first['cluster_id']} serves on two machines that were blank")
        spoken = {speaks_tls(each["endpoint"]) for each in first["actors"]}
        check(
            spoken == {has_tls}, f"{'every' if has_tls else 'no'} process speaks TLS with the others", first["actors"]
        )
        on(folder, HEAD, "raylog topics create t --partitions 1 --replication-factor 2 --config min.insync.replicas=2")
        on(folder, HEAD, "raylog produce t", given=values(0, RECORDS))
        (partition,) = cluster(folder)["topics"][0]["partitions"]
        hosts = {
            each["endpoint"].rpartition(":")[0] for each in cluster(folder)["actors"] if each["kind"] == "replicas"
        }
        check(sorted(partition["replicas"]) == [0, 1] and hosts == {HEAD, WORKER}, "one replica on each machine", hosts)
        check(
            read(folder, WORKER) == values(0, RECORDS),
            f"{RECORDS} records written on one machine are read on the other",
        )

        look_at_console(folder, first["cluster_id"])

        ray("up", "--yes", "--no-restart", "--no-config-cache", config)
        check(
            pids(cluster(folder)) == pids(first | cluster(folder)), "`ray up --no-restart` leaves every process alone"
        )
        check(read(folder, WORKER) == values(0, RECORDS), "and loses nothing")

        before = pids(cluster(folder))
        ray("up", "--yes", "--no-config-cache", config)
        kept = {endpoint.rpartition(":")[0] for endpoint, _ in before & pids(cluster(folder))}
        check(kept <= {WORKER}, "`ray up` on the running cluster restarts the servers of the head's machine", kept)
        on(folder, WORKER, "raylog produce t", given=values(RECORDS, 2 * RECORDS))
        check(read(folder, HEAD) == values(0, 2 * RECORDS), "and loses nothing; records can be written again")

        ray("down", "--yes", config)
        eventually(lambda: not rays(folder, HEAD), "Ray has ended on the head's machine")
        check(
            bool(rays(folder, WORKER)), "`ray down` ends Ray on the head's machine, and with this provider on no other"
        )
        shutil.rmtree(folder / "head" / "data" / "ray-gcs")
        ray("up", "--yes", "--no-config-cache", config)
        check(
            cluster(folder)["cluster_id"] == first["cluster_id"],
            "`ray up` after Ray lost all its state finds the cluster on its disks",
        )
        check(read(folder, WORKER) == values(0, 2 * RECORDS), f"with all {2 * RECORDS} records")
        look_at_console(folder, first["cluster_id"])

        on(folder, HEAD, "raylog down")
        eventually(lambda: asked(folder, "127.0.0.1") == "000", "the console has ended with the cluster")
        ray("down", "--yes", config)
        on(folder, WORKER, "ray stop")
        eventually(lambda: not rays(folder, HEAD) + rays(folder, WORKER), "Ray has ended on both machines")
        say("`raylog down`, `ray down`, and `ray stop` on the worker end everything")
    say("done")
    return 0


def filled_in(template: Path, folder: Path, has_tls: bool) -> str:
    """The repository's file with the values that are marked CHANGE, and where that is wanted with its lines for TLS; nothing else
    differs.
    """
    place = folder / "machine"
    changes = {
        "head_ip: HEAD_ADDRESS": f"head_ip: {HEAD}",
        "worker_ips: [WORKER_1_ADDRESS, WORKER_2_ADDRESS]": f"worker_ips: [{WORKER}]",
        "ssh_user: ubuntu": "ssh_user: root",
        "ssh_private_key: ~/.ssh/id_rsa": f"ssh_private_key: {folder}/key",
        "python3 -m pip install --quiet 'raylog[console]' ": "raylog --version ",
        "raylog up --disks 3 --console-port 8900": f"raylog up --disks 2 --console-port {CONSOLE}",
    }
    text = template.read_text()
    for old, new in changes.items():
        (line,) = [each for each in text.splitlines() if old in each]
        assert line.rstrip().endswith("# CHANGE"), f"{line!r} is not marked CHANGE"
        text = text.replace(old, new)
    if has_tls:
        lines = [line.removeprefix("#") if line.rstrip().endswith("# TLS") else line for line in text.splitlines()]
        text = "\n".join(lines) + "\n"
        for_disks = "raylog node resources /data/raylog/disk-*"
        text = text.replace(for_disks, f"{for_disks} --config /data/raylog/tls/server.properties")
    return text.replace("/data/", f"{place}/data/")


def make_certificates(folder: Path) -> None:
    """As the file says, at the place where ``ray up`` is called."""
    made = Path.home() / "raylog-certificates"
    nodes = ["--node", HEAD, "--node", WORKER]
    placed = ["--placed-at", str(folder / "machine" / "data" / "raylog" / "tls")]
    subprocess.run([BIN / "raylog", "certificates", made, *nodes, *placed], check=True, stdout=subprocess.DEVNULL)


def speaks_tls(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        try:
            stranger.wrap_socket(sock).close()
        except (OSError, TimeoutError):
            return False
    return True


def keys(folder: Path) -> None:
    for name in ("key", "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)


@contextmanager
def machine(folder: Path, name: str, address: str) -> Iterator[None]:
    """An sshd at that address: own PIDs, own /run, and its own folder at the place where every machine has one."""
    own, place = folder / name, folder / "machine"
    (own / "home").mkdir(parents=True)
    (own / "tmp").mkdir()
    place.mkdir(exist_ok=True)
    profile = f"export PATH={BIN}:{SEARCHED}\n"
    for file in (".profile", ".bashrc"):
        (own / "home" / file).write_text(profile)
    shutil.copy(folder / "key.pub", own / "authorized_keys")
    (own / "authorized_keys").chmod(0o600)
    settings = {
        "ListenAddress": f"{address}:22",
        "HostKey": folder / "host_key",
        "AuthorizedKeysFile": place / "authorized_keys",
        "PermitRootLogin": "prohibit-password",
        "PasswordAuthentication": "no",
        "StrictModes": "no",
        "UsePAM": "no",
        "PidFile": "none",
        "PrintMotd": "no",
        "SetEnv": f"RAY_TMPDIR={place}/tmp RAY_USAGE_STATS_ENABLED=0 PATH={BIN}:{SEARCHED}",
    }
    config = own / "sshd_config"
    config.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    sshd = shutil.which("sshd", path=SEARCHED)
    users = [line.split(":") for line in Path("/etc/passwd").read_text().splitlines()]
    homes = [":".join([*user[:5], f"{place}/home" if user[0] == "root" else user[5], *user[6:]]) for user in users]
    (own / "passwd").write_text("\n".join(homes) + "\n")  # ssh goes by it, whatever HOME says
    script = (
        f"mount --bind {own}/passwd /etc/passwd && mount --bind {own} {place} && "
        f"mount -t tmpfs tmpfs /run && mkdir -p /run/sshd && exec {sshd} -D -e -f {config}"
    )
    with (own / "sshd.log").open("w") as log:
        process = subprocess.Popen([*NAMESPACE, "sh", "-c", script], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        eventually(lambda: listens(address) or process.poll() is not None, f"sshd at {address}")
        assert process.poll() is None, (own / "sshd.log").read_text()
        yield
    finally:
        process.kill()  # unshare waits for its child otherwise; with it ends everything in the namespace
        process.wait(30)


def listens(address: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address, 22)) == 0


# ------------------------------------------------------------------ what is done and looked at


def ray(*arguments: object) -> None:
    say("ray " + " ".join(each for each in map(str, arguments) if each.startswith("--no-r") or "-" not in each[:1]))
    done = subprocess.run(
        [str(BIN / "ray"), *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600
    )
    if done.returncode != 0:
        raise SystemExit(f"FAILED: ray {arguments[0]}:\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}")


def on(folder: Path, address: str, command: str, given: str = "", *, must: bool = True) -> str:
    """What a command printed on a machine, run as its user would."""
    options = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "BatchMode=yes"]
    ssh = ["ssh", "-i", str(folder / "key"), *(word for each in options for word in ("-o", each)), f"root@{address}"]
    done = subprocess.run([*ssh, command], input=given, capture_output=True, text=True, timeout=300)
    if must and done.returncode != 0:
        raise SystemExit(f"FAILED: {command} on {address}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def cluster(folder: Path) -> dict[str, Any]:
    """What ``raylog status`` says when both brokers serve, and every partition is whole."""
    import json

    last = ""

    def serves() -> dict[str, Any] | None:
        nonlocal last
        last = on(folder, HEAD, "raylog status --json 2>&1", must=False)
        try:
            state: dict[str, Any] = json.loads(last.splitlines()[-1])
        except (ValueError, IndexError):
            return None
        whole = all(len(part["isr"]) == 2 for topic in state["topics"] for part in topic["partitions"])
        return state if [each["live"] for each in state["brokers"]] == [True, True] and whole else None

    try:
        found: dict[str, Any] = eventually(serves, "two brokers serve")
    except AssertionError as error:
        told = on(
            folder,
            HEAD,
            "raylog up --disks 2; ray status; tail -n 40 $RAY_TMPDIR/ray/session_latest/logs/monitor*",
            must=False,
        )
        raise SystemExit(f"FAILED: {error}\n{last[-3000:]}\n{told}") from None
    return found


def look_at_console(folder: Path, cluster_id: str) -> None:
    """That of the head, as somebody with a shell there may use it."""
    mode, password = on(folder, HEAD, "stat -c %a ~/.raylog/console.password; cat ~/.raylog/console.password").split()
    check(mode == "600" and len(password) >= 32, "the console's password can be read by its owner only", mode)
    eventually(lambda: asked(folder, "127.0.0.1") == "401", "the console on the head wants its password")
    page = on(folder, HEAD, f"curl -s -u me:{password} http://127.0.0.1:{CONSOLE}/")
    check(cluster_id in page and "read-only" in page, "the console on the head shows the cluster, and changes nothing")
    check(asked(folder, HEAD) == "000", "the console listens at loopback's own address only")


def asked(folder: Path, address: str) -> str:
    """The status of HTTP; 000: nobody listens there."""
    asking = f"curl -s -o /dev/null -w '%{{http_code}}' http://{address}:{CONSOLE}/"
    return on(folder, HEAD, asking, must=False).strip()


def pids(state: dict[str, Any]) -> set[tuple[str, int]]:
    return {(each["endpoint"], each["pid"]) for each in state["actors"]}


def read(folder: Path, address: str) -> str:
    return on(folder, address, "raylog consume t --from-beginning --until-end")


def values(first: int, end: int) -> str:
    return "".join(f"record {number}\n" for number in range(first, end))


def rays(folder: Path, address: str) -> list[str]:
    """The servers of Ray on a machine; each sees its own processes only."""
    program = "import psutil; print(*(each.name() for each in psutil.process_iter()))"
    names = on(folder, address, f'python -c "{program}"').split()
    return [name for name in names if name in ("raylet", "gcs_server")]


def check(holds: bool, what: str, seen: object = "") -> None:
    if not holds:
        raise SystemExit(f"FAILED: {what}: {seen}")
    say(what)


def eventually(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:.0f} s: {what}"
        time.sleep(0.2)
    return found


_started = time.monotonic()


def say(what: str) -> None:
    print(f"{time.monotonic() - _started:6.1f} s  {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
