// Keeps <time> elements true: how far away they are, or the moment in the browser's zone.
const UNITS = [
  [86_400, "d", 2],
  [3_600, "h", 1],
  [60, "min", 1],
  [1, "s", 1],
];
const DAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const two = (number) => String(number).padStart(2, "0");
const here = Intl.DateTimeFormat().resolvedOptions().timeZone;

export function startTimes() {
  update();
  setInterval(update, 1000);
  document.addEventListener("htmx:afterSettle", update);
}

function update() {
  const now = Date.now();
  for (const one of document.querySelectorAll("time[datetime]")) {
    const moment = new Date(one.dateTime);
    const text = "clock" in one.dataset ? (one.dataset.clock === "wall" ? wall(moment, now) : inZone(moment, here)) : relative((moment - now) / 1000);
    if (one.textContent !== text) one.textContent = text;
    if (!one.dataset.titled) {
      one.dataset.titled = "yes";
      one.title = zones(moment, one.dataset.zone);
    }
  }
}

export function relative(seconds) {
  const far = Math.abs(seconds);
  if (far < 1) return "now";
  for (const [size, unit, least] of UNITS) {
    if (far >= size * least) {
      const text = `${Math.floor(far / size)}\u202f${unit}`;
      return seconds > 0 ? `in ${text}` : `${text} ago`;
    }
  }
  return "now";
}

export function inZone(moment, zone) {
  const parts = new Intl.DateTimeFormat("en-CA", {
    timeZone: zone,
    hourCycle: "h23",
    year: "numeric",
    month: "2-digit",
    day: "2-digit",
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
  }).formatToParts(moment);
  const part = Object.fromEntries(parts.map(({ type, value }) => [type, value]));
  return `${part.year}-${part.month}-${part.day} ${part.hour}:${part.minute}:${part.second}`;
}

// As `wall` of formats.py writes it: Tue 17 Nov 09:00.
function wall(moment, now) {
  const year = moment.getFullYear() === new Date(now).getFullYear() ? "" : ` ${moment.getFullYear()}`;
  const [day, month] = [DAYS[moment.getDay()], MONTHS[moment.getMonth()]];
  const seconds = moment.getSeconds() ? `:${two(moment.getSeconds())}` : "";
  return `${day} ${two(moment.getDate())} ${month}${year} ${two(moment.getHours())}:${two(moment.getMinutes())}${seconds}`;
}

// The moment in UTC, in the job's zone and in the browser's.
function zones(moment, jobZone) {
  const names = new Set(["UTC", jobZone, here].filter(Boolean));
  return [...names].map((zone) => `${inZone(moment, zone)} ${zone}`).join("\n");
}
