// Forms that call the API: <form data-api="POST" data-path="api/v1/…" data-done="what to say">.
//
// A field's name is its name in the document, `backoff.kind` is inside of another one. `data-type`
// says how its text is read: json, body, number, list (a, "b, c"), lines (Name: value), codes.
// <p data-error="name"> shows what is wrong with a field, <p data-error=""> what is wrong otherwise.
// A button with `data-query` calls with that query (a dry run) and shows the answer.
import { call, linkToRun } from "./api.js";
import { refresh } from "./live.js";
import { say } from "./messages.js";

export function start() {
  document.addEventListener("click", (event) => {
    const opens = event.target.closest("[data-opens]");
    if (opens) document.getElementById(opens.dataset.opens).showModal();
    if (event.target.closest("[data-closes]")) event.target.closest("dialog").close();
    const query = event.target.closest("form[data-api] [data-query]");
    if (query) submit(query.form, query.dataset.query);
  });
  document.addEventListener("submit", (event) => {
    if (!event.target.matches("form[data-api]")) return;
    event.preventDefault();
    submit(event.target, null);
  });
}

async function submit(form, query) {
  if (query !== null && !form.reportValidity()) return;
  clearErrors(form);
  const buttons = [...form.querySelectorAll("button")];
  for (const one of buttons) one.disabled = true;
  try {
    const { api, path, done } = form.dataset;
    const body = collect(form);
    const answer = await call(api, query === null ? path : `${path}?${query}`, body);
    if (query !== null) showAnswer(form, answer);
    else {
      form.closest("dialog")?.close();
      form.reset();
      hideAnswer(form);
      say(done, "done", linkToRun(answer));
      refresh();
    }
  } catch (problem) {
    showProblem(form, problem);
  } finally {
    for (const one of buttons) one.disabled = false;
  }
}

function hideAnswer(form) {
  for (const one of form.querySelectorAll("[data-answer], [data-words]")) one.hidden = true;
}

// What a dry run answered: a request, or how many slots.
function showAnswer(form, answer) {
  const whole = form.querySelector("[data-answer]");
  const words = form.querySelector("[data-words]");
  if (whole) {
    whole.textContent = requestText(answer);
    whole.hidden = false;
  }
  if (words) {
    const there = Object.keys(answer.existing).length;
    words.textContent =
      `${answer.slots} ${answer.slots === 1 ? "slot" : "slots"}: ${answer.added.length} would run,` +
      ` ${there} already ${there === 1 ? "has" : "have"} a run.` +
      (answer.nextSlot ? ` The rest begins at ${answer.nextSlot}.` : "");
    words.hidden = false;
  }
}

