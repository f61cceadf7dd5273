// The start of every page's scripts.
import { startActions } from "./actions.js";
import { startCopying } from "./copy.js";
import { startFilters } from "./filters.js";
import { startLive } from "./live.js";
import { startSelection } from "./selection.js";
import { startShortcuts } from "./shortcuts.js";
import { startTimes } from "./times.js";

startTimes();
startActions();
startCopying();
startFilters();
startLive();
startSelection();
startShortcuts();

// On a small screen the tabs scroll: the tab of this page is in view.
const tab = document.querySelector(".side [aria-current]");
if (tab) tab.closest("ul").scrollLeft = tab.offsetLeft - tab.closest("ul").clientWidth / 3;

if (document.querySelector("[data-chart]")) {
  const { startCharts } = await import("./charts.js");
  startCharts();
}
if (document.getElementById("key-form")) {
  const { startKeys } = await import("./keys.js");
  startKeys();
}
const OWN_SCRIPTS = { "#bulk": "./bulk.js", "form[data-api]": "./forms.js", "#job-form": "./job_form.js" };
for (const [selector, script] of Object.entries(OWN_SCRIPTS)) {
  if (document.querySelector(selector)) (await import(script)).start();
}
