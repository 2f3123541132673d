"""The documentation against the code: every table of options and APIs row by row, every link, and the promises on the first page.

``python tests/packaging/test_docs.py`` writes the tables anew into docs/.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.core
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def topic_configs() -> str:
    from raylog.configs.topic_configs import TOPIC_CONFIGS

    rows = ["| config | default | values | |", "|---|---|---|---|"]
    for config in TOPIC_CONFIGS.values():
        default = f"`{config.default}`" if config.default else "(empty)"
        verdict = config.meaning if config.refused is None else f"**refused** unless the default: {config.refused}"
        rows.append(f"| `{config.name}` | {default} | {config.values} | {verdict} |")
    return "\n".join(rows)


def broker_configs() -> str:
    from raylog.configs.broker_configs import BROKER_CONFIGS

    rows = [
        f"| `{name}` | `{config.default}` | {config.values} | {'all brokers' if config.is_cluster_wide else 'one or all'} "
        f"| {config.read_by.value} | {config.meaning} |"
        for name, config in BROKER_CONFIGS.items()
    ]
    return "\n".join(("| config | default | values | set for | read by | |", "|---|---|---|---|---|---|", *rows))


def listener_configs() -> str:
    from raylog.configs.link_configs import LINK_CONFIGS
    from raylog.configs.listener_configs import LISTENER_CONFIGS

    rows = ["| config | default | |", "|---|---|---|"]
    for name, config in {**LISTENER_CONFIGS, **LINK_CONFIGS}.items():
        secret = "; secret" if config.is_secret else ""
        rows.append(f"| `{name}` | {config.default or '(empty)'} | {config.meaning}{secret} |")
    return "\n".join(rows)


def client_options() -> str:
    from raylog.client.config import AdminConfig, ConsumerConfig, ProducerConfig

    rows = ["| option | producer | consumer | admin |", "|---|---|---|---|"]
    kinds = (ProducerConfig, ConsumerConfig, AdminConfig)
    for name in sorted({name for kind in kinds for name in kind.names()}):
        cells = []
        for kind in kinds:
            field = kind.model_fields.get(name.replace(".", "_"))
            cells.append("" if field is None else f"`{_default_text(name, field.default)}`")
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(rows)


def refused_options() -> str:
    from raylog.client.refused_options import ADMIN_REFUSED, CONSUMER_REFUSED, PRODUCER_REFUSED

    rows = ["| option | refused because |", "|---|---|"]
    for name, reason in sorted({**PRODUCER_REFUSED, **CONSUMER_REFUSED, **ADMIN_REFUSED}.items()):
        rows.append(f"| `{name}` | {reason} |")
    return "\n".join(rows)


def kafka_apis() -> str:
    from raylog.kafka.spec import ServerKind
    from raylog.kafka.table import APIS

    rows = ["| key | API | versions | answered by |", "|---|---|---|---|"]
    for spec in APIS:
        controller, replicas = spec.spoken_by(ServerKind.CONTROLLER), spec.spoken_by(ServerKind.REPLICAS)
        owner = "both" if controller and replicas else "controller" if controller else "replicas"
        if spoken := controller or replicas:
            rows.append(f"| {spec.key} | {spec.name} | {_shown(spoken)} | {owner} |")
    return "\n".join(rows)


def served_apis() -> str:
    from raylog.kafka.table import APIS

    rows = ["| key | API | versions | answered by |", "|---|---|---|---|"]
    for spec in APIS:
        if spec.versions:
            owners = spec.owner.value if spec.also is None else f"{spec.owner.value}, or {spec.also.value}"
            rows.append(f"| {spec.key} | {spec.name} | {_shown(spec.versions)} | {owners} |")
    return "\n".join(rows)


def _shown(versions: range) -> str:
    return f"{min(versions)}–{max(versions)}" if len(versions) > 1 else str(min(versions))


def private_apis() -> str:
    from raylog.wire import private, private_quotas, private_transactions, private_watching  # noqa: F401  (declares its own)

    rows = ["| key | API | |", "|---|---|---|"]
    for key, request in sorted(private._requests.items()):
        first = " ".join((request.__doc__ or "").split("\n\n")[0].split())
        rows.append(f"| {key} | {request.__name__} | {first} |")
    return "\n".join(rows)


def metrics() -> str:
    from raylog.metrics.table import METRICS

    rows = ["| metric | type | labels | meaning | Kafka's |", "|---|---|---|---|---|"]
    for metric in METRICS.values():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        kafka = f"`{metric.kafka}`" if metric.kafka else ""
        rows.append(f"| `{metric.name}` | {metric.type.value} | {labels} | {metric.meaning} | {kafka} |")
    return "\n".join(rows)


def exit_codes() -> str:
    from raylog.cli.main import EXIT_CODES

    rows = [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    return "\n".join(("| code | |", "|---|---|", *rows))


TABLES = {
    "topic configs": ("configuration.md", topic_configs),
    "broker configs": ("configuration.md", broker_configs),
    "listener configs": ("configuration.md", listener_configs),
    "client options": ("configuration.md", client_options),
    "refused options": ("configuration.md", refused_options),
    "kafka apis": ("wire.md", kafka_apis),
    "served apis": ("kafka_clients.md", served_apis),
    "private apis": ("wire.md", private_apis),
    "exit codes": ("operations.md", exit_codes),
    "metrics": ("metrics.md", metrics),
}


def _default_text(name: str, default: object) -> str:
    if name == "acks":
        return "all"
    if name == "enable.idempotence":
        return "true"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, float):
        return f"{default:g}" if default < 1e6 else f"{default:.0f}"
    return "none" if default is None or default in ((), "") else str(default)


def _between(page: str, name: str) -> str:
    match = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- end -->", page, re.DOTALL)
    assert match is not None, f"the page has no table {name!r}"
    return match.group(1)


@pytest.mark.parametrize("name", TABLES)
def test_each_table_says_what_the_code_does(name: str) -> None:
    file, render = TABLES[name]
    assert _between((ROOT / "docs" / file).read_text(), name) == render()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def missing_paths(page: str) -> list[str]:
    """The files and folders that a page names in code spans and that are not there; one with a star needs one match."""
    named = re.findall(r"`([\w./*]+/[\w./*]*)`", page)
    return sorted({path for path in named if not any(ROOT.glob(path.rstrip("/")))})


def test_the_recipes_name_files_that_are_there() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert missing_paths(page.replace("`.venv/bin/", "`")) == []
    assert missing_paths("`raylog/kafka/table.py`, `raylog/gone.py`") == ["raylog/gone.py"]


def test_the_first_line_of_the_readme_says_what_it_is() -> None:
    first = (ROOT / "README.md").read_text().splitlines()[0]
    assert "a replicated log for Ray and Spark, not a logging library" in first


def test_every_frame_of_a_control_session_is_named() -> None:
    from raylog.control.session import FromActor, FromController

    page = (ROOT / "docs" / "wire.md").read_text()
    assert [kind.__name__ for kind in get_args(FromActor | FromController) if f"`{kind.__name__}`" not in page] == []


def test_every_benchmark_is_listed() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text()
    scripts = (path.name for path in (ROOT / "benchmarks").glob("*.py"))
    assert [name for name in sorted(scripts) if f"`{name}`" not in page] == []


def test_every_command_that_is_shown_exists() -> None:
    """``raylog x y`` in a page is a command; its long options are that command's."""
    from typer.testing import CliRunner

    from raylog.cli.main import app

    shown: set[tuple[str, ...]] = set()
    for page in PAGES:
        for line in re.findall(r"(?:^|[`\s(|/])raylog ((?:[a-z-]+ ?)+[^`\n]*)", page.read_text(), re.MULTILINE):
            words = line.split("#")[0].split("|")[0].replace("…", "").split()
            if words and words[0] in (*COMMANDS, *GROUPED):
                grouped = words[0] in GROUPED and re.fullmatch("[a-z-]+", (words[1:] or ["?"])[0])
                group = 2 if grouped else 1
                options = tuple(word.partition("=")[0] for word in words[group:] if word.startswith("--"))
                shown.add((*words[:group], *options))
    assert len(shown) > 10
    for command in sorted(shown):
        names = [word for word in command if not word.startswith("--")]
        result = CliRunner().invoke(app, [*names, "--help"], env={"COLUMNS": "200"})
        assert result.exit_code == 0, f"raylog {' '.join(names)} is shown in the pages and does not exist"
        for option in (word for word in command if word.startswith("--")):
            assert option in result.stdout, f"raylog {' '.join(names)} has no {option}"


COMMANDS = (
    "up",
    "down",
    "status",
    "doctor",
    "produce",
    "consume",
    "dump-log",
    "verify",
    "leader-election",
    "get-offsets",
    "delete-records",
    "log-dirs",
    "e2e-latency",
    "verifiable-producer",
    "verifiable-consumer",
)
GROUPED = ("topics", "acls", "configs", "groups", "brokers", "reassign", "perf", "node", "quorum", "features")


def write_tables() -> None:
    """Put the tables as the code has them into the pages."""
    for name, (file, render) in TABLES.items():
        path = ROOT / "docs" / file
        page = path.read_text()
        old = _between(page, name)
        path.write_text(page.replace(f"<!-- {name} -->\n{old}\n", f"<!-- {name} -->\n{render()}\n"))


if __name__ == "__main__":
    write_tables()
