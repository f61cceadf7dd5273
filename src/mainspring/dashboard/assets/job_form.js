// The form of a job: its preview while typing, its test call, and what is sent.
import { call, root } from "./api.js";
import { takeOver } from "./conflict.js";
import { clearErrors, collect, FieldFault, requestText, showProblem } from "./forms.js";
import { say } from "./messages.js";
import { inZone, relative } from "./times.js";
import { allowLeaving, asLoaded, warnBeforeLeaving } from "./unsaved.js";

const TYPING_MS = 300;
const SLOTS = 10;
const here = Intl.DateTimeFormat().resolvedOptions().timeZone;
const form = document.getElementById("job-form");
const jobId = form?.dataset.id;
let initial = {};
let timer = null;
let asked = 0;

export function start() {
  fillZones();
  initial = asLoaded(form, (loaded) => {
    showKind();
    return collect(loaded);
  });
  showKind();
  form.addEventListener("change", (event) => {
    if (event.target.name === "kind") showKind();
  });
  form.addEventListener("input", (event) => {
    if (["schedule", "timezone"].includes(event.target.name)) previewSoon();
    document.getElementById("request").hidden = true;
  });
  form.addEventListener("click", (event) => {
    const example = event.target.closest("[data-schedule]");
    if (example) {
      form.elements.schedule.value = example.dataset.schedule;
      preview();
    }
  });
  document.getElementById("take-theirs")?.addEventListener("click", () => {
    allowLeaving();
    location.reload();
  });
  document.getElementById("save-mine")?.addEventListener("click", save);
  warnBeforeLeaving(form);
  document.getElementById("test-call")?.addEventListener("click", testCall);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    save();
  });
  preview();
  form.querySelector(".form-buttons .primary").disabled = false; // without this script it would send nothing
}

function fillZones() {
  const list = document.getElementById("zones");
  const names = Intl.supportedValuesOf?.("timeZone") ?? [];
  list.append(...["UTC", ...names].map((name) => new Option(name, name)));
}

// Only the fields of the chosen kind of job are shown, and sent.
function showKind() {
  const chosen = form.querySelector('[name="kind"]:checked')?.value;
  if (!chosen) return;
  for (const one of form.querySelectorAll("[data-kind]")) one.hidden = one.dataset.kind !== chosen;
}

// -- the preview ------------------------------------------------------------------------------

function previewSoon() {
  clearTimeout(timer);
  timer = setTimeout(preview, TYPING_MS);
}

const oldSlots = () => JSON.parse(form.dataset.slots || "[]");
const isMoved = () =>
  jobId !== undefined &&
  ["schedule", "timezone"].some((name) => (initial[name] ?? "") !== form.elements[name].value.trim());

async function preview() {
  const number = ++asked;
  const place = document.getElementById("preview");
  const schedule = form.elements.schedule.value.trim();
  const timezone = form.elements.timezone.value.trim();
  const error = form.querySelector('[data-error="schedule"]');
  const zoneError = form.querySelector('[data-error="timezone"]');
  if (schedule === "") {
    error.textContent = zoneError.textContent = "";
    const words = "It runs only when somebody triggers it, or after other jobs.";
    place.replaceChildren(text("p", words, "muted"), ...(isMoved() ? difference(oldSlots(), []) : []));
    return;
  }
  try {
    const body = { schedule, count: SLOTS, ...(timezone ? { timezone } : {}), ...(jobId ? { jobId } : {}) };
    const found = await call("POST", "api/v1/schedules/preview", body);
    if (number !== asked) return; // an answer to what was typed before
    error.textContent = zoneError.textContent = "";
    const slots = found.slots.map((slot) => slot.utc);
    const parts = [text("p", `${found.description}.`, "preview-words")];
    for (const warning of found.warnings.slice(0, 3)) parts.push(text("p", `${warning}.`, "notice notice-warning"));
    if (isMoved()) parts.push(...difference(oldSlots(), slots, found.timezone));
    else parts.push(slotTable(jobId === undefined ? slots : oldSlots(), found.timezone));
    place.replaceChildren(...parts);
  } catch (problem) {
    if (number !== asked) return;
    const fields = problem.fields ?? [];
    zoneError.textContent = fields.find((one) => one.field === "timezone")?.message ?? "";
    const own = fields.filter((one) => one.field !== "timezone").map((one) => one.message);
    error.textContent = own.join(" ") || (zoneError.textContent ? "" : problem.message);
    place.replaceChildren();
  }
}

function text(tag, words, kind = "") {
  const made = document.createElement(tag);
  made.textContent = words;
  made.className = kind;
  return made;
}

const short = (moment, zone) => inZone(moment, zone).replace(/:00$/, "");

function slotTable(slots, zone) {
  const zones = [...new Set([zone, "UTC", here])];
  const table = document.createElement("table");
  table.className = "rows slots";
  const head = table.createTHead().insertRow();
  head.append(text("th", ""), ...zones.map((one) => text("th", one === here ? `${one} (yours)` : one)));
  const body = table.createTBody();
  for (const slot of slots) {
    const moment = new Date(slot);
    const row = body.insertRow();
    row.append(text("td", relative((moment - Date.now()) / 1000), "nowrap"));
    row.append(...zones.map((one) => text("td", short(moment, one), "nowrap")));
  }
  const scroll = text("div", "", "scroll");
  scroll.append(table);
  return scroll;
}

