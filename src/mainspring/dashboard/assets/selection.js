// Tick boxes of a list, and what is done with the ticked items or with all that match.
//
//   <section data-selection="api/v1/runs/bulk" data-match="{…}" data-matching="the filters in words">
//     <span data-ticked>, <input data-all-matching>, <input data-tick-all>, <input data-tick value="id">
//     <button data-does="retry">; inside of an element with data-ids="[…]" it is for these
import { call } from "./api.js";
import { refresh } from "./live.js";
import { ask, say } from "./messages.js";

const DONE = { cancel: "Cancelled", retry: "Retried", delete: "Deleted" };
const FITS = {
  cancel: "Only runs that have not ended can be cancelled.",
  retry: "Only failed and cancelled runs can be retried.",
  delete: "Only runs that have ended can be deleted.",
};

const runs = (count) => `${count.toLocaleString("en")} ${count === 1 ? "run" : "runs"}`;
const ticked = (section) => [...section.querySelectorAll("[data-tick]:checked")].map((one) => one.value);

export function startSelection() {
  document.addEventListener("change", ({ target }) => {
    const section = target.closest("[data-selection]");
    if (section === null) return;
    if ("tickAll" in target.dataset) {
      for (const one of section.querySelectorAll("[data-tick]")) one.checked = target.checked;
    }
    show(section);
  });
  document.addEventListener("click", ({ target }) => {
    const button = target.closest("[data-does]");
    if (button) act(button.closest("[data-selection]"), button);
  });
  document.addEventListener("htmx:afterSettle", () => document.querySelectorAll("[data-selection]").forEach(show));
}

function show(section) {
  const count = ticked(section).length;
  const text = section.querySelector("[data-ticked]");
  if (text) text.textContent = count ? `${count} ticked` : "None ticked";
  const all = section.querySelector("[data-tick-all]");
  if (all) all.checked = count > 0 && count === section.querySelectorAll("[data-tick]").length;
}

// Which runs the button is for: {ids} or {match}, and how the question names them.
function chosen(section, button) {
  const group = button.closest("[data-ids]");
  if (group !== null) {
    const ids = JSON.parse(group.dataset.ids);
    return { body: { ids }, words: `${runs(ids.length)} ${group.dataset.words}` };
  }
  if (section.querySelector("[data-all-matching]")?.checked) {
    return { body: { match: JSON.parse(section.dataset.match) }, words: `all runs that match (${section.dataset.matching})` };
  }
  const ids = ticked(section);
  return ids.length ? { body: { ids }, words: `the ${runs(ids.length)} that you ticked` } : null;
}

async function act(section, button) {
  const action = button.dataset.does;
  const found = chosen(section, button);
  if (found === null) {
    say("Tick runs first, or tick “All that match”.", "error");
    return;
  }
  const verb = action[0].toUpperCase() + action.slice(1);
  const end = action === "delete" ? " This cannot be undone." : "";
  if (!(await ask(`${verb} ${found.words}? ${FITS[action]}${end}`, verb))) return;
  button.setAttribute("aria-busy", "true");
  try {
    const { matched, done, more } = await call("POST", section.dataset.selection, { action, ...found.body });
    const given = found.body.ids?.length ?? matched;
    const left = given - done;
    say(
      `${DONE[action]} ${runs(done)}.` +
        (left > 0 ? ` ${runs(left)} stayed as they are. ${FITS[action]}` : "") +
        (more ? " More match: press the button again." : ""),
    );
    for (const one of section.querySelectorAll("[data-tick], [data-tick-all], [data-all-matching]")) one.checked = false;
    show(section);
    refresh();
  } catch (problem) {
    say(problem.message, "error");
  } finally {
    button.removeAttribute("aria-busy");
  }
}
