// Buttons that call the API: <button data-action="POST" data-path="api/v1/…">.
//
//   data-confirm  a question that is asked first
//   data-body     JSON to send
//   data-done     what to say when it is done
//   data-then     the page to go to when it is done; without it this page is updated
import { call, linkToRun, root } from "./api.js";
import { hold, refresh } from "./live.js";
import { ask, say } from "./messages.js";

export function startActions() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-action]");
    if (button && !button.disabled) act(button);
  });
}

async function act(button) {
  const { action, path, confirm, body, done, then } = button.dataset;
  if (confirm && !(await ask(confirm, button.textContent.trim()))) return;
  button.disabled = true;
  if (then !== undefined) hold(true);
  button.setAttribute("aria-busy", "true");
  try {
    const answer = await call(action, path, body === undefined ? undefined : JSON.parse(body));
    if (done) say(done, "done", path.endsWith("/trigger") ? linkToRun(answer) : null);
    if (then !== undefined) location.assign(`${root}/${then}`);
    else refresh();
  } catch (problem) {
    hold(false);
    if (problem.status !== 401) say(problem.message, "error"); // that is said already
  } finally {
    button.disabled = false;
    button.removeAttribute("aria-busy");
  }
}
