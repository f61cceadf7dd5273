// Calls the HTTP API with the session of the person who looks at the page.
import { sayOnce } from "./messages.js";

export const root = document.body.dataset.root;

class Problem extends Error {
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
    // The page stays as it is: somebody may have filled in a form.
    sayOnce("You are signed out.", `${root}/sign-in`, "Sign in in another tab, then try again.");
    throw new Problem({ detail: "You are signed out. Sign in in another tab, then try again." }, 401);
  }
  if (!answer.ok) throw new Problem(document || {}, answer.status);
  return document;
}

// The link to a run that a call of the API made; null if it made none.
export const linkToRun = (answer) =>
  answer?.jobId && answer.id ? { address: `${root}/runs/${encodeURIComponent(answer.id)}`, words: "See the run" } : null;
