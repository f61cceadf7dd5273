// Two people edited one job. The second to save sees what the first changed, keeps what they typed, and
// chooses: save their own, or take the other's.
import { root } from "./api.js";
import { currentOf, savedOf, setCurrent } from "./unsaved.js";

// Reads the form again as it is saved now, and puts the other's changes into this one, except where
// this person has typed something else. Returns the form that was read. Throws if there is none.
export async function takeOver(form) {
  const theirs = await readAgain(form.dataset.id);
  const changes = [];
  for (const field of form.elements) {
    const other = field.name ? theirs.elements[field.name] : null;
    if (!other) continue;
    const [before, now, mine] = [savedOf(field), savedOf(other), currentOf(field)];
    if (before !== now) {
      const own = mine === before || mine === now ? null : words(field, mine);
      changes.push({ label: labelOf(field), before: words(field, before), now: words(field, now), mine: own });
    }
    setSaved(field, now);
    setCurrent(field, mine === before ? now : mine); // setting a default may change what is shown
  }
  form.dataset.etag = theirs.dataset.etag;
  form.dataset.slots = theirs.dataset.slots;
  show(changes);
  return theirs;
}

async function readAgain(id) {
  const address = `${root}/jobs/${encodeURIComponent(id)}/edit`;
  let page = "";
  try {
    const answer = await fetch(address, { headers: { Accept: "text/html" }, credentials: "same-origin" });
    if (answer.status === 404) throw new Error("Somebody deleted this job. What you typed is still here.");
    page = await answer.text();
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
  }
  const found = new DOMParser().parseFromString(page, "text/html").getElementById("job-form");
  if (found === null) {
    throw new Error("Somebody changed this job, and it could not be read again. Nothing was saved. Try again.");
  }
  return found;
}

function setSaved(field, value) {
  if (field.type === "checkbox") field.defaultChecked = value;
  else if (field.localName === "select") for (const one of field.options) one.defaultSelected = one.value === value;
  else field.defaultValue = value;
}

const labelOf = (field) => (field.labels?.[0]?.textContent ?? field.name).trim();

// A value as the form shows it.
function words(field, value) {
  if (field.type === "checkbox") return value ? "yes" : "no";
  if (field.localName === "select") return [...field.options].find((one) => one.value === value)?.text ?? value;
  return value || "empty";
}

function show(changes) {
  const part = document.getElementById("conflict");
  const rows = changes.map(({ label, before, now, mine }) => {
    const row = document.createElement("tr");
    const name = document.createElement("th");
    name.scope = "row";
    name.textContent = label;
    row.append(name, cell("It was", before), cell("They wrote", now), cell("You wrote", mine ?? "—"));
    return row;
  });
  const isBoth = changes.some(({ mine }) => mine !== null);
  document.getElementById("conflict-words").textContent = isBoth
    ? "Where both of you changed a field, the form has yours: save it over theirs, or take theirs."
    : "You changed other fields. Saving keeps both changes.";
  part.querySelector("table").hidden = changes.length === 0;
  part.querySelector("tbody").replaceChildren(...rows);
  part.hidden = false;
  part.focus();
  part.scrollIntoView({ block: "start" });
}

function cell(label, text) {
  const made = document.createElement("td");
  made.dataset.label = label;
  const inner = document.createElement("pre");
  inner.textContent = text;
  made.append(inner);
  return made;
}