export function requestText({ method, url, headers, body }) {
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}`);
  return [`${method} ${url}`, ...lines, "", body].join("\n");
}

export class FieldFault extends Error {
  constructor(field, message) {
    super(message);
    this.fields = [{ field, message }];
  }
}

// JavaScript reads 12345678901234567890 as 12345678901234567000 and 1.0 as 1. JSON.rawJSON sends a
// number as it was written.
const canKeepNumbers = typeof JSON.rawJSON === "function";

function parseJson(text) {
  if (!canKeepNumbers) return JSON.parse(text);
  return JSON.parse(text, (_, value, { source }) =>
    typeof value === "number" && String(value) !== source ? JSON.rawJSON(source) : value,
  );
}

// A browser without JSON.rawJSON refuses a number that it would change. A field that nobody touched
// is not sent, so it is not checked.
function checkNumbers(field) {
  if (canKeepNumbers || field.value === field.defaultValue) return;
  const withoutStrings = field.value.replace(/"(?:[^"\\]|\\.)*"/g, '""');
  const numbers = withoutStrings.match(/-?\d[\d.eE+-]*/g) ?? [];
  const changed = numbers.find((one) => String(Number(one)) !== one);
  if (changed === undefined) return;
  const next = "Nothing was sent. Use a newer browser, or the API.";
  throw new FieldFault(field.name, `This browser would send ${changed} as ${Number(changed)}. ${next}`);
}

const READERS = {
  json: (text, field) => {
    let value;
    try {
      value = parseJson(text);
    } catch (error) {
      throw new FieldFault(field.name, `This is not JSON: ${error.message}`);
    }
    checkNumbers(field);
    return value;
  },
  // JSON, or a text that does not look like JSON.
  body: (text, field) => {
    if (/^\s*[{["]/.test(text)) return READERS.json(text, field);
    try {
      JSON.parse(text);
    } catch {
      return text;
    }
    return READERS.json(text, field);
  },
  number: (text) => (Number.isNaN(Number(text)) ? text : Number(text)),
  // Texts with commas between them. One that has a comma itself is in quotes: "a, b", c
  list: (text) => {
    const parts = text.matchAll(/\s*(?:"((?:[^"]|"")*)"\s*(?=,|$)|([^,]*))(?:,|$)/g);
    const texts = [...parts].map(([, quoted, plain]) => quoted?.replaceAll('""', '"') ?? plain.trim());
    return texts.filter(Boolean);
  },
  codes: (text) =>
    text.split(",").map((one) => one.trim()).filter(Boolean).map((one) => (/^\d+$/.test(one) ? Number(one) : one)),
  lines: (text, field) => {
    const pairs = text.split("\n").filter((line) => line.trim()).map((line) => {
      const at = line.indexOf(":");
      if (at < 1) throw new FieldFault(field.name, `Write each header as Name: value, not ${line.trim()}`);
      return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
    });
    return Object.fromEntries(pairs);
  },
};

// The document that the fields of a form make. Empty fields are left out, or null with `data-null`.
export function collect(form) {
  const made = {};
  for (const field of form.elements) {
    if (!field.name || field.disabled || field.closest("[hidden]:not(dialog)")) continue;
    if (field.type === "radio" && !field.checked) continue;
    const value = valueOf(field);
    if (value !== undefined) put(made, field.name, value);
  }
  return made;
}

function valueOf(field) {
  const { type } = field.dataset;
  if (field.type === "checkbox") return field.checked;
  const text = field.value;
  if (text.trim() === "") return "null" in field.dataset ? null : undefined;
  return type ? READERS[type](text, field) : text.trim();
}

function put(made, name, value) {
  const [first, second] = name.split(".");
  if (second === undefined) made[first] = value;
  else made[first] = { ...made[first], [second]: value };
}

export function clearErrors(form) {
  for (const one of form.querySelectorAll("[data-error]")) one.textContent = "";
  for (const one of form.querySelectorAll("[aria-invalid]")) one.removeAttribute("aria-invalid");
}

// Shows each error beside its field; the first wrong field is shown and gets the focus.
export function showProblem(form, problem) {
  const rest = [];
  let first = null;
  for (const { field, message } of problem.fields ?? []) {
    const place = placeOf(form, field);
    if (place === null) {
      rest.push(`${field}: ${message}`);
      continue;
    }
    place.textContent = [place.textContent, message].filter(Boolean).join(" ");
    const input = form.querySelector(`[name="${CSS.escape(place.dataset.error)}"]`);
    input?.setAttribute("aria-invalid", "true");
    first ??= input;
  }
  if (first === null && rest.length === 0) rest.push(problem.message);
  const whole = form.querySelector('[data-error=""]');
  if (whole) whole.textContent = rest.join(" ");
  else if (rest.length) say(rest.join(" "), "error");
  if (first) {
    const closed = first.closest("details:not([open])");
    if (closed) closed.open = true;
    first.focus();
  }
}

function placeOf(form, field) {
  const names = field.split(".");
  while (names.length) {
    const found = form.querySelector(`[data-error="${CSS.escape(names.join("."))}"]`);
    if (found && !found.closest("[hidden]")) return found;
    names.pop();
  }
  return null;
}
