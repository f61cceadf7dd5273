// The filters of a list: a choice takes effect at once, and empty fields are left out of the address.
export function start() {
  const form = document.getElementById("filters");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const filled = [...new FormData(form)].filter(([, value]) => value !== "");
    const query = new URLSearchParams(filled).toString();
    location.assign(form.action + (query ? `?${query}` : ""));
  });
  form.addEventListener("change", (event) => {
    if (event.target.matches("[data-submits]")) form.requestSubmit();
  });
}
