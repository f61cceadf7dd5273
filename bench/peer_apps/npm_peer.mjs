// node npm_peer.mjs PEER URL NOTES: works, and obeys lines on its input: `work`, `send SENT`, `schedule JOBS`.
import { appendFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { MongoClient } from "mongodb";

const [peer, url, notes] = process.argv.slice(2);
const WORKERS = { agenda: 100, "mongo-job-scheduler": 20 }; // the best of those tried
const client = new MongoClient(url, { maxPoolSize: WORKERS[peer] + 10, writeConcern: { w: "majority" } });
await client.connect();
const db = client.db();

const note = (sent) => appendFileSync(notes, new Uint8Array(new Float64Array([sent, Date.now() / 1000]).buffer));
const handle = (data) => note("sent" in data ? data.sent : Math.floor(Date.now() / 1000));

async function mongoJobScheduler() {
  const { Scheduler, MongoJobStore } = await import("mongo-job-scheduler");
  const store = new MongoJobStore(db);
  await new Promise((resolve) => setTimeout(resolve, 1000)); // it makes its indexes unawaited
  const scheduler = new Scheduler({
    store, workers: WORKERS[peer], pollIntervalMs: 10, handler: async (job) => handle(job.data),
  });
  return {
    work: () => scheduler.start(),
    send: (sent) => scheduler.schedule({ name: "work", data: { sent } }),
    schedule: (n) => scheduler.schedule({ name: `tick-${n}`, data: {}, repeat: { cron: "* * * * * *" } }),
  };
}

async function agenda() {
  const { Agenda } = await import("agenda");
  const { MongoBackend } = await import("@agendajs/mongo-backend");
  const workers = WORKERS[peer];
  const scheduler = new Agenda({
    backend: new MongoBackend({ mongo: db }), processEvery: 100,
    maxConcurrency: workers, defaultConcurrency: workers, defaultLockLimit: 0, lockLimit: 0,
  });
  for (const name of ["work", "tick"]) scheduler.define(name, async (job) => handle(job.attrs.data));
  await scheduler.ready;
  return {
    work: () => scheduler.start(),
    send: (sent) => scheduler.now("work", { sent }),
    schedule: (n) => scheduler.create("tick", { n }).repeatEvery("* * * * * *").save(),
  };
}

const app = await { "mongo-job-scheduler": mongoJobScheduler, agenda }[peer]();
process.on("SIGTERM", () => process.exit(0));
const commands = {
  work: () => app.work(),
  send: (sent) => app.send(sent),
  schedule: async (jobs) => { for (let n = 0; n < jobs; n++) await app.schedule(n); },
};
for await (const line of createInterface({ input: process.stdin })) {
  const [command, number] = line.split(" ");
  await commands[command](Number(number));
  process.stdout.write("\n");
}
process.exit(0);
