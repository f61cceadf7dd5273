// Keeps the page up to date: it is read again soon after an event, and every few seconds, because
// events of other processes do not reach this one.
import { root } from "./api.js";

const POLL_MS = 5000;
const SOONEST_MS = 1000;

let timer = null;
let lastAt = 0;
let source = null;
let isLive = true;
let isHeld = false;
let isAimed = false;

const main = () => document.getElementById("main");

// Read the page again and change what differs.
export function refresh() {
  if (!main()?.hasAttribute("data-live")) return;
  lastAt = performance.now();
  window.htmx.trigger("#main", "refresh");
  document.dispatchEvent(new CustomEvent("mainspring:refresh"));
}

// No updates while the page is about to be left: what it shows may be gone already.
export function hold(held) {
  isHeld = held;
  if (held && main()) window.htmx.trigger("#main", "htmx:abort");
}

const mayUpdate = () => isLive && !isHeld && !isAimed && !document.hidden;

function refreshSoon() {
  if (!mayUpdate()) return;
  const wait = Math.max(0, lastAt + SOONEST_MS - performance.now());
  if (timer === null) {
    timer = setTimeout(() => {
      timer = null;
      if (mayUpdate()) refresh();
    }, wait);
  }
}

export function startLive() {
  const button = document.getElementById("live");
  if (!main()?.hasAttribute("data-live")) {
    button.hidden = true;
    return;
  }
  keepWhatThePersonDoes();
  isLive = sessionStorage.getItem("mainspring-live") !== "off";
  show(button);
  button.addEventListener("click", () => {
    isLive = !isLive;
    sessionStorage.setItem("mainspring-live", isLive ? "on" : "off");
    show(button);
    follow();
    if (isLive) refresh();
  });
  // Nothing moves while the mouse is on a button of a row: an update could put another row under it.
  document.addEventListener("pointerover", ({ pointerType, target }) => {
    isAimed = pointerType === "mouse" && target.closest("[data-steady]") !== null;
  });
  document.addEventListener("visibilitychange", () => {
    follow();
    refreshSoon();
  });
  document.addEventListener("htmx:sendError", () => show(button, "No answer"));
  document.addEventListener("htmx:responseError", () => show(button, "No answer"));
  document.addEventListener("htmx:afterOnLoad", ({ detail }) => {
    if (detail.xhr.status < 400) show(button);
  });
  setInterval(() => {
    if (performance.now() - lastAt >= POLL_MS) refreshSoon();
  }, POLL_MS / 5);
  lastAt = performance.now();
  follow();
}

// `trouble`: why the page shows something old.
function show(button, trouble = null) {
  button.setAttribute("aria-pressed", String(isLive && trouble === null));
  button.classList.toggle("trouble", trouble !== null);
  button.querySelector(".live-text").textContent = trouble ?? (isLive ? "Live" : "Paused");
}

// Listen to events while the page is looked at. Browsers allow few connections to one host.
function follow() {
  const wanted = isLive && !document.hidden;
  if (wanted && source === null) {
    source = new EventSource(`${root}/api/v1/events`);
    for (const name of EVENTS) source.addEventListener(name, refreshSoon);
  } else if (!wanted && source !== null) {
    source.close();
    source = null;
  }
}

const EVENTS = [
  ...["job.created", "job.updated", "job.removed"],
  ...["run.enqueued", "run.started", "run.progress", "run.succeeded", "run.failed"],
  ...["run.retrying", "run.cancelled", "run.skipped", "run.rescued"],
  ...["breaker.opened", "breaker.half_open", "breaker.closed"],
  ...["leader.elected", "leader.lost", "worker.started", "worker.stopped"],
];

// An update leaves alone what is being typed, opened parts, ticked boxes, and drawn charts.
function keepWhatThePersonDoes() {
  const { defaults } = window.Idiomorph;
  defaults.ignoreActiveValue = true;
  defaults.callbacks.beforeNodeMorphed = (node) =>
    !(node instanceof Element && (node.hasAttribute("data-keep") || node.matches("input, select, textarea")));
  defaults.callbacks.beforeAttributeUpdated = (name, node) =>
    !(name === "open" && node.localName === "details");
}
