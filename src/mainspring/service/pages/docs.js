// Draws the API's description. Everything is set as text, never as HTML.
"use strict";

const make = (name, text, ...children) => {
  const element = document.createElement(name);
  if (text) element.textContent = text;
  element.append(...children);
  return element;
};

// Text between backticks is code.
const words = (name, text) => {
  const parts = (text || "").split("`");
  return make(name, "", ...parts.map((part, at) => (at % 2 ? make("code", part) : part)));
};

const named = (ref) => ref.split("/").pop();

const link = (name) => {
  const made = make("a", name);
  made.href = `#${name}`;
  return made;
};

// A type in words, and with links where it is a shape of its own.
const kind = (schema) => {
  if (schema.$ref) return [link(named(schema.$ref))];
  if (schema.const !== undefined) return [JSON.stringify(schema.const)];
  if (schema.enum) return [schema.enum.map((one) => JSON.stringify(one)).join(" | ")];
  if (schema.anyOf)
    return schema.anyOf.flatMap((one, at) => (at ? [" | ", ...kind(one)] : kind(one)));
  if (schema.type === "array") return ["list of ", ...kind(schema.items || {})];
  return [schema.type || "anything"];
};

const row = ({ name, schema, required, about }) =>
  make("tr", "",
    make("td", "", make("code", name + (required ? " *" : ""))),
    make("td", "", ...kind(schema)),
    words("td", about));

const table = (rows) => make("table", "", make("tbody", "", ...rows.map(row)));

const fields = (schema) => {
  const needed = new Set(schema.required || []);
  return Object.entries(schema.properties || {}).map(([name, one]) => ({
    name, schema: one, required: needed.has(name), about: one.description,
  }));
};

// A shape's fields; of one that is only a name for others, what it is.
const shape = (api, schema) => {
  const found = schema.$ref ? api.components.schemas[named(schema.$ref)] || {} : schema;
  const parts = found.description ? [words("p", found.description)] : [];
  const rows = fields(found);
  return [...parts, rows.length ? table(rows) : make("p", "", ...kind(found))];
};

// The path that the API is mounted at: this page is beside it.
const base = new URL(".", location.href).href.replace(/\/$/, "");

const curl = (method, path, body) => {
  const parts = ["curl"];
  if (method !== "get") parts.push("-X", method.toUpperCase());
  parts.push(`${base}${path.replace(/{(\w+)}/g, "$$$1")}`);
  if (body) parts.push("-H 'Content-Type: application/json' -d '{…}'");
  return parts.join(" ");
};

const closed = (title, ...parts) => make("details", "", make("summary", "", ...title), ...parts);

const section = (api, path, method, operation) => {
  const verb = make("span", method.toUpperCase());
  verb.className = "method";
  const body = operation.requestBody?.content?.["application/json"]?.schema;
  const whole = closed([verb, make("code", path), ` ${operation.summary || ""}`]);
  if (operation.description) whole.append(words("p", operation.description));
  whole.append(make("pre", curl(method, path, body)));
  const parameters = (operation.parameters || []).map((one) => ({
    name: one.in === "header" ? `${one.name}:` : one.name,
    schema: one.schema, required: one.required, about: one.description || one.schema.description,
  }));
  if (parameters.length) whole.append(make("h4", "Parameters"), table(parameters));
  if (body) whole.append(make("h4", "Body"), ...shape(api, body));
  for (const [status, answer] of Object.entries(operation.responses || {})) {
    const schema = Object.values(answer.content || {})[0]?.schema;
    whole.append(make("h4", `${status}: ${answer.description}`));
    if (schema) whole.append(...shape(api, schema));
  }
  return whole;
};

const shapes = (api) => {
  const made = make("section", "", make("h2", "shapes"));
  for (const [name, schema] of Object.entries(api.components?.schemas || {})) {
    const whole = closed([make("code", name)], ...shape(api, schema));
    whole.id = name;
    made.append(whole);
  }
  return made;
};

// A link to a shape opens it.
const openNamed = () => {
  const found = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (found?.tagName !== "DETAILS") return;
  found.open = true;
  found.scrollIntoView();
};

fetch("openapi.json").then((answer) => answer.json()).then((api) => {
  document.getElementById("about").replaceWith(words("p", api.info.description));
  const groups = new Map();
  for (const [path, operations] of Object.entries(api.paths))
    for (const [method, operation] of Object.entries(operations)) {
      const tag = (operation.tags || ["other"])[0];
      if (!groups.has(tag)) groups.set(tag, make("section", "", make("h2", tag)));
      groups.get(tag).append(section(api, path, method, operation));
    }
  document.getElementById("operations").replaceChildren(...groups.values(), shapes(api));
  addEventListener("hashchange", openNamed);
  openNamed();
}).catch((error) => {
  document.getElementById("operations").textContent = `The description could not be read: ${error}`;
});
