// node drain.mjs PEER URL RUNS CONCURRENCY POLL_MS: enqueue no-ops, then drain them; prints jobs/s.
import { MongoClient } from "mongodb";

const [peer, url, runs, concurrency, poll] = [
  process.argv[2], process.argv[3], ...process.argv.slice(4).map(Number),
];
const client = new MongoClient(url, { maxPoolSize: concurrency + 10, writeConcern: { w: "majority" } });
await client.connect();
const db = client.db(`npm_${peer.replaceAll("-", "_")}_${process.pid}`);

let done = 0;
let drained;
const all = new Promise((resolve) => { drained = resolve; });
const ended = () => { if (++done === runs) drained(); };

async function mongoJobScheduler() {
  const { Scheduler, MongoJobStore } = await import("mongo-job-scheduler");
  const store = new MongoJobStore(db);
  await new Promise((resolve) => setTimeout(resolve, 1000)); // it makes its indexes unawaited
  const scheduler = new Scheduler({
    store, workers: concurrency, pollIntervalMs: poll, handler: async () => {},
  });
  scheduler.on("job:complete", ended);
  await scheduler.scheduleBulk(
    Array.from({ length: runs }, (_, n) => ({ name: "noop", data: { n } })),
  );
  return () => scheduler.start();
}

async function agenda() {
  const { Agenda } = await import("agenda");
  const { MongoBackend } = await import("@agendajs/mongo-backend");
  const scheduler = new Agenda({
    backend: new MongoBackend({ mongo: db }), processEvery: poll,
    maxConcurrency: concurrency, defaultConcurrency: concurrency, defaultLockLimit: 0, lockLimit: 0,
  });
  scheduler.define("noop", async () => {});
  scheduler.on("complete", ended);
  await scheduler.ready;
  let next = 0; // it has no bulk insert
  await Promise.all(Array.from({ length: 50 }, async () => {
    while (next < runs) await scheduler.now("noop", { n: next++ });
  }));
  return () => scheduler.start();
}

const start = await { "mongo-job-scheduler": mongoJobScheduler, agenda }[peer]();
const began = performance.now();
await start();
await all;
const rate = runs / ((performance.now() - began) / 1000);
await db.dropDatabase();
console.log(JSON.stringify({ rate }));
process.exit(0);
