// Calls the HTTP API with the session of the person who looks at the page.
export const root = document.body.dataset.root;

export class Problem extends Error {
  constructor(document, status) {
    super(document.detail || document.title || `The service answered ${status}.`);
    this.status = status;
    this.fields = document.errors || [];
  }
}

// Returns the answer's JSON, or null if it has none. Throws a Problem that says what went wrong.
export async function call(method, path, body, more = {}) {
  const headers = { Accept: "application/json", ...more };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(`${root}/${path}`, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
    });
  } catch {
    throw new Problem({ detail: "The service does not answer. Is it running?" }, 0);
  }
  const text = await answer.text();
  let document = null;
  try {
    document = text ? JSON.parse(text) : null;
  } catch {
    // Not JSON: a proxy may have answered.
  }
  if (answer.status === 401) {
    const here = location.pathname.slice(root.length + 1) + location.search;
    location.assign(`${root}/sign-in?next=${encodeURIComponent(here)}`);
  }
  if (!answer.ok) throw new Problem(document || {}, answer.status);
  return document;
}
