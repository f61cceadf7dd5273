// Draws charts with uPlot: <div data-chart="throughput" data-source="api/v1/…" data-keep>.
import { call } from "./api.js";

const drawn = new Map();

export async function startCharts() {
  await loadUplot();
  const all = [...document.querySelectorAll("[data-chart]")];
  const observer = new ResizeObserver((entries) => {
    for (const { target, contentRect } of entries) {
      drawn.get(target)?.setSize({ width: contentRect.width, height: heightOf(target) });
    }
  });
  for (const one of all) observer.observe(one);
  const draw = () => {
    const sources = new Map();
    return Promise.all(all.map((one) => update(one, sources)));
  };
  await draw();
  document.addEventListener("mainspring:refresh", draw);
  document.addEventListener("mainspring:theme", () => {
    for (const [one, chart] of drawn) {
      chart.destroy();
      drawn.delete(one);
    }
    draw();
  });
}

// uPlot makes a number format of navigator.language when it is loaded. On a machine without a locale
// that is "en-US@posix", which is no valid name of a language, and uPlot would throw.
function checkLanguage() {
  try {
    Intl.NumberFormat(navigator.language);
  } catch {
    Object.defineProperty(navigator, "language", { value: "en-US" });
  }
}

function loadUplot() {
  checkLanguage();
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = document.body.dataset.assets.replace("app.js", "vendor/uplot.min.js");
    script.addEventListener("load", resolve);
    script.addEventListener("error", reject);
    document.head.append(script);
  });
}

// Charts with the same source share one request.
function read(sources, source) {
  if (!sources.has(source)) sources.set(source, call("GET", source));
  return sources.get(source);
}

async function update(one, sources) {
  let history;
  try {
    history = await read(sources, one.dataset.source);
  } catch {
    return; // the page itself says that the service is away
  }
  const { series, data } = SHAPES[one.dataset.chart](history);
  if (drawn.has(one)) {
    drawn.get(one).setData(data);
    return;
  }
  one.replaceChildren();
  drawn.set(one, new window.uPlot(options(one, series), data, one));
}

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const seconds = (value) => {
  if (value == null) return "—";
  if (value > 0 && value < 0.00095) return `${Math.max(value * 1000, 0.1).toFixed(1)}\u202fms`;
  if (value < 1) return `${(value * 1000).toFixed(0)}\u202fms`;
  return value < 60 ? `${value.toFixed(1)}\u202fs` : `${(value / 60).toFixed(1)}\u202fmin`;
};
const count = (value) => (value == null ? "—" : value.toLocaleString("en"));

const SHAPES = {
  throughput: ({ points }) => {
    const failed = points.map((one) => one.failed);
    const all = points.map((one) => one.failed + one.succeeded);
    return {
      series: [
        { label: "Ended", stroke: color("green"), fill: `${color("green")}33`, value: (_, v) => count(v) },
        { label: "Failed", stroke: color("red"), fill: `${color("red")}55`, value: (_, v) => count(v) },
      ],
      data: [points.map((one) => Date.parse(one.time) / 1000), all, failed],
    };
  },
  durations: ({ points }) => ({
    series: [
      { label: "Duration p95", stroke: color("blue"), value: (_, v) => seconds(v) },
      { label: "Lateness p95", stroke: color("amber"), value: (_, v) => seconds(v) },
    ],
    data: [
      points.map((one) => Date.parse(one.time) / 1000),
      points.map((one) => (one.durationP95 === null ? null : one.durationP95 / 1000)),
      points.map((one) => (one.latenessP95 === null ? null : one.latenessP95 / 1000)),
    ],
  }),
};

// The legend has two lines where the chart is narrow.
const heightOf = (one) => one.clientHeight - (one.clientWidth < 420 ? 44 : 24);

const two = (number) => String(number).padStart(2, "0");

// Hours and minutes, and the date where the axis spans days.
function clock(moments, step) {
  return moments.map((moment) => {
    const time = new Date(moment * 1000);
    const day = `${two(time.getMonth() + 1)}-${two(time.getDate())}`;
    const midnight = time.getHours() === 0 && time.getMinutes() === 0;
    return step >= 86_400 || midnight ? day : `${two(time.getHours())}:${two(time.getMinutes())}`;
  });
}

const fullTime = (moment) => {
  if (moment == null) return "";
  const time = new Date(moment * 1000);
  const day = `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())}`;
  return `${day} ${two(time.getHours())}:${two(time.getMinutes())}`;
};

// A line needs two points: a series that has only one, as in the first hour, shows it as a dot.
const isSinglePoint = (chart, index) => chart.data[index].filter((value) => value != null).length === 1;

function options(one, series) {
  const grid = { stroke: color("border"), width: 1 };
  const axis = { stroke: color("muted"), grid, ticks: { ...grid, size: 4 }, font: "12px system-ui" };
  const format = one.dataset.chart === "durations" ? seconds : count;
  return {
    width: one.clientWidth,
    height: heightOf(one),
    cursor: { y: false },
    legend: { live: true },
    axes: [
      { ...axis, values: (_, moments, __, ___, step) => clock(moments, step) },
      { ...axis, size: 60, values: (_, values) => values.map(format) },
    ],
    scales: { y: { range: (_, low, high) => [0, Math.max(high ?? 0, 1e-3) * 1.1] } },
    series: [{ value: (_, moment) => fullTime(moment) }, ...series.map((each) => ({ width: 1.5, spanGaps: true, points: { show: isSinglePoint, size: 6, fill: each.stroke }, ...each }))],
  };
}
