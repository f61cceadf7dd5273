// The form that creates an API key. The key is shown once.
import { call, root } from "./api.js";
import { refresh } from "./live.js";
import { say } from "./messages.js";

export function startKeys() {
  const form = document.getElementById("key-form");
  const error = document.getElementById("key-name-error");
  form.querySelector("button").disabled = false; // without this script it would send nothing
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    error.textContent = "";
    const { name, scope, expiresIn } = Object.fromEntries(new FormData(form));
    try {
      const made = await call("POST", "api/v1/keys", { name, scope, expiresIn: expiresIn || null });
      document.getElementById("made-key-text").textContent = made.key;
      document.getElementById("made-key").hidden = false;
      form.reset();
      if ("signsIn" in form.dataset) await signIn(made.key);
      refresh();
    } catch (problem) {
      const field = problem.fields.find((one) => one.field === "name");
      if (field) error.textContent = field.message;
      else say(problem.message, "error");
    }
  });
}

// The first key ends the time without keys: this browser goes on with it.
async function signIn(key) {
  await fetch(`${root}/api/v1/session`, { method: "POST", headers: { Authorization: `Bearer ${key}` } });
  delete document.getElementById("key-form").dataset.signsIn;
}
