"use strict";
// What stays live: the part #live is fetched again with the page, and replaced if it has changed.
// Nothing is asked while the page is hidden. Values of the cluster only ever come as HTML that the
// server has escaped, or as textContent.

const root = document.documentElement;
const away = document.getElementById("away");

// ------------------------------------------------------------------ live

let shownText = null;
let lastAnswer = new Date();

async function refresh() {
  const live = document.getElementById("live");
  const seconds = Number(live.dataset.seconds);
  if (!seconds) return;
  if (!document.hidden && !isBusy(live)) {
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, credentials: "same-origin" });
      const text = await answer.text();
      const found = new DOMParser().parseFromString(text, "text/html").getElementById("live");
      if (!found) throw new Error(`status ${answer.status}`);
      if (answer.status === 503 && !found.contains(found.querySelector("table"))) {
        sayAway(found.querySelector("#trouble, .finding")?.textContent?.trim() || "The cluster does not answer.");
      } else {
        away.hidden = true;
        lastAnswer = new Date();
        if (found.innerHTML !== shownText && !isBusy(live)) {
          shownText = found.innerHTML;
          live.replaceChildren(...found.childNodes);
          live.dataset.seconds = found.dataset.seconds;
        }
      }
    } catch {
      sayAway("The console does not answer.");
    }
  }
  setTimeout(refresh, seconds * 1000);
}

function isBusy(live) {
  const selected = getSelection();
  const isSelecting = selected && !selected.isCollapsed && live.contains(selected.anchorNode);
  return isSelecting || live.contains(document.activeElement) && /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
}

function sayAway(reason) {
  away.textContent = `${reason} This is the state of ${lastAnswer.toLocaleTimeString()}; asking again.`;
  away.hidden = false;
}

const first = document.getElementById("live");
if (Number(first.dataset.seconds)) {
  shownText = first.innerHTML;
  setTimeout(refresh, Number(first.dataset.seconds) * 1000);
}

// ------------------------------------------------------------------ the tail of a topic

const tail = document.getElementById("tail");
const ROWS_MAX = 200;

function startTail() {
  const state = document.getElementById("tail-state");
  const button = document.getElementById("tail-button");
  const rows = document.getElementById("tail-rows");
  let at = tail.dataset.at;
  let until = 0;
  let failures = 0;

  function stop(reason) {
    until = 0;
    state.textContent = reason;
    button.textContent = "Go on";
  }

  async function step() {
    if (!until) return;
    if (Date.now() > until) return stop(`Stopped by itself after ${tail.dataset.seconds} seconds.`);
    if (!document.hidden) {
      try {
        const answer = await fetch(`${tail.dataset.url}&at=${encodeURIComponent(at)}`, { credentials: "same-origin" });
        const text = await answer.text();
        const found = new DOMParser().parseFromString(text, "text/html");
        const next = found.getElementById("tail-next");
        if (!next) throw new Error(found.getElementById("trouble")?.textContent?.trim() || `status ${answer.status}`);
        at = next.dataset.at;
        failures = 0;
        rows.prepend(...found.querySelectorAll("article"));
        while (rows.children.length > ROWS_MAX) rows.lastElementChild.remove();
        if (until) state.textContent = `Following; ${rows.children.length} shown, the newest first.`;
      } catch (error) {
        if (++failures >= 10) return stop(`Stopped: ${error.message}`);
        state.textContent = `${error.message}; asking again.`;
      }
    }
    setTimeout(step, 1000);
  }

  button.addEventListener("click", () => {
    if (until) return stop("Stopped.");
    until = Date.now() + 1000 * Number(tail.dataset.seconds);
    button.textContent = "Stop";
    state.textContent = "Following; nothing has come yet.";
    step();
  });
  button.click();
}

if (tail) startTail();

// ------------------------------------------------------------------ theme and keys

const SIGNS = { system: "◐", light: "☀\uFE0E", dark: "☾" };

function showTheme() {
  const chosen = root.dataset.theme ?? "system";
  const button = document.getElementById("theme-button");
  button.textContent = SIGNS[chosen];
  button.title = chosen === "system" ? "Theme: the system's" : `Theme: ${chosen}`;
  button.setAttribute("aria-label", button.title);
}

// From the system's theme to the other one, so that something changes, then to the one that the system has, then back.
function nextTheme() {
  const ofSystem = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const other = ofSystem === "dark" ? "light" : "dark";
  if (root.dataset.theme === ofSystem) delete root.dataset.theme;
  else root.dataset.theme = root.dataset.theme === other ? ofSystem : other;
  showTheme();
  try {
    if (root.dataset.theme) localStorage.setItem("raylog-theme", root.dataset.theme);
    else localStorage.removeItem("raylog-theme");
  } catch { /* it holds for this page */ }
}

document.getElementById("theme-button").addEventListener("click", nextTheme);
showTheme();
document.getElementById("keys-button").addEventListener("click", () => document.getElementById("keys").showModal());

let isGoing = false;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (isGoing) {
    isGoing = false;
    const target = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
    if (target) { event.preventDefault(); target.click(); }
    return;
  }
  if (event.key === "g") isGoing = true;
  else if (event.key === "d") nextTheme();
  else if (event.key === "?") document.getElementById("keys").showModal();
  else if (event.key === "/") {
    const field = document.querySelector("[data-search]");
    if (field) { event.preventDefault(); field.focus(); field.select(); }
  }
});
