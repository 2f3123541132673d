"""A pytest plugin that patches the mutation named by RAYLOG_MUTATION into the machines: ``pytest -p mutation_plugin``."""

from __future__ import annotations

import os

import pytest


def pytest_sessionstart(session: pytest.Session) -> None:
    from hunts import ALL

    ALL[os.environ["RAYLOG_MUTATION"]](pytest.MonkeyPatch())
