// Draws the API's description. Everything is set as text, never as HTML.
"use strict";

const make = (name, text, ...children) => {
  const element = document.createElement(name);
  if (text) element.textContent = text;
  element.append(...children);
  return element;
};

const resolve = (api, schema) => {
  let found = schema || {};
  while (found.$ref) found = api.components.schemas[found.$ref.split("/").pop()] || {};
  return found;
};

const kind = (api, schema) => {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
  if (schema.anyOf) return schema.anyOf.map((one) => kind(api, one)).join(" | ");
  if (schema.type === "array") return `list of ${kind(api, schema.items || {})}`;
  return schema.type || "anything";
};

const table = (api, rows) => {
  const body = make("tbody");
  for (const { name, schema, required, about } of rows) {
    const cell = make("td", "", make("code", name + (required ? " *" : "")));
    body.append(make("tr", "", cell, make("td", kind(api, schema)), make("td", about || "")));
  }
  return make("table", "", body);
};

const fields = (api, schema) => {
  const found = resolve(api, schema);
  const needed = new Set(found.required || []);
  return Object.entries(found.properties || {}).map(([name, one]) => ({
    name, schema: one, required: needed.has(name), about: one.description,
  }));
};

// Where the API is mounted: this page stands beside it.
const base = new URL(".", location.href).href.replace(/\/$/, "");

const curl = (method, path, body) => {
  const words = ["curl"];
  if (method !== "get") words.push("-X", method.toUpperCase());
  words.push(`${base}${path.replace(/{(\w+)}/g, "$$$1")}`);
  if (body) words.push("-H 'Content-Type: application/json' -d '{…}'");
  return words.join(" ");
};

const section = (api, path, method, operation) => {
  const summary = make("summary", "", make("span", ""), make("code", path));
  const verb = summary.firstChild;
  verb.className = "method";
  verb.textContent = method.toUpperCase();
  summary.append(` ${operation.summary || ""}`);
  const whole = make("details", "", summary);
  if (operation.description) whole.append(make("p", operation.description));
  const body = operation.requestBody?.content?.["application/json"]?.schema;
  whole.append(make("pre", curl(method, path, body)));
  const parameters = (operation.parameters || []).map((one) => ({
    name: one.in === "header" ? `${one.name}:` : one.name,
    schema: one.schema, required: one.required, about: one.description,
  }));
  if (parameters.length) whole.append(make("h4", "Parameters"), table(api, parameters));
  if (body) whole.append(make("h4", "Body"), table(api, fields(api, body)));
  for (const [status, answer] of Object.entries(operation.responses || {})) {
    const schema = Object.values(answer.content || {})[0]?.schema;
    whole.append(make("h4", `${status}: ${answer.description}`));
    if (schema) whole.append(table(api, fields(api, schema)));
  }
  return whole;
};

fetch("openapi.json").then((answer) => answer.json()).then((api) => {
  document.getElementById("about").textContent = api.info.description;
  const groups = new Map();
  for (const [path, operations] of Object.entries(api.paths))
    for (const [method, operation] of Object.entries(operations)) {
      const tag = (operation.tags || ["other"])[0];
      if (!groups.has(tag)) groups.set(tag, make("section", "", make("h2", tag)));
      groups.get(tag).append(section(api, path, method, operation));
    }
  document.getElementById("operations").replaceChildren(...groups.values());
}).catch((error) => {
  document.getElementById("operations").textContent = `The description could not be read: ${error}`;
});
