// The browser asks before a page is left whose form has changes that are not saved. Links, shortcuts
// and closing the tab are the same to it.
let isLeaving = false;

export function warnBeforeLeaving(form) {
  window.addEventListener("beforeunload", (event) => {
    if (!isLeaving && isChanged(form)) event.preventDefault();
  });
}

// What the form has is saved, or the person gave it up.
export function allowLeaving() {
  isLeaving = true;
}

const isChanged = (form) => [...form.elements].some((field) => field.name && currentOf(field) !== savedOf(field));

// What a field shows now, and what it showed when the page was loaded.
export const currentOf = (field) => (isTick(field) ? field.checked : field.value);

export function savedOf(field) {
  if (isTick(field)) return field.defaultChecked;
  if (field.localName !== "select") return field.defaultValue;
  return ([...field.options].find((one) => one.defaultSelected) ?? field.options[0])?.value;
}

export function setCurrent(field, value) {
  if (isTick(field)) field.checked = value;
  else field.value = value;
}

// What `read` makes of the form as it was loaded, also if somebody typed before this script was there.
export function asLoaded(form, read) {
  const fields = [...form.elements].filter((field) => field.name);
  const typed = fields.map(currentOf);
  form.reset();
  const found = read(form);
  fields.forEach((field, place) => setCurrent(field, typed[place]));
  return found;
}

const isTick = (field) => field.type === "checkbox" || field.type === "radio";
