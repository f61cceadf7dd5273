// The start of every page's scripts.
import { startActions } from "./actions.js";
import { startLive } from "./live.js";
import { startShortcuts } from "./shortcuts.js";
import { startTimes } from "./times.js";

startTimes();
startActions();
startLive();
startShortcuts();

if (document.querySelector("[data-chart]")) {
  const { startCharts } = await import("./charts.js");
  startCharts();
}
