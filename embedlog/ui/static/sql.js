// The box for queries: rows come as lines of JSON, their HTML escaped by a template. A query ends with its request.
"use strict";

(() => {
  const KEPT = 30;
  const ASKED = 1200;
  const csrf = document.body.dataset.csrf;
  const [box, runs, cancels, status, failed, noted, result, head, rows, topics, history, wrap, ticket] =
    ["query", "run", "cancel", "status", "failed", "noted", "result", "head", "rows", "topics", "history", "wrap", "ticket"]
      .map((id) => document.getElementById(id));
  const number = new Intl.NumberFormat("en").format;
  let running = null;

  function post(where, fields, signal) {
    return fetch(base + where, { method: "POST", body: new URLSearchParams({ csrf, ...fields }), signal });
  }

  async function problemOf(response) {
    const isJson = (response.headers.get("content-type") || "").startsWith("application/json");
    return isJson ? (await response.json()).problem : "this did not work: load the page again";
  }

  function fail(problem) {
    failed.textContent = problem;
    failed.hidden = false;
  }

  async function* linesOf(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      yield* lines.map((line) => JSON.parse(line));
    }
  }

  // -- a query ---------------------------------------------------------------------------------------

  async function run() {
    if (running || !box.value.trim()) return;
    remember(box.value);
    running = new AbortController();
    const began = performance.now();
    let read = 0, end = null, leftOut = 0;
    const tell = (said) => {
      const took = `${((performance.now() - began) / 1000).toFixed(1)} s`;
      status.textContent = [said, took, read ? `${number(read)} records read` : ""].filter(Boolean).join(" · ");
    };
    const ticks = setInterval(() => tell("runs"), 100);
    failed.hidden = noted.hidden = result.hidden = true;
    noted.textContent = "";
    head.replaceChildren();
    rows.replaceChildren();
    runs.disabled = true;
    cancels.hidden = false;
    try {
      const response = await post("/sql/run", { query: box.value }, running.signal);
      if (!response.ok) {
        fail(await problemOf(response));
      } else {
        for await (const line of linesOf(response)) {
          if (line.head) { head.innerHTML = line.head; leftOut = line.left_out; result.hidden = false; }
          if (line.html) rows.insertAdjacentHTML("beforeend", line.html);
          if (line.read) read = line.read;
          if (line.end) end = line.end;
          if (line.note) { noted.textContent += `${line.note}. `; noted.hidden = false; }
          if (line.problem) fail(line.problem);
        }
      }
    } catch (error) {
      if (!running.signal.aborted) fail("embedlog ui does not answer");
    }
    clearInterval(ticks);
    const count = end && `${end.more ? "the first " : ""}${number(end.rows)} ${end.rows === 1 ? "row" : "rows"}` +
      (leftOut ? ` without ${number(leftOut)} columns` : "");
    tell(end ? count : running.signal.aborted ? "cancelled" : "failed");
    running = null;
    runs.disabled = false;
    cancels.hidden = true;
  }

  function cancel() {
    if (running) running.abort();
  }

  // A download is the browser's: when it has ended, the page is told of values that were read as NULL.
  async function download() {
    const mine = ticket.value = Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join("");
    noted.hidden = true;
    for (let asked = 0; asked < ASKED && ticket.value === mine; asked++) {
      await new Promise((next) => setTimeout(next, 500));
      const response = await post("/sql/notes", { ticket: mine }).catch(() => null);
      if (!response || !response.ok) return;
      const { notes } = await response.json();
      if (!notes) continue;
      noted.textContent = notes.map((note) => `Of the download: ${note}. `).join("");
      noted.hidden = !notes.length;
      return;
    }
  }

  document.getElementById("ask").addEventListener("submit", download);

  runs.addEventListener("click", run);
  cancels.addEventListener("click", cancel);
  addEventListener("pagehide", cancel);
  wrap.addEventListener("change", () => result.firstElementChild.classList.toggle("wraps", wrap.checked));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); }
    else if (event.key === "Escape") cancel();
  });

  // -- earlier queries, as long as the tab is open ----------------------------------------------------

  const [place, draft] = [`embedlog-sql ${base}`, `embedlog-sql-draft ${base}`];
  const earlier = () => JSON.parse(sessionStorage.getItem(place) || "[]");

  function remember(query) {
    sessionStorage.setItem(place, JSON.stringify([query, ...earlier().filter((each) => each !== query)].slice(0, KEPT)));
    list();
  }

  function list() {
    history.hidden = !earlier().length;
    history.querySelector("ol").replaceChildren(...earlier().map((query) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "quiet";
      button.dataset.query = query;
      button.textContent = query.replace(/\s+/g, " ");
      const item = document.createElement("li");
      item.append(button);
      return item;
    }));
  }

  function keep() {
    sessionStorage.setItem(draft, box.value);
  }

  box.value = box.value || sessionStorage.getItem(draft) || "";
  box.addEventListener("input", keep);
  list();

  // -- topics ----------------------------------------------------------------------------------------

  document.querySelector(".ask aside").addEventListener("click", (event) => {
    const { query, insert } = (event.target.closest("button") || { dataset: {} }).dataset;
    if (query) box.value = query;
    else if (insert) box.setRangeText(insert, box.selectionStart, box.selectionEnd, "end");
    else return;
    keep();
    box.focus();
  });

  async function columns() {
    if (!topics.firstElementChild) return;
    try {
      const response = await post(`/sql/columns${location.search}`, {});
      if (!response.ok) { fail(await problemOf(response)); return; }
      topics.innerHTML = await response.text();
    } catch { return; }
    const example = topics.querySelector(".examples :last-child");
    if (example && !box.value) box.value = example.dataset.query;
  }
  columns();
})();
