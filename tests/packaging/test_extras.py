"""A plain install has the clients, the command line and the test broker. It is small, and whatever
needs an extra says which one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from raylog import extras

ROOT = Path(__file__).resolve().parents[2]
SIZE_MAX_BYTES = 80 * 10**6
EMPTY = "of-the-environment"  # its files before anything is installed

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def plain(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with raylog and what a plain install brings; the folder of its programs."""
    home = tmp_path_factory.mktemp("plain") / "env"
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, home], check=True)
    (home.parent / EMPTY).write_text("\n".join(map(str, home.rglob("*"))))
    install = [*uv, "pip", "install", "--quiet", "--compile-bytecode", "--link-mode", "copy", "--python", home]
    subprocess.run([*install, "-c", ROOT / "constraints.txt", wheel], check=True)
    return home / "bin"


def run(plain: Path, *command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "RAY"))}
    return subprocess.run(
        [plain / command[0], *command[1:]], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


def test_a_plain_install_is_small(plain: Path) -> None:
    of_the_environment = set((plain.parents[1] / EMPTY).read_text().splitlines())
    installed = [path for path in plain.parent.rglob("*") if str(path) not in of_the_environment]
    sizes = {path: path.stat().st_blocks * 512 for path in installed if not path.is_symlink()}
    assert sum(sizes.values()) <= SIZE_MAX_BYTES, sorted(sizes, key=sizes.__getitem__)[-10:]


def test_a_plain_install_serves_and_reaches_the_test_broker(plain: Path, tmp_path: Path) -> None:
    program = """
import sys
import raylog.testing

with raylog.testing.broker(topics={"orders": 1}) as broker:
    cluster = raylog.connect(broker.bootstrap, client_id="plain")
    with cluster.producer(compression_type="zstd") as producer:
        producer.send_batch("orders", [b"42"] * 100).result()
    with cluster.consumer(group_id="readers", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["orders"])
        print(consumer.consume(1, timeout=20)[0].value)
print(sorted({"ray", "pyarrow", "pyspark", "grpc", "numpy", "uvloop"} & sys.modules.keys()))
"""
    done = run(plain, "python", "-c", program, folder=tmp_path)
    assert done.stdout.splitlines() == ["b'42'", "[]"], done.stderr


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("raylog.init()", "raylog.init() needs ray, which is not installed: pip install 'raylog[ray]'"),
        (
            "raylog.connect()",
            "finding a cluster without its folder needs ray, which is not installed: pip install 'raylog[ray]'",
        ),
        (
            "raylog.data.read_topic",
            "raylog.data.read_topic needs ray, which is not installed: pip install 'raylog[data]'",
        ),
        ("raylog.spark.read", "raylog.spark.read needs pyarrow, which is not installed: pip install 'raylog[spark]'"),
        (
            "raylog.Consumer(ADDRESS).poll_batch()",
            "poll_batch needs pyarrow, which is not installed: pip install 'raylog[arrow]'",
        ),
        (
            "checked([listeners_of('SASL_PLAINTEXT://:1', None, {URL: 'https://issuer/jwks'})])",
            "sasl.oauthbearer.jwks.endpoint.url needs jwt, which is not installed: pip install 'raylog[oauth]'",
        ),
    ],
)
def test_what_needs_an_extra_names_it(plain: Path, tmp_path: Path, expression: str, sentence: str) -> None:
    program = (
        "import raylog\n"
        "from raylog.client.links.address import ClusterAddress\n"
        "from raylog.types import Endpoint\n"
        "from raylog.wire.listeners import checked, listeners_of\n"
        "from raylog.wire.oauth_config import URL\n"
        "ADDRESS = ClusterAddress('c', 'n', 'id', (Endpoint('127.0.0.1', 1),), b'secret')\n"
        f"{expression}\n"
    )
    done = run(plain, "python", "-c", program, folder=tmp_path)
    assert done.stderr.splitlines()[-1] == f"raylog.errors.MissingExtraError: {sentence}"
    assert not list(tmp_path.iterdir())


def test_the_command_line_names_the_extra_in_one_line(plain: Path, tmp_path: Path) -> None:
    done = run(plain, "raylog", "up", folder=tmp_path)
    assert (done.returncode, done.stderr) == (
        1,
        "raylog: raylog up needs ray, which is not installed: pip install 'raylog[ray]'\n",
    )
    done = run(plain, "raylog", "topics", "list", folder=tmp_path)
    assert done.returncode == 1 and done.stderr.endswith("pip install 'raylog[ray]'\n"), done.stderr
    assert len(done.stderr.splitlines()) == 1
    done = run(plain, "raylog", "consume", "t", "--schema-registry", "http://127.0.0.1:1", folder=tmp_path)
    assert (done.returncode, done.stderr) == (
        1,
        "raylog: --schema-registry needs fastavro, which is not installed: pip install 'raylog[schemas]'\n",
    )
    assert "pip install 'raylog[ray]'" in run(plain, "raylog", "doctor", folder=tmp_path).stdout
    assert not list(tmp_path.iterdir())


def test_every_extra_that_is_named_is_there() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    offered = set(re.findall(r"^(\w+) = \[$", text.partition("[project.optional-dependencies]")[2], re.MULTILINE))
    assert set(extras._EXTRA_OF.values()) <= offered
