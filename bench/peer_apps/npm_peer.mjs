// node npm_peer.mjs PEER URL NOTES: works, and obeys lines on its input: `work`, `send SENT`, `schedule JOBS`.
import { appendFileSync } from "node:fs";
import { createInterface } from "node:readline";

const [peer, url, notes] = process.argv.slice(2);
const WORKERS = { agenda: 100, "mongo-job-scheduler": 20, "graphile-worker": 100, "pg-boss": 1000 }; // the best of those tried
const workers = WORKERS[peer];

async function database() {
  const { MongoClient } = await import("mongodb");
  const client = new MongoClient(url, { maxPoolSize: workers + 10, writeConcern: { w: "majority" } });
  await client.connect();
  return client.db();
}

const note = (sent) => appendFileSync(notes, new Uint8Array(new Float64Array([sent, Date.now() / 1000]).buffer));
const handle = (data) => note("sent" in data ? data.sent : Math.floor(Date.now() / 1000));

async function mongoJobScheduler() {
  const { Scheduler, MongoJobStore } = await import("mongo-job-scheduler");
  const store = new MongoJobStore(await database());
  await new Promise((resolve) => setTimeout(resolve, 1000)); // it makes its indexes unawaited
  const scheduler = new Scheduler({
    store, workers, pollIntervalMs: 10, handler: async (job) => handle(job.data),
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
  const scheduler = new Agenda({
    backend: new MongoBackend({ mongo: await database() }), processEvery: 100,
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

async function graphileWorker() {
  const { run, makeWorkerUtils } = await import("graphile-worker");
  const utils = await makeWorkerUtils({ connectionString: url });
  await utils.migrate();
  const preset = {
    worker: {
      connectionString: url, concurrentJobs: workers, maxPoolSize: 20, pollInterval: 1000,
      localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0,
    },
  };
  return {
    work: () => run({ preset, noHandleSignals: true, taskList: { work: async (data) => handle(data) } }),
    send: (sent) => utils.addJob("work", { sent }),
  };
}

async function pgBoss() {
  const { default: PgBoss } = await import("pg-boss");
  const boss = new PgBoss({ connectionString: url, max: 20 });
  await boss.start();
  await boss.createQueue("work");
  const options = { batchSize: workers, pollingIntervalSeconds: 0.5 };
  return {
    work: () => boss.work("work", options, async (jobs) => jobs.forEach((job) => handle(job.data))),
    send: (sent) => boss.send("work", { sent }),
  };
}

const peers = { "mongo-job-scheduler": mongoJobScheduler, agenda, "graphile-worker": graphileWorker, "pg-boss": pgBoss };
const app = await peers[peer]();
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
