// Sets light or dark before the page is painted. Loaded in the head, so that nothing flashes.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("mainspring-theme");
  } catch {
    // Storage may be forbidden: then the system's choice counts.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
