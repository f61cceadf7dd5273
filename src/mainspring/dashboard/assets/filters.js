// The filters of a list: a choice takes effect at once, and empty fields are left out of the address.
// They work as soon as the page has loaded: a choice before that would have no effect.
export function startFilters() {
  const form = document.getElementById("filters");
  if (!form) return;
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
