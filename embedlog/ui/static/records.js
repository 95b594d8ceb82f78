// Records: rows unfold, a live tail and a search come as server-sent events. Their HTML is escaped by a template.
"use strict";

(() => {
  const KEPT = 300;
  document.documentElement.classList.add("js");
  const rows = document.getElementById("rows");

  document.addEventListener("click", (event) => {
    const copy = event.target.closest("[data-copy]");
    if (copy) {
      navigator.clipboard.writeText(copy.parentElement.querySelector("code").textContent).then(() => {
        copy.textContent = "Copied";
        setTimeout(() => { copy.textContent = "Copy"; }, 1500);
      });
    }
  });
  if (!rows) return;

  // -- rows ------------------------------------------------------------------------------------------

  async function unfold(row) {
    const button = row.querySelector(".unfold");
    const below = row.nextElementSibling;
    if (below && below.classList.contains("unfolded")) {
      below.remove();
      button.setAttribute("aria-expanded", "false");
      return;
    }
    button.setAttribute("aria-expanded", "true");
    const made = document.createElement("tr");
    made.className = "unfolded";
    const cell = made.insertCell();
    cell.colSpan = 6;
    cell.textContent = "…";
    row.after(made);
    try {
      const response = await fetch(row.dataset.href + "&part=yes");
      cell.innerHTML = response.ok ? await response.text() : "";
      if (!response.ok) cell.textContent = "this did not work: load the page again";
    } catch {
      cell.textContent = "embedlog ui does not answer";
    }
  }

  rows.addEventListener("click", (event) => {
    const row = event.target.closest("tr.record");
    if (!row || event.target.closest("a") || String(getSelection())) return;
    row.focus({ preventScroll: true });
    unfold(row);
  });

  function move(step) {
    const all = [...rows.querySelectorAll("tr.record")];
    const at = all.indexOf(document.activeElement.closest("tr.record"));
    const next = all[at < 0 ? 0 : Math.max(0, Math.min(all.length - 1, at + step))];
    if (next) { next.focus(); next.scrollIntoView({ block: "nearest" }); }
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
    const row = event.target.closest("tr.record");
    if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "p" && toggle) toggle.click();
    else if (event.key === "o" && row) location.href = row.dataset.href;
    else if (event.key === "Enter" && row === event.target) unfold(row);
  });

  // -- streams ---------------------------------------------------------------------------------------

  const stream = document.getElementById("stream");
  const toggle = document.getElementById("toggle");
  const status = document.getElementById("status");
  const progress = document.getElementById("progress");
  const failed = document.getElementById("failed");
  const more = document.getElementById("more");
  const searches = stream.dataset.mode === "search";
  const number = new Intl.NumberFormat("en").format;
  let source = null;
  let last = "";
  let leftOut = 0;
  let foundBefore = 0;
  let found = 0;

  function address() {
    const url = new URL(stream.dataset.url, location.href);
    if (last) url.searchParams.set("at", last);
    return url;
  }

  function add(html) {
    const made = document.createElement("template");
    made.innerHTML = html;
    const empty = document.getElementById("empty");
    if (empty) empty.remove();
    if (searches || stream.dataset.order === "oldest") {
      rows.append(made.content);
    } else {
      rows.prepend(...[...made.content.querySelectorAll("tr")].reverse());
    }
    if (searches) return;
    const all = rows.querySelectorAll("tr.record");
    for (let left = all.length - KEPT, at = 0; left > 0; left--, at++) {
      const row = stream.dataset.order === "oldest" ? all[at] : all[all.length - 1 - at];
      if (row.nextElementSibling && row.nextElementSibling.classList.contains("unfolded")) row.nextElementSibling.remove();
      row.remove();
    }
  }

  function stop(said) {
    if (source) source.close();
    source = null;
    toggle.setAttribute("aria-pressed", "false");
    toggle.textContent = searches ? "Search again" : "▶ Follow";
    if (said) status.textContent = said;
  }

  function tell(facts) {
    if (!searches) {
      leftOut += facts.left_out;
      status.textContent = `${number(Math.round(facts.rate))} records/s` +
        (leftOut ? ` · ${number(leftOut)} not shown, to keep up` : "");
      return;
    }
    found = foundBefore + facts.found;
    progress.hidden = false;
    progress.max = Math.max(facts.total, 1);
    progress.value = facts.looked_at;
    const size = facts.bytes < 1e6 ? `${number(Math.round(facts.bytes / 1e3))} kB` : `${number(Math.round(facts.bytes / 1e6))} MB`;
    status.textContent = `${number(found)} found · ${number(facts.looked_at)} of ${number(facts.total)} records, ${size} looked at` +
      ` · ${number(Math.round(facts.rate))} records/s · ` + (facts.end ? `took ${facts.took}` : facts.left ? `${facts.left} left` : "");
    if (facts.problems.length) fail(facts.problems.join("\n"));
  }

  function fail(problem) {
    failed.textContent = problem;
    failed.hidden = false;
  }

  function start() {
    failed.hidden = true;
    more.hidden = true;
    source = new EventSource(address());
    toggle.setAttribute("aria-pressed", "true");
    toggle.textContent = searches ? "Cancel" : "❚❚ Pause";
    status.textContent = searches ? "searches" : "waits for records";
    source.addEventListener("step", (event) => {
      const facts = JSON.parse(event.data);
      last = event.lastEventId;
      if (facts.html) add(facts.html);
      tell(facts);
      if (facts.end) {
        stop("");
        more.hidden = !facts.more;
        foundBefore = found;
      }
    });
    source.addEventListener("failed", (event) => {
      stop("");
      fail(JSON.parse(event.data).problem);
    });
    source.addEventListener("error", () => {
      if (source && source.readyState === EventSource.CLOSED) { stop("embedlog ui does not answer"); }
      else if (source) status.textContent = "the connection is gone: trying again";
    });
  }

  toggle.addEventListener("click", () => {
    if (source) {
      stop(searches ? `cancelled · ${status.textContent}` : `paused · ${status.textContent}`);
      if (searches) { more.hidden = false; foundBefore = found; }
    } else {
      if (searches) { rows.replaceChildren(); last = ""; foundBefore = found = 0; }
      start();
    }
  });
  more.addEventListener("click", start);
  addEventListener("pagehide", () => stop(""));
  if (searches) start();
})();
