// What every page has: the theme, keys, and the parts that stay up to date. Pages work without it.
"use strict";

const base = document.body.dataset.base;

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function switchTheme() {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  document.cookie = `embedlog_theme=${theme}; path=${base}/; max-age=31536000; samesite=strict`;
}

document.getElementById("theme").addEventListener("click", switchTheme);

// Keys: t the theme, / the field that searches, g and a letter the pages.
let waitsForLetter = false;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
  const pages = [...document.querySelectorAll(".bar nav a")];
  if (waitsForLetter) {
    waitsForLetter = false;
    const chosen = pages.find((each) => each.textContent.toLowerCase().startsWith(event.key));
    if (chosen) chosen.click();
  } else if (event.key === "t") {
    switchTheme();
  } else if (event.key === "g") {
    waitsForLetter = true;
  } else if (event.key === "/") {
    const search = document.querySelector("[data-key='/']");
    if (search) { search.focus(); event.preventDefault(); }
  }
});

// Elements with data-live are taken from a fresh copy of the page every few seconds, unless the visitor is in them.
const live = [...document.querySelectorAll("[data-live]")];
async function refresh() {
  if (document.hidden) return;
  const response = await fetch(location.href, { headers: { "X-Live": "yes" } });
  if (!response.ok) return;
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
  const copies = [...fresh.querySelectorAll("[data-live]")];
  const now = [...document.querySelectorAll("[data-live]")];
  if (copies.length !== now.length) return;
  now.forEach((each, number) => {
    if (!each.contains(document.activeElement) && !each.matches(":hover")) each.replaceWith(document.adoptNode(copies[number]));
  });
}
if (live.length) setInterval(() => refresh().catch(() => {}), 3000);
