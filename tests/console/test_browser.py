"""The console in a real browser: Chromium without a window. Skipped where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from raylog.testing import Kafka

pytestmark = pytest.mark.core
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER_S = 240


@pytest.fixture(scope="module")
def chromium() -> str:
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"none of {', '.join(NAMES)} is on the PATH (Debian: apt-get install chromium)")
    return found


def dom(program: str, url: str, profile: Path, *options: str) -> str:
    """The page as it is after three seconds of its own time, scripts included."""
    done = subprocess.run(
        [
            program,
            "--headless=new",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            "--disable-gpu",
            "--disable-dev-shm-usage",
            f"--user-data-dir={profile}",
            "--virtual-time-budget=3000",
            *options,
            "--dump-dom",
            url,
        ],
        capture_output=True,
        text=True,
        timeout=BROWSER_S,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout


def test_the_script_runs_under_the_policy_and_hostile_messages_do_not(
    kafka: Kafka, inside: Any, chromium: str, tmp_path: Path
) -> None:
    hostile = "<script>document.title='stolen'</script><img src=x onerror=\"document.title='stolen'\">"
    before = kafka.write("payments", b"before")
    kafka.write("payments", hostile.encode(), key=hostile.encode())
    page = dom(chromium, f"{inside.url}/topics/payments/messages?count=2", tmp_path)
    assert "stolen</title>" not in page and "payments: messages" in page
    assert "&lt;script&gt;document.title" in page
    at = inside.get("/topics/payments/tail/records", at=f"0:{before}")
    assert at.status == 200
    tail = dom(chromium, f"{inside.url}/topics/payments/tail", tmp_path)
    assert "Following" in tail and ">Stop</button>" in tail, "the script has started the tail"


def test_a_page_follows_the_system_into_the_dark(inside: Any, chromium: str, tmp_path: Path) -> None:
    from zlib import decompress

    grounds = {}
    for name, scheme in (("dark", 0), ("light", 1)):
        path = tmp_path / f"{name}.png"
        dom_options = [
            f"--blink-settings=preferredColorScheme={scheme}",
            "--window-size=390,844",
            f"--screenshot={path}",
        ]
        dom(chromium, f"{inside.url}/groups", tmp_path / name, *dom_options)
        data = path.read_bytes()
        start = data.index(b"IDAT") - 4
        pixels = b""
        while data[start + 4 : start + 8] == b"IDAT":
            length = int.from_bytes(data[start : start + 4], "big")
            pixels += data[start + 8 : start + 8 + length]
            start += 12 + length
        grounds[name] = sum(decompress(pixels)[1:4])
    assert grounds["dark"] < 200 < 600 < grounds["light"], grounds
