// Parts of a page with data-live are replaced by those of the same page, fetched again: every few
// seconds (data-every), when there is news (data-stream), or while the server is still reading what
// they show (data-unread).

import { refreshCharts } from "./charts.js";

const LEAST_PAUSE_MS = 1000;
const UNREAD_PAUSE_MS = 1500;
let unreadTimer;
let isDue = false;
let isBusy = false;

const addresses = (place) => [...place.querySelectorAll("[data-chart]")].map((figure) => figure.dataset.chart).join(" ");

function replace(old, fresh) {
  if (old.querySelector("[data-chart]") && addresses(old) === addresses(fresh)) {
    const legends = fresh.querySelectorAll(".legend");
    old.querySelectorAll(".legend").forEach((legend, number) => legend.replaceWith(legends[number].cloneNode(true)));
    const notes = [...fresh.querySelectorAll(".note")].map((note) => note.cloneNode(true));
    old.querySelectorAll(".note").forEach((note) => note.remove());
    old.querySelector(".charts").before(...notes);
    return;
  }
  // What someone reads or types in is left alone.
  if (old.contains(document.activeElement) || old.isEqualNode(fresh)) return;
  // Not every browser gives a box that is ticked the focus.
  for (const box of old.querySelectorAll("input:checked")) {
    const same = fresh.querySelector(`input[name="${CSS.escape(box.name)}"][value="${CSS.escape(box.value)}"]`);
    if (same) same.checked = true;
  }
  const log = old.querySelector(".log");
  const isAtEnd = log && log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
  old.replaceWith(fresh);
  const shown = fresh.querySelector(".log");
  if (log && shown) shown.scrollTop = isAtEnd ? shown.scrollHeight : log.scrollTop;
}

function awaitUnread() {
  clearTimeout(unreadTimer);
  if (document.querySelector("[data-unread]")) unreadTimer = setTimeout(refresh, UNREAD_PAUSE_MS);
}

async function refresh() {
  if (isBusy) {
    isDue = true;
    return;
  }
  isBusy = true;
  try {
    const answer = await fetch(location.href);
    if (answer.ok) {
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const old of document.querySelectorAll("[data-live]")) {
        const fresh = page.getElementById(old.id);
        if (fresh) replace(old, document.importNode(fresh, true));
      }
      // Sections that were empty before.
      for (const fresh of page.querySelectorAll("main > [data-live]")) {
        if (document.getElementById(fresh.id)) continue;
        let next = fresh.nextElementSibling;
        while (next && !document.getElementById(next.id)) next = next.nextElementSibling;
        document.querySelector("main").insertBefore(document.importNode(fresh, true), next && document.getElementById(next.id));
      }
      refreshCharts();
    }
  } catch {
    // The server does not answer at the moment; the next attempt is soon.
  }
  awaitUnread();
  setTimeout(() => {
    isBusy = false;
    if (isDue) {
      isDue = false;
      refresh();
    }
  }, LEAST_PAUSE_MS);
}

const timed = document.querySelector("[data-every]");
if (timed) setInterval(() => document.hidden || refresh(), 1000 * timed.dataset.every);
const streamed = document.querySelector("[data-stream]");
if (streamed) {
  const stream = new EventSource(streamed.dataset.stream);
  stream.addEventListener("lines", refresh);
  stream.addEventListener("ended", () => {
    stream.close();
    refresh();
  });
  addEventListener("pagehide", () => stream.close());
}
document.addEventListener("flatout:read", refresh);
awaitUnread();
// What a form does takes seconds, such as the start of a training: it is sent once, however often
// its button is pressed.
document.addEventListener("submit", (event) => {
  if (event.target.method !== "post") return;
  if ("sent" in event.target.dataset) event.preventDefault();
  event.target.dataset.sent = "";
});
addEventListener("pageshow", () => document.querySelectorAll("form[data-sent]").forEach((form) => delete form.dataset.sent));
const log = document.querySelector(".log");
if (log) log.scrollTop = log.scrollHeight;
