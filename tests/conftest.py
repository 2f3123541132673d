"""How long a test may take: no example of a property test is judged by its time, on a machine that has other work, too; and a slow
test has an hour instead of the ten minutes of the others.
"""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import HealthCheck, settings

SLOW_TEST_S: Final = 3600

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TEST_S))
