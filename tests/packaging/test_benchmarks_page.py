"""The page of figures is what the result files say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def test_docs_benchmarks_shows_the_committed_results_and_nothing_else() -> None:
    checked = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "report.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_result_is_whole_and_comes_from_a_script_of_its_name() -> None:
    for path in RESULTS.glob("*.json"):
        result = json.loads(path.read_text())
        script = path.stem.partition(".")[0]  # before the variant
        assert any((ROOT / "benchmarks" / f"{prefix}{script}.py").exists() for prefix in ("bench_", "")), path
        for case, contestants in result["cases"].items():
            assert all(each["values"] for each in contestants.values()), (path, case)
        assert {target["met"] for target in result["targets"]} <= {True, False}
