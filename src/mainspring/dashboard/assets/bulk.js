// Actions on the jobs that are ticked, or on all that match the filters.
import { call } from "./api.js";
import { refresh } from "./live.js";
import { ask, say } from "./messages.js";

const bar = document.getElementById("bulk");
const boxes = () => [...document.querySelectorAll('#main input[name="job"]')];
// The table says how many jobs match which filters; updates of the page keep it current.
const list = () => document.getElementById("jobs-list");
const ticked = () => boxes().filter((one) => one.checked).map((one) => one.value);
const READ_AT_ONCE = 500;
const SENT_AT_ONCE = 1000;
let isAll = false; // until the person ticks or unticks something

const WORDS = {
  trigger: ["Run now", "was queued", "were queued"],
  pause: ["Pause", "was paused", "were paused"],
  resume: ["Resume", "was resumed", "were resumed"],
  delete: ["Delete", "was deleted", "were deleted"],
};

export function start() {
  document.addEventListener("change", (event) => {
    if (event.target.id === "tick-all") for (const one of boxes()) one.checked = event.target.checked;
    else if (event.target.name !== "job") return;
    isAll = false;
    show();
  });
  document.addEventListener("htmx:afterSettle", show);
  bar.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button === null) return;
    if ("bulkAll" in button.dataset) {
      isAll = true;
      show();
    } else if ("bulkNone" in button.dataset) clear();
    else act(button.dataset.bulk);
  });
  show();
}

const jobs = (count) => `${count.toLocaleString("en")} ${count === 1 ? "job" : "jobs"}`;
const total = () => Number(list()?.dataset.total ?? 0);
const match = () => JSON.parse(list()?.dataset.match ?? "{}");

function show() {
  const all = boxes();
  if (all.length === 0) isAll = false;
  if (isAll) for (const one of all) one.checked = true; // also rows that came with an update
  const chosen = ticked();
  bar.hidden = chosen.length === 0;
  bar.querySelector(".bulk-count").textContent = `${jobs(isAll ? total() : chosen.length)} chosen`;
  const isPage = all.length > 0 && chosen.length === all.length;
  const everyButton = bar.querySelector("[data-bulk-all]");
  everyButton.hidden = isAll || !isPage || total() <= all.length;
  const which = Object.keys(match()).length > 0 ? " that match" : "";
  everyButton.textContent = `Choose all ${jobs(total())}${which}`;
  const head = document.getElementById("tick-all");
  if (head !== null) {
    head.checked = isPage;
    head.indeterminate = chosen.length > 0 && !isPage;
  }
}

function clear() {
  isAll = false;
  for (const one of boxes()) one.checked = false;
  show();
}

// The ids of all jobs that match now. The question counts these, and only these are sent: a job that
// is created while the person reads the question is left alone.
async function matchingIds() {
  const ids = [];
  let cursor = null;
  do {
    const query = new URLSearchParams({ ...match(), limit: READ_AT_ONCE, ...(cursor ? { cursor } : {}) });
    const page = await call("GET", `api/v1/jobs?${query}`);
    ids.push(...page.items.map((job) => job.id));
    cursor = page.nextCursor;
  } while (cursor);
  return ids;
}

async function act(action) {
  const label = WORDS[action][0];
  const buttons = [...bar.querySelectorAll("button")];
  for (const button of buttons) button.disabled = true;
  try {
    const asks = isAll || action === "delete";
    const ids = isAll ? await matchingIds() : ticked();
    const end = action === "delete" ? " This cannot be undone." : "";
    if (asks && !(await ask(`${label}: ${jobs(ids.length)}?${end}`, label))) return;
    await send(action, ids);
    clear();
  } catch (problem) {
    say(problem.message, "error");
  } finally {
    for (const button of buttons) button.disabled = false;
  }
}

// Says what was done, also if a later call fails.
async function send(action, ids) {
  const [, one, many] = WORDS[action];
  let succeeded = 0;
  const failed = [];
  try {
    for (let start = 0; start < ids.length; start += SENT_AT_ONCE) {
      const answer = await call("POST", "api/v1/jobs/bulk", { action, ids: ids.slice(start, start + SENT_AT_ONCE) });
      succeeded += answer.succeeded;
      failed.push(...answer.items.filter((item) => item.problem));
    }
  } finally {
    if (succeeded > 0) say(`${jobs(succeeded)} ${succeeded === 1 ? one : many}.`);
    if (failed.length > 0) {
      const [{ id, problem }] = failed;
      say(`${jobs(failed.length)} could not be changed. ${id}: ${problem.detail}`, "error");
    }
    refresh();
  }
}
