// Actions on the jobs that are ticked, or on all that match the filters.
import { call } from "./api.js";
import { refresh } from "./live.js";
import { ask, say } from "./messages.js";

const bar = document.getElementById("bulk");
const boxes = () => [...document.querySelectorAll('#main input[name="job"]')];
const ticked = () => boxes().filter((one) => one.checked).map((one) => one.value);
let isAll = false;

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
const total = () => Number(bar.dataset.total);

function show() {
  const chosen = ticked();
  const all = boxes();
  if (chosen.length < all.length) isAll = false;
  bar.hidden = chosen.length === 0;
  bar.querySelector(".bulk-count").textContent = `${jobs(isAll ? total() : chosen.length)} chosen`;
  const isPage = all.length > 0 && chosen.length === all.length;
  bar.querySelector("[data-bulk-all]").hidden = isAll || !isPage || total() <= all.length;
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

async function act(action) {
  const [label, one, many] = WORDS[action];
  const ids = ticked();
  const count = isAll ? total() : ids.length;
  if (isAll || action === "delete") {
    const end = action === "delete" ? " This cannot be undone." : "";
    if (!(await ask(`${label}: ${jobs(count)}?${end}`, label))) return;
  }
  const chosen = isAll ? { match: JSON.parse(bar.dataset.match) } : { ids };
  const buttons = [...bar.querySelectorAll("button")];
  for (const button of buttons) button.disabled = true;
  try {
    const answer = await call("POST", "api/v1/jobs/bulk", { action, ...chosen });
    if (answer.succeeded > 0) say(`${jobs(answer.succeeded)} ${answer.succeeded === 1 ? one : many}.`);
    if (answer.failed > 0) {
      const first = answer.items.find((item) => item.problem);
      say(`${jobs(answer.failed)} could not be changed. ${first.id}: ${first.problem.detail}`, "error");
    }
    clear();
    refresh();
  } catch (problem) {
    say(problem.message, "error");
  } finally {
    for (const button of buttons) button.disabled = false;
  }
}
