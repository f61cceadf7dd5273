// Keyboard shortcuts, and the button for light and dark.
import { root } from "./api.js";

const PAGES = { o: "", j: "jobs", r: "runs", t: "timeline", l: "load", d: "dead-letters", w: "workers" };
const GO_MS = 1500;

let goUntil = 0;

export function startShortcuts() {
  document.getElementById("help").addEventListener("click", showHelp);
  document.getElementById("theme").addEventListener("click", changeTheme);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (document.querySelector("dialog[open]")) return;
    if (press(event.key)) event.preventDefault();
  });
}

const isTyping = (target) => target.closest("input, textarea, select, [contenteditable]") !== null;

function press(key) {
  if (performance.now() < goUntil && key in PAGES) {
    location.assign(`${root}/${PAGES[key]}`);
    return true;
  }
  goUntil = key === "g" ? performance.now() + GO_MS : 0;
  if (key === "?") showHelp();
  else if (key === "t") changeTheme();
  else if (key === "l") document.getElementById("live").click();
  else if (key === "n") location.assign(`${root}/new-job`);
  else if (key === "/") {
    const search = document.querySelector("input[type=search]");
    if (search === null) return false;
    search.focus();
  } else return false;
  return true;
}

function showHelp() {
  document.getElementById("shortcuts").showModal();
}

function changeTheme() {
  const { documentElement: page } = document;
  const isDark = page.dataset.theme
    ? page.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  page.dataset.theme = isDark ? "light" : "dark";
  try {
    localStorage.setItem("mainspring-theme", page.dataset.theme);
  } catch {
    // Storage may be forbidden: the choice lasts for this page.
  }
  document.dispatchEvent(new CustomEvent("mainspring:theme"));
}
