"""The list of topics, and the page of one: partitions, sizes, configs, and the groups that read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from raylog.client.admin.config_entries import ConfigSource
from raylog.console.lag_history import LagSampler
from raylog.console.overview import NEEDS_CLUSTER
from raylog.console.pages import PageError, asked, number_of, page
from raylog.console.view import ClusterView
from raylog.types import TopicPartition

if TYPE_CHECKING:
    from raylog.client.admin.admin import PartitionInfo, TopicDescription

PAGE_ROWS = 100
GROUPS_MAX = 50
TOPIC_NAME_MAX = 249


@dataclass(frozen=True, slots=True)
class TopicRow:
    """``size_bytes``: of the fullest replica of each partition, summed; −1: not known."""

    name: str
    is_internal: bool
    partitions: int
    replicas: int
    under_replicated: int
    leaderless: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """Offsets and bytes of −1 are not known."""

    info: PartitionInfo
    earliest: int
    latest: int
    size_bytes: int


def topics_page(request: Request) -> Response:
    view: ClusterView = request.app.state.view
    search = request.query_params.get("search", "").strip()[:TOPIC_NAME_MAX]
    with_internal = request.query_params.get("internal") == "yes"
    number = number_of(request, "page", 1, least=1, most=1_000_000)
    all_topics = view.topics()
    found = [
        each
        for each in all_topics.values()
        if search.lower() in each.name.lower() and (with_internal or not each.is_internal)
    ]
    pages = max(1, -(-len(found) // PAGE_ROWS))
    shown = found[(min(number, pages) - 1) * PAGE_ROWS :][:PAGE_ROWS]
    sizes, no_sizes = asked(lambda: sizes_of(view), NEEDS_CLUSTER)
    return page(
        request,
        "topics.html",
        live_s=5,
        search=search,
        with_internal=with_internal,
        count=len(found),
        known=len(all_topics),
        number=min(number, pages),
        pages=pages,
        rows=[topic_row(each, sizes) for each in shown],
        troubles=[] if no_sizes is None else [no_sizes],
    )


def sizes_of(view: ClusterView) -> dict[TopicPartition, int]:
    """Bytes of the fullest replica of each partition."""
    found: dict[TopicPartition, int] = {}
    for dirs in view.log_dirs().values():
        for log_dir in dirs.values():
            for key, size_bytes in log_dir.replicas.items():
                found[key] = max(size_bytes, found.get(key, 0))
    return found


def topic_row(topic: TopicDescription, sizes: dict[TopicPartition, int] | None) -> TopicRow:
    parts = topic.partitions
    known = None if sizes is None else [sizes.get(TopicPartition(topic.name, part.partition)) for part in parts]
    return TopicRow(
        topic.name,
        topic.is_internal,
        len(parts),
        max((len(part.replicas) for part in parts), default=0),
        sum(len(part.isr) < len(part.replicas) for part in parts),
        sum(part.leader < 0 for part in parts),
        -1 if known is None or None in known else sum(each or 0 for each in known),
    )


def described(view: ClusterView, name: str) -> TopicDescription:
    """One topic, asked anew so that a refusal names its reason. Raises PageError (400) for what can
    be no name.
    """
    if len(name) > TOPIC_NAME_MAX:
        raise PageError(400, f"A topic's name has at most {TOPIC_NAME_MAX} characters.")
    return view.admin.describe_topics([name])[name]


def topic_page(request: Request) -> Response:
    view: ClusterView = request.app.state.view
    name = request.path_params["topic"]
    topic = described(view, name)
    number = number_of(request, "page", 1, least=1, most=1_000_000)
    pages = max(1, -(-len(topic.partitions) // PAGE_ROWS))
    shown = topic.partitions[(min(number, pages) - 1) * PAGE_ROWS :][:PAGE_ROWS]
    led = [TopicPartition(name, part.partition) for part in shown if part.leader >= 0]
    ends, no_offsets = asked(
        lambda: (
            view.admin.list_offsets(dict.fromkeys(led, "earliest")),
            view.admin.list_offsets(dict.fromkeys(led, "latest")),
        ),
        f"--operation Describe --topic {name}",
    )
    earliest, latest = ends or ({}, {})
    sizes, no_sizes = asked(lambda: sizes_of(view), NEEDS_CLUSTER)
    configs, no_configs = asked(
        lambda: view.admin.describe_configs(name), f"--operation DescribeConfigs --topic {name}"
    )
    groups, no_groups = asked(lambda: groups_of(request.app.state.lags, view, name), "--operation Describe --group '*'")
    rows = [
        PartitionRow(
            part,
            earliest[key].offset if key in earliest else -1,
            latest[key].offset if key in latest else -1,
            (sizes or {}).get(key, -1),
        )
        for part in shown
        for key in [TopicPartition(name, part.partition)]
    ]
    return page(
        request,
        "topic.html",
        live_s=3,
        topic=topic,
        row=topic_row(topic, sizes),
        rows=rows,
        number=min(number, pages),
        pages=pages,
        configs=sorted((configs or {}).values(), key=lambda each: (each.source is ConfigSource.DEFAULT, each.name)),
        groups=groups or [],
        troubles=[each for each in (no_offsets, no_sizes, no_configs, no_groups) if each is not None],
    )


def groups_of(sampler: LagSampler, view: ClusterView, topic: str) -> list[str]:
    """The groups that have committed offsets of the topic, of the first ``GROUPS_MAX`` that there
    are: by the last sample of their lags, or asked for where there is none.
    """

    def ask() -> dict[str, set[str]]:
        names = [each.group_id for each in view.groups()][:GROUPS_MAX]
        return {name: {key.topic for key in view.admin.list_group_offsets(name)} for name in names}

    if known := sampler.recent():
        read = {name: {lag.key.topic for lag in lags if lag.committed is not None} for name, lags in known.items()}
    else:
        read = view.kept("readers", ask, 10)
    return [name for name in sorted(read)[:GROUPS_MAX] if topic in read[name]]
