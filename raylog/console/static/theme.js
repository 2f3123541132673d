"use strict";
// Runs before the first paint, so that the page does not flash in the other theme.
try {
  const chosen = localStorage.getItem("raylog-theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch { /* without storage, the system's theme holds */ }
