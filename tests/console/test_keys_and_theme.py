"""The console's script in a real browser: its keys, its theme, and the end of the live tail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Page, chromium

from raylog.console import messages
from raylog.testing import Kafka

pytestmark = pytest.mark.core
THEME = "document.documentElement.dataset.theme || ''"
GROUND = "getComputedStyle(document.body).backgroundColor"
DARK, LIGHT = "rgb(18, 22, 28)", "rgb(246, 247, 249)"
SHOWN = "document.getElementById('tail-rows').children.length"
STATE = "document.getElementById('tail-state').textContent"
ASKED = "performance.getEntriesByType('resource').filter((each) => each.name.includes('/tail/records')).length"


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with chromium(tmp_path / "profile") as found:
        yield found


# ------------------------------------------------------------------ keys


def test_g_and_a_letter_go_to_each_page(inside: Any, page: Page) -> None:
    page.open(f"{inside.url}/topics/orders")
    ways = page.js("[...document.querySelectorAll('nav a')].map((each) => [each.dataset.key, each.pathname])")
    assert [key for key, _ in ways] == ["o", "t", "g", "x", "a", "e"]
    for key, path in ways:
        page.press("g", key)
        page.until(f"location.pathname === {path!r} && document.readyState === 'complete'")
        assert page.js("document.querySelector('nav a[aria-current]').dataset.key") == key
    page.press("g", "z", "t")
    assert page.js("location.pathname") == "/events", "g and another letter go nowhere, nor does the next one alone"


def test_slash_goes_to_the_search_whose_letters_are_no_commands(inside: Any, page: Page) -> None:
    page.open(f"{inside.url}/topics?search=ord")
    theme = page.js(THEME)
    page.press("/")
    assert page.js("document.activeElement.name") == "search"
    page.press("g", "d", "?", "o")
    assert page.js("document.querySelector('[data-search]').value") == "gd?o", "it was selected, and is written over"
    assert (page.js("location.pathname"), page.js(THEME)) == ("/topics", theme)
    assert page.js("document.querySelector('dialog[open]')") is None
    page.press("Escape")
    assert page.js("document.activeElement.tagName") == "BODY"
    page.press("g", "g")
    page.until("location.pathname === '/groups'")


def test_a_question_mark_lists_the_keys_and_while_it_is_open_they_do_nothing(inside: Any, page: Page) -> None:
    page.open(f"{inside.url}/groups")
    page.press("?")
    page.until("document.getElementById('keys').open")
    listed = page.js("[...document.querySelectorAll('#keys dt')].map((each) => each.textContent)")
    assert listed == ["/", "g o", "g t", "g g", "g x", "g a", "g e", "d", "?"]
    page.press("g", "t")
    assert page.js("location.pathname") == "/groups"
    page.press("Escape")
    page.until("!document.getElementById('keys').open")
    page.click("#keys-button")
    page.until("document.getElementById('keys').open")


# ------------------------------------------------------------------ theme


def test_the_page_follows_the_system_until_one_chooses_and_remembers_what_one_chose(inside: Any, page: Page) -> None:
    page.have_system("light")
    page.open(f"{inside.url}/groups")
    assert page.js(GROUND) == LIGHT
    page.have_system("dark")
    page.until(f"{GROUND} === {DARK!r}")
    page.press("d")
    assert (page.js(THEME), page.js(GROUND)) == ("light", LIGHT)
    page.open(f"{inside.url}/topics")
    assert (page.js(THEME), page.js(GROUND)) == ("light", LIGHT), "also on another page, before it is drawn"
    page.click("#theme-button")
    assert page.js(GROUND) == DARK
    page.have_system("light")
    page.open(f"{inside.url}/groups")
    assert page.js(GROUND) == DARK, "what was chosen holds, whatever the system does"


@pytest.mark.parametrize(("system", "other"), [("light", "dark"), ("dark", "light")])
def test_the_switch_goes_round_and_has_the_page_follow_the_system_again(
    inside: Any, page: Page, system: str, other: str
) -> None:
    grounds = {"light": LIGHT, "dark": DARK}
    title = "document.getElementById('theme-button').title"
    page.have_system(system)
    page.open(f"{inside.url}/groups")
    assert page.js(title) == "Theme: the system's"
    for chosen in (other, system):
        page.press("d")
        assert (page.js(THEME), page.js(GROUND), page.js(title)) == (chosen, grounds[chosen], f"Theme: {chosen}")
        assert page.js("localStorage.getItem('raylog-theme')") == chosen
    page.click("#theme-button")
    assert (page.js(THEME), page.js(title)) == ("", "Theme: the system's")
    assert page.js("localStorage.getItem('raylog-theme')") is None
    page.have_system(other)
    page.until(f"{GROUND} === {grounds[other]!r}")
    page.open(f"{inside.url}/topics")
    assert page.js(GROUND) == grounds[other], "also on another page"
    page.press("d")
    page.open(f"{inside.url}/groups")
    assert page.js(title) == f"Theme: {system}", "the button says it from the first look on"


def test_what_one_chose_outlives_the_browser(inside: Any, tmp_path: Path) -> None:
    with chromium(tmp_path / "same") as page:
        page.have_system("light")
        page.open(f"{inside.url}/groups")
        page.press("d")
        assert page.js("localStorage.getItem('raylog-theme')") == "dark"
    with chromium(tmp_path / "same") as page:
        page.have_system("light")
        page.open(f"{inside.url}/groups")
        assert page.js(GROUND) == DARK


# ------------------------------------------------------------------ the end of the tail


def test_the_tail_stops_by_itself_asks_no_more_and_goes_on_where_it_was(
    kafka: Kafka, inside: Any, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "TAIL_S", 3)
    page.open(f"{inside.url}/topics/payments/tail")
    page.until(f"{STATE}.startsWith('Following')")
    kafka.write("payments", b"while it follows")
    page.until("document.getElementById('tail-rows').textContent.includes('while it follows')")
    page.until(f"{STATE} === 'Stopped by itself after 3 seconds.'")
    assert page.js("document.getElementById('tail-button').textContent") == "Go on"
    asked, stopped_ms = page.js(ASKED), page.js("Date.now()")
    kafka.write("payments", b"while it stands")
    page.until(f"Date.now() > {stopped_ms} + 3000")
    assert page.js(ASKED) == asked >= 2
    assert "while it stands" not in page.js("document.getElementById('tail-rows').textContent")
    page.click("#tail-button")
    page.until("document.getElementById('tail-rows').textContent.includes('while it stands')")
    page.click("#tail-button")
    assert page.js(STATE) == "Stopped."


def test_the_tail_keeps_200_records_the_newest_first(kafka: Kafka, inside: Any, page: Page) -> None:
    page.open(f"{inside.url}/topics/payments/tail")
    page.until(f"{STATE}.startsWith('Following')")
    assert page.js("document.getElementById('tail').dataset.seconds") == "120", "as the docs have it"
    for round in range(4):
        kafka.write("payments", *(f"round {round}, number {number:02}".encode() for number in range(90)))
        last = f"round {round}, number 89"
        page.until(f"document.getElementById('tail-rows').firstElementChild?.textContent.includes({last!r})")
        assert page.js(SHOWN) == min(200, 90 * (round + 1))
    shown = page.js("document.getElementById('tail-rows').textContent")
    assert "round 0" not in shown and "round 1, number 69" not in shown and "round 1, number 70" in shown
    assert page.js(STATE) == "Following; 200 shown, the newest first."
