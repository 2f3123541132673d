"""Dashboards and alert rules: they name metrics that there are, and are written where Grafana and Prometheus look."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raylog.cli.main import app
from raylog.errors import ConfigError
from raylog.metrics.dashboards import ALERTS, DASHBOARDS, RULES_FILE, as_grafana, expressions, files
from raylog.metrics.table import METRICS

NAMES = re.compile(r"\b(?:kafka|raylog|process)_\w+")
EVERY = {**dict(expressions()), **{each.name: each.expression for each in ALERTS}}


@pytest.mark.parametrize("name", EVERY)
def test_an_expression_names_metrics_that_there_are(name: str) -> None:
    named = {each.removesuffix("_bucket") for each in NAMES.findall(EVERY[name])}
    assert named and named <= METRICS.keys()


def test_the_docs_name_each_alert() -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    assert re.findall(r"^\| (Raylog\w+) \|", page, re.M) == [each.name for each in ALERTS]


def test_counters_are_only_shown_as_rates() -> None:
    for name, expression in EVERY.items():
        for counter in re.findall(r"\w+_total", expression):
            assert re.search(rf"rate\({counter}[^)]*\[", expression), name


def test_panels_do_not_lie_on_each_other_and_have_ids_of_their_own() -> None:
    for dashboard in map(as_grafana, DASHBOARDS):
        panels = dashboard["panels"]
        assert len({each["id"] for each in panels}) == len(panels)
        assert len({(each["gridPos"]["x"], each["gridPos"]["y"]) for each in panels}) == len(panels)
        assert all(each["gridPos"]["x"] + each["gridPos"]["w"] <= 24 for each in panels)
        assert all(target["datasource"]["uid"] == "${datasource}" for each in panels for target in each["targets"])


def test_a_variable_that_an_expression_uses_is_there_to_be_chosen() -> None:
    for dashboard in DASHBOARDS:
        used = {
            name
            for panel in dashboard.panels
            for query in panel.queries
            for name in re.findall(r"\$(\w+)", query.expression)
        }
        assert used - {"__rate_interval"} == set(dashboard.variables)


def test_the_command_writes_all_files_and_writes_over_those_of_before(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    for _ in range(2):
        result = CliRunner().invoke(app, ["metrics", "dashboards", str(folder)])
        assert result.exit_code == 0, result.output
    assert sorted(each.name for each in folder.iterdir()) == sorted(files())
    assert result.stdout.splitlines() == [str(folder / name) for name in files()]
    assert json.loads((folder / "raylog-cluster.json").read_text())["title"] == "raylog: cluster"
    assert (folder / RULES_FILE).read_text().count("- alert:") == len(ALERTS)


def test_without_rays_folder_one_has_to_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raylog.cli.metrics.RAYS_FOLDER", tmp_path / "none")
    result = CliRunner().invoke(app, ["metrics", "dashboards"])
    assert isinstance(result.exception, ConfigError) and "name a folder" in str(result.exception)
    (tmp_path / "none").mkdir()
    assert CliRunner().invoke(app, ["metrics", "dashboards", "--json"]).exit_code == 0
    assert (tmp_path / "none" / "raylog-groups.json").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, ["metrics", "dashboards", str(tmp_path / "file" / "folder")])
    assert isinstance(result.exception, ConfigError) and str(tmp_path / "file" / "folder") in str(result.exception)
