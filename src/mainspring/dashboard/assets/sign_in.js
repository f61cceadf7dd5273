// Exchanges an API key for the cookie of a session, and goes to the page that was asked for.
const root = document.body.dataset.root;
const form = document.getElementById("sign-in");
const error = document.getElementById("key-error");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const key = form.elements.key.value.trim();
  const button = form.querySelector("button");
  button.disabled = true;
  error.textContent = "";
  try {
    const answer = await fetch(`${root}/api/v1/session`, {
      method: "POST",
      headers: { Authorization: `Bearer ${key}` },
    });
    if (answer.ok || answer.status === 409) {
      location.assign(`${root}/${wanted()}`);
      return;
    }
    const problem = await answer.json();
    error.textContent = problem.detail;
  } catch {
    error.textContent = "The service does not answer. Is it running?";
  }
  button.disabled = false;
  form.elements.key.select();
});

// Only pages of this service: another address in `next` would be a trap.
function wanted() {
  const next = new URLSearchParams(location.search).get("next") || "";
  return /^[a-z-]*(\/[^/\\]*)*(\?.*)?$/.test(next) && !next.startsWith("/") ? next : "";
}
