"""Groups: members, lag of each partition and over time, and setting their offsets anew.

A reset has two steps. The first says what would happen: each partition's offset before and after.
The second does exactly that, and is refused where the group has moved on or has members meanwhile.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from raylog.cli.groups import planned
from raylog.cli.offset_resets import Rule, parse_duration, parse_moment, parse_scope
from raylog.console.lag_history import (
    HEIGHT,
    LEFT,
    WIDTH,
    LagSampler,
    PartitionLag,
    chart,
    lags_of,
    total,
)
from raylog.console.pages import PageError, asked, link_to, number_of, page
from raylog.console.view import ClusterView
from raylog.errors import ConfigError
from raylog.types import TopicPartition

if TYPE_CHECKING:
    from raylog.client.admin.groups import GroupDescription

PAGE_ROWS = 50
GROUP_LENGTH_MAX = 10_000
RULES = {
    "earliest": "the first offset",
    "latest": "the end",
    "offset": "an offset",
    "shift": "forward, or back if negative, by",
    "time": "the first record since",
    "duration": "the first record of the last",
}
_BAD_REQUEST, _CONFLICT, _SEE_OTHER = 400, 409, 303
_MOVE = re.compile(r"([A-Za-z0-9._-]{1,249}) (\d{1,9}) (\d{1,19}|-) (\d{1,19})")


@dataclass(frozen=True, slots=True)
class Move:
    """What a reset does to a partition. ``before`` None: nothing was committed."""

    key: TopicPartition
    before: int | None
    after: int

    @property
    def text(self) -> str:
        """As the form carries it: topics have no spaces."""
        before = "-" if self.before is None else self.before
        return f"{self.key.topic} {self.key.partition} {before} {self.after}"

    @property
    def words(self) -> str:
        if self.before is None:
            return "is set for the first time"
        if self.after == self.before:
            return "stays"
        count = abs(self.after - self.before)
        records = "1 record" if count == 1 else f"{count:,} records"
        return f"{records} are skipped" if self.after > self.before else f"{records} are read again"


def groups_page(request: Request) -> Response:
    view: ClusterView = request.app.state.view
    search = request.query_params.get("search", "").strip()[:GROUP_LENGTH_MAX]
    number = number_of(request, "page", 1, least=1, most=1_000_000)
    there = view.groups()
    found = [each for each in there if search.lower() in each.group_id.lower()]
    pages = max(1, -(-len(found) // PAGE_ROWS))
    shown = [each.group_id for each in found[(min(number, pages) - 1) * PAGE_ROWS :][:PAGE_ROWS]]
    described, no_members = asked(lambda: view.admin.describe_groups(shown), "--operation Describe --group '*'")
    sampler: LagSampler = request.app.state.lags
    lags, no_lags = asked(lambda: sampler.lags(shown), "--operation Describe --group '*' --topic '*'")
    return page(
        request,
        "groups.html",
        live_s=3,
        search=search,
        count=len(found),
        known=len(there),
        number=min(number, pages),
        pages=pages,
        rows=[(name, (described or {}).get(name), None if lags is None else total(lags[name])) for name in shown],
        troubles=[each for each in (no_members, no_lags) if each is not None],
    )


def group_page(request: Request) -> Response:
    view: ClusterView = request.app.state.view
    name = _name(request.query_params.get("id", ""))
    group = _described(view, name)
    sampler: LagSampler = request.app.state.lags
    sampler.watch(name)
    assigned = [key for member in group.members for key in member.assignment]
    lags, no_lags = asked(
        lambda: lags_of(view, [name], {name: assigned})[name], f"--operation Describe --topic '*' --group '{name}'"
    )
    readers = {key: member for member in group.members for key in member.assignment}
    return page(
        request,
        "group.html",
        live_s=2,
        group=group,
        lags=lags or [],
        total=total(lags or []),
        readers=readers,
        topics=_topics(lags or []),
        chart=chart(sampler.history.of(name)),
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        done=request.query_params.get("done") == "yes",
        troubles=[] if no_lags is None else [no_lags],
    )


def reset_page(request: Request) -> Response:
    """The first step: what would happen. Without a rule, the form that asks for one."""
    view: ClusterView = request.app.state.view
    name = _name(request.query_params.get("id", ""))
    group = _described(view, name)
    committed = view.admin.list_group_offsets(name)
    rule_name = request.query_params.get("to")
    topic = request.query_params.get("topic", "").strip()
    moves = None
    if rule_name is not None:
        try:
            plan = planned(
                view.admin, name, _rule(rule_name, request.query_params), parse_scope([topic] if topic else [])
            )
        except ConfigError as error:
            raise PageError(_BAD_REQUEST, str(error)) from None
        moves = [
            Move(key, committed[key].offset if key in committed else None, after) for key, after in sorted(plan.items())
        ]
    return page(
        request,
        "reset.html",
        group=group,
        topics=sorted({key.topic for key in committed}),
        topic=topic,
        rules=RULES,
        rule=rule_name or "earliest",
        value=request.query_params.get("value", ""),
        moves=moves,
    )


def reset(request: Request, fields: Mapping[str, str]) -> Response:
    """The second step: do what the first has said."""
    view: ClusterView = request.app.state.view
    name = _name(fields.get("id", ""))
    moves = [_parsed_move(line) for line in fields.get("moves", "").splitlines()]
    if not moves:
        raise PageError(_BAD_REQUEST, "moves: nothing would be changed")
    group = _described(view, name)
    if group.has_members:
        raise PageError(_CONFLICT, f"Group {name!r} has members again (its state is {group.state}): stop them first.")
    committed = view.admin.list_group_offsets(name, [move.key for move in moves])
    for move in moves:
        now = committed[move.key].offset if move.key in committed else None
        if now != move.before:
            where = f"{move.key.topic}-{move.key.partition}"
            text = f"The group's offset of {where} is {now} now, not {move.before}: look at the plan again."
            raise PageError(_CONFLICT, text)
    view.admin.alter_group_offsets(name, {move.key: move.after for move in moves})
    request.app.state.lags.forget(name)
    return RedirectResponse(link_to("/group", id=name, done="yes"), _SEE_OTHER)


def _name(text: str) -> str:
    if not text or len(text) > GROUP_LENGTH_MAX:
        raise PageError(_BAD_REQUEST, f"id: give the name of a group, of at most {GROUP_LENGTH_MAX:,} characters")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PageError(_BAD_REQUEST, "id: the name of a group is text in UTF-8") from None
    return text


def _described(view: ClusterView, name: str) -> GroupDescription:
    group = view.admin.describe_groups([name])[name]
    if group.state == "Dead":
        raise PageError(404, f"There is no group {name!r}.")
    return group


def _rule(name: str, query: Mapping[str, str]) -> Rule:
    """Raises ConfigError for a value that the rule can't take."""
    text = query.get("value", "").strip()
    match name:
        case "earliest" | "latest":
            return Rule(name)
        case "offset" | "shift":
            if not re.fullmatch(r"[+-]?\d{1,18}" if name == "shift" else r"\d{1,18}", text):
                raise ConfigError(f"value: {text[:40]!r} is no whole number of at most 18 digits")
            return Rule(name, int(text))
        case "time":
            return Rule("time", parse_moment(text))
        case "duration":
            return Rule("time", _since_ms(text))
        case _:
            raise ConfigError(f"to: {name[:40]!r} is none of {', '.join(RULES)}")


def _since_ms(text: str) -> int:

    try:
        return max(0, round(time.time() * 1000 - parse_duration(text[:100]).total_seconds() * 1000))
    except OverflowError:
        raise ConfigError(f"value: {text[:40]!r} is longer than any calendar") from None


def _parsed_move(line: str) -> Move:
    found = _MOVE.fullmatch(line)
    if found is None:
        raise PageError(_BAD_REQUEST, f"moves: {line[:60]!r}: give topic, partition, offset before and after")
    topic, partition, before, after = found.groups()
    return Move(TopicPartition(topic, int(partition)), None if before == "-" else int(before), int(after))


def _topics(lags: list[PartitionLag]) -> list[tuple[str, int]]:
    found: dict[str, int] = {}
    for each in lags:
        found[each.key.topic] = found.get(each.key.topic, 0) + (each.lag or 0)
    return sorted(found.items())
