// Run by compose.yaml, each time it starts: makes the replica set the first time, and then waits
// until it has a primary.
const config = {
  "_id": "rs0",
  "members": [
    { "_id": 0, "host": "mongo1:27017" },
    { "_id": 1, "host": "mongo2:27017" },
    { "_id": 2, "host": "mongo3:27017" }
  ]
};

try {
  rs.status();
} catch (error) {
  if (error.codeName !== "NotYetInitialized") throw error;
  rs.initiate(config);
}
while (!rs.status().members.some((member) => member.stateStr === "PRIMARY")) sleep(200);