// The next runs as they are and as they would be, side by side. Beyond the last run of the shorter
// list nothing is known of it, so later runs of the other are neither gone nor new.
function difference(before, after, zone = "UTC") {
  const ends = (slots) => (slots.length < SLOTS ? Infinity : Date.parse(slots.at(-1)));
  const until = Math.min(ends(before), ends(after));
  const kindIn = (others, kind) => (slot) => {
    if (others.includes(slot)) return "same";
    return Date.parse(slot) <= until ? kind : "later";
  };
  const gone = kindIn(after, "gone");
  const isNew = kindIn(before, "new");
  const count = (slots, kindOf, kind) => slots.filter((slot) => kindOf(slot) === kind).length || "none";
  const span = until === Infinity ? "Of all runs" : `Of the runs until ${short(new Date(until), zone)}`;
  const words =
    `${span}: ${count(before, gone, "same")} stay as they are,` +
    ` ${count(before, gone, "gone")} no longer run, ${count(after, isNew, "new")} are new.`;
  const columns = text("div", "", "difference");
  columns.append(slotList("Now", before, zone, gone), slotList("After the change", after, zone, isNew));
  return [text("p", words, "preview-words"), columns];
}

function slotList(title, slots, zone, kindOf) {
  const part = text("section", "", "difference-part");
  part.append(text("h3", `${title} (${zone})`));
  const list = document.createElement("ul");
  list.className = "plain-list mono";
  for (const slot of slots) {
    const kind = kindOf(slot);
    const sign = { gone: "− ", new: "+ " }[kind] ?? "  ";
    list.append(text("li", sign + short(new Date(slot), zone), `slot-${kind}`));
  }
  if (slots.length === 0) list.append(text("li", "no runs by schedule", "muted"));
  part.append(list);
  return part;
}

// -- what is sent -----------------------------------------------------------------------------

const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

// What the person has changed. A field that was emptied is null.
function changes() {
  const now = collect(form);
  const found = {};
  for (const name of new Set([...Object.keys(initial), ...Object.keys(now)])) {
    if (name !== "kind" && !same(initial[name], now[name])) found[name] = now[name] ?? null;
  }
  return found;
}

function newJob() {
  const filled = Object.entries(changes()).filter(([, value]) => value !== null);
  const found = { schedule: null, ...Object.fromEntries(filled) };
  const runs = form.querySelector('[name="kind"]:checked').value === "handler";
  if (runs && !("handler" in found)) throw new FieldFault("handler", "Choose a function.");
  if (!runs && !("endpoint" in found)) {
    throw new FieldFault("endpoint", "Give the address to call, such as https://api.example.com/webhook");
  }
  return found;
}

// The whole job as the form has it, for the test call.
function wholeJob() {
  if (jobId === undefined) return newJob();
  const { enabled, rotateSecret, ...document } = collect(form);
  return { schedule: null, ...document };
}

async function testCall() {
  clearErrors(form);
  const part = document.getElementById("request");
  part.hidden = true;
  try {
    const shown = await call("POST", "api/v1/jobs?dryRun=true", wholeJob());
    document.getElementById("request-text").textContent = requestText(shown);
    part.hidden = false;
    part.scrollIntoView({ block: "nearest" });
  } catch (problem) {
    showProblem(form, problem);
  }
}

async function save() {
  clearErrors(form);
  const button = form.querySelector(".form-buttons .primary");
  button.disabled = true;
  try {
    const made = jobId === undefined ? await create() : await change();
    if (made === null) return;
    allowLeaving();
    const dropped = droppedHeaders(made);
    if (dropped.length) showDropped(made, dropped);
    if (made.signingSecret) showSecret(made);
    else if (!dropped.length) location.assign(`${root}/jobs/${encodeURIComponent(made.id)}`);
  } catch (problem) {
    if (problem.status === 412) await showConflict();
    else showProblem(form, problem);
  } finally {
    button.disabled = false;
  }
}

const create = () => call("POST", "api/v1/jobs", newJob());

async function change() {
  const found = changes();
  if (Object.keys(found).length === 0) {
    say("Nothing was changed.");
    return null;
  }
  return call("PATCH", `api/v1/jobs/${encodeURIComponent(jobId)}`, found, { "If-Match": form.dataset.etag });
}

async function showConflict() {
  try {
    initial = collect(await takeOver(form));
    preview();
  } catch (problem) {
    showProblem(form, problem);
  }
}

// A job that moves to another host loses the secret headers that were not entered for it.
function droppedHeaders(made) {
  if (jobId === undefined) return [];
  const kept = new Set(Object.keys(made.headers ?? {}).map((name) => name.toLowerCase()));
  return Object.keys(collect(form).headers ?? {}).filter((name) => !kept.has(name.toLowerCase()));
}

function showDropped(made, names) {
  const address = `${root}/jobs/${encodeURIComponent(made.id)}`;
  document.getElementById("dropped-names").textContent = names.join(", ");
  document.getElementById("dropped-edit").href = `${address}/edit`;
  document.getElementById("dropped-done").href = address;
  form.hidden = true; // what it holds is saved
  const part = document.getElementById("dropped");
  part.hidden = false;
  part.focus();
}

function showSecret(made) {
  document.getElementById("secret-text").textContent = made.signingSecret;
  const done = document.getElementById("secret-done");
  done.href = `${root}/jobs/${encodeURIComponent(made.id)}`;
  // The browser asks before the page is left in another way: the secret is shown only once.
  const askFirst = (event) => event.preventDefault();
  window.addEventListener("beforeunload", askFirst);
  done.addEventListener("click", () => window.removeEventListener("beforeunload", askFirst));
  form.hidden = true; // what it holds is saved
  const part = document.getElementById("secret");
  part.hidden = false;
  part.focus();
}
