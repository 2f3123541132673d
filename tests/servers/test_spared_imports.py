"""Server processes do without packages that Ray and kio import just in case; nobody else's process does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from raylog.types import SERVER_PROCESS

PROBE = """\
import raylog.actors.ray_actors, sys
print(*(name for name in ("hypothesis", "pyarrow", "pydantic") if sys.modules.get(name, sys) is None))
"""


def missing_after_import(environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROBE], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.core
def test_a_server_process_does_without_them() -> None:
    assert missing_after_import({**os.environ, SERVER_PROCESS: "1"}) == "hypothesis pyarrow pydantic"


@pytest.mark.core
def test_a_server_process_has_aiokafkas_codec_without_its_clients() -> None:
    probe = """\
import raylog.actors.ray_actors, raylog.records.codec, sys
print(*(name for name in ("aiokafka.record._crecords", "aiokafka.client") if name in sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", probe],
        env={**os.environ, SERVER_PROCESS: "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "aiokafka.record._crecords"


@pytest.mark.core
def test_another_process_that_imports_the_actor_classes_keeps_its_packages() -> None:
    environment = {name: value for name, value in os.environ.items() if name != SERVER_PROCESS}
    assert missing_after_import(environment) == ""
