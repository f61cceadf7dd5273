"""MongoDB on loopback: a server alone, a replica set, a sharded cluster.

    with ReplicaSet() as servers:
        MongoClient(servers.url)
        servers.primary().kill()
        servers.primary()  # waits for the next one
        servers.heal()

Small caches and oplogs, and an election after two seconds without a primary (MongoDB's own default
is ten, `election_timeout` sets it): quick tests, but also an election now and then on a machine
that is busy. What must not be disturbed asks for ten; starting takes no longer for it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from tests.support.servers.binaries import binaries
from tests.support.servers.runs import current_run
from tests.support.servers.server import (
    Client,
    Document,
    Server,
    wait_for,
)
from tests.support.startable import Startable


class Mongod(Server):
    def __init__(self, place: Path, arguments: Sequence[str] = (), key: Path | None = None) -> None:
        command = [
            *(str(binaries().mongod), "--quiet", "--dbpath", str(place / "db")),
            *("--wiredTigerCacheSizeGB", "0.25"),
            *("--wiredTigerEngineConfigString", "log=(file_max=16MB,prealloc=false)"),
            *("--setParameter", "diagnosticDataCollectionEnabled=false"),
            *("--setParameter", "shutdownTimeoutMillisForSignaledShutdown=100"),
            *arguments,
        ]
        super().__init__(place, command, key=key)
        (place / "db").mkdir()


class Mongos(Server):
    def __init__(
        self, place: Path, config: str, environment: Mapping[str, str] | None = None
    ) -> None:
        command = [
            *(str(binaries().mongos), "--quiet", "--configdb", config),
            *("--setParameter", "mongosShutdownTimeoutMillisForSignaledShutdown=100"),
        ]
        super().__init__(place, command, environment=environment)


class Topology(Startable):
    """Servers that are started and ended together."""

    kind: str

    def __init__(self, *, auth: bool = False, place: Path | None = None) -> None:
        self.place = place or current_run().folder(self.kind)
        self.key: Path | None = None
        if auth:
            self.key = self.place / "key"
            if not self.key.exists():
                self.key.touch(mode=0o600)
                self.key.write_text(secrets.token_hex(32))

    @property
    def servers(self) -> Sequence[Server]:
        raise NotImplementedError

    @property
    def url(self) -> str:
        """Where clients connect. With `auth` they also need a user: see `add_user`."""
        raise NotImplementedError

    def stop(self) -> None:
        """End every process, drop all data. Logs stay until a few sessions later."""
        for server in self.servers:
            server.discard()

    @contextmanager
    def client(self) -> Iterator[Client]:
        """A client of the whole with every right, also under `auth`."""
        with MongoClient[Document](
            self.url, serverSelectionTimeoutMS=20_000, **self.servers[0].credentials()
        ) as client:
            yield client

    def add_user(self, name: str, password: str, *roles: Document | str) -> str:
        """A user with these roles alone. Gives the URL that connects as it.

        A role is a name, over the `admin` database, or `{"role": …, "db": …}`.
        """
        with self.client() as client:
            client.admin.command("createUser", name, pwd=password, roles=list(roles))
        scheme, _, rest = self.url.partition("://")
        sign = "&" if "?" in rest else "?"
        return f"{scheme}://{quote(name, '')}:{quote(password, '')}@{rest}{sign}authSource=admin"


class Standalone(Topology):
    """A mongod alone: no transactions, no change streams."""

    kind = "standalone"

    def __init__(self, arguments: Sequence[str] = ()) -> None:
        super().__init__()
        self.server = Mongod(self.place / "mongod", arguments)

    @property
    def servers(self) -> Sequence[Server]:
        return [self.server]

    @property
    def url(self) -> str:
        return f"mongodb://{self.server.address}/"

    def start(self) -> Self:
        self.server.launch()
        self.server.wait_until_listening()
        return self


class ReplicaSet(Topology):
    kind = "replica-set"

    def __init__(
        self,
        members: int = 3,
        *,
        name: str = "rs",
        auth: bool = False,
        election_timeout: float = 2.0,
        durable: bool = True,
        arguments: Sequence[str] = (),
        place: Path | None = None,
    ) -> None:
        """`durable=False`: a majority of members acknowledges before it has written its journal."""
        super().__init__(auth=auth, place=place)
        self.name = name
        self.durable = durable
        self.config_server = "--configsvr" in arguments
        self.election_timeout = election_timeout
        self.members = [
            Mongod(
                self.place / f"{name}-{number}",
                ["--replSet", name, "--oplogSize", "64", *arguments],
                self.key,
            )
            for number in range(members)
        ]

    @property
    def servers(self) -> Sequence[Server]:
        return self.members

    @property
    def addresses(self) -> str:
        return ",".join(member.address for member in self.members)

    @property
    def url(self) -> str:
        return f"mongodb://{self.addresses}/?replicaSet={self.name}"

    def start(self) -> Self:
        self.launch()
        self.initiate()
        self.wait_until_elected()
        return self

    def launch(self) -> None:
        for member in self.members:
            member.launch()

    def initiate(self) -> None:
        """Tell the members of each other. They elect a primary soon after."""
        for member in self.members:
            member.wait_until_listening()
        configuration: Document = {
            "_id": self.name,
            "writeConcernMajorityJournalDefault": self.durable,
            "members": [
                {"_id": number, "host": member.address}
                for number, member in enumerate(self.members)
            ],
            "settings": {
                "electionTimeoutMillis": int(self.election_timeout * 1000),
                "heartbeatIntervalMillis": int(self.election_timeout * 250),
            },
        }
        if self.config_server:
            configuration["configsvr"] = True
        # With `auth` there is no user yet, and the server lets loopback do this one thing.
        with MongoClient[Document](
            "127.0.0.1", self.members[0].port, directConnection=True
        ) as client:
            client.admin.command("replSetInitiate", configuration)

    def wait_until_elected(self) -> None:
        """The first primary, without waiting for `election_timeout` to pass; then health."""

        def elected() -> bool:
            if len(self.secondaries()) == len(self.members):
                self.members[0].command("replSetStepUp")
            return self._primary() is not None

        wait_for(f"the first primary of {self.name}", elected, self.members)
        self.wait_until_healthy()

    # Who is what

    def primary(self) -> Mongod:
        """The primary; waits for an election if there is none."""
        return wait_for(f"a primary of {self.name}", self._primary, self.members)

    def _primary(self) -> Mongod | None:
        terms: dict[Any, Mongod] = {}
        for member in self.members:
            said = hello(member)
            if said.get("isWritablePrimary"):
                terms[said["electionId"]] = member
        return terms[max(terms)] if terms else None  # a resumed one may not know it was replaced

    def secondaries(self) -> list[Mongod]:
        return [member for member in self.members if hello(member).get("secondary")]

    def wait_until_healthy(self) -> None:
        """Until there is a primary, and every other member that can answer follows it.

        To follow is to know of something committed in the primary's term. A member that has only
        just synced and does not aborts for good if it must roll back.
        """

        def healthy() -> bool:
            primary = self._primary()
            if primary is None:
                return False
            able = [member for member in self.members if member.answers()]
            term = primary.command("replSetGetStatus")["term"]
            return len(self.secondaries()) == len(able) - 1 and all(
                committed_term(member) == term for member in able
            )

        wait_for(f"{self.name} to be healthy", healthy, self.members)

    # What befalls it

    def step_down(self, seconds: int = 10) -> Mongod:
        """The primary hands over in good order and will not be it again so soon. Gives the next."""
        old = self.primary()
        old.command("replSetStepDown", seconds, secondaryCatchUpPeriodSecs=max(1, seconds // 2))

        def successor() -> Mongod | None:
            found = self._primary()
            return None if found is old else found

        return wait_for(f"a successor of {old}", successor, self.members)

    def heal(self) -> None:
        """Resume the frozen, restart the dead, wait until all is well."""
        for member in self.members:
            if member.frozen:
                member.resume()
            if not member.alive():
                member.launch()
        for member in self.members:
            member.wait_until_listening()
        self.wait_until_healthy()


class ShardedCluster(Topology):
    """Shards and a config server, each a replica set of its own, behind a router (mongos).

    The balancer is off: chunks move when `move_chunk` says so.
    """

    kind = "sharded"

    def __init__(
        self,
        shards: int = 2,
        *,
        members: int = 1,
        election_timeout: float = 2.0,
    ) -> None:
        super().__init__()

        def replica_set(name: str, role: str, members: int) -> ReplicaSet:
            return ReplicaSet(
                members,
                name=name,
                election_timeout=election_timeout,
                arguments=[role],
                place=self.place,
            )

        self.config = replica_set("config", "--configsvr", 1)
        self.shards = [replica_set(f"shard{n}", "--shardsvr", members) for n in range(shards)]
        self.routers: list[Mongos] = []

    @property
    def servers(self) -> Sequence[Server]:
        sets = [self.config, *self.shards]
        return [*self.routers, *(member for one in sets for member in one.members)]

    @property
    def url(self) -> str:
        return f"mongodb://{self.routers[0].address}/"

    def start(self) -> Self:
        sets = [self.config, *self.shards]
        for one in sets:
            one.launch()
        for one in sets:
            one.initiate()
        self.config.wait_until_elected()
        router = self.add_router()
        for shard in self.shards:
            shard.wait_until_elected()
            router.command("addShard", f"{shard.name}/{shard.addresses}", name=shard.name)
        router.command("balancerStop")
        return self

    def add_router(self, environment: Mapping[str, str] | None = None) -> Mongos:
        """One more mongos, perhaps with an environment of its own (a clock that is off)."""
        router = Mongos(
            self.place / f"router{len(self.routers)}",
            f"{self.config.name}/{self.config.addresses}",
            environment,
        )
        self.routers.append(router)
        router.launch()
        router.wait_until_listening()
        wait_for(f"{router} to answer", lambda: router.command("ping"), [router])
        return router

    # Sharding

    def shard(self, namespace: str) -> None:
        """Shard a collection, `database.collection`, by the hash of its ids."""
        self.routers[0].command("shardCollection", namespace, key={"_id": "hashed"})

    def chunks(self, namespace: str) -> list[Document]:
        """The chunks of a collection in order: their `min`, `max` and `shard`."""
        config = self.routers[0].client().config
        collection = config.collections.find_one({"_id": namespace})
        assert collection is not None, f"{namespace} is not sharded"
        return list(config.chunks.find({"uuid": collection["uuid"]}).sort("min"))

    def move_chunk(self, namespace: str, chunk: Document) -> None:
        """Move a chunk to the next shard; returns when it is there."""
        names = [shard.name for shard in self.shards]
        target = names[(names.index(chunk["shard"]) + 1) % len(names)]
        bounds = {"min": chunk["min"], "max": chunk["max"]}
        self.routers[0].command("moveRange", namespace, **bounds, toShard=target)


def hello(server: Server) -> Document:
    """What a server says about itself, or nothing if it cannot."""
    if not server.answers():
        return {}
    try:
        return server.command("hello")
    except PyMongoError:
        return {}


def committed_term(member: Mongod) -> int:
    """The term of the last majority-committed write that a member knows of."""
    return int(member.command("replSetGetStatus")["optimes"]["lastCommittedOpTime"]["t"])


def with_database(url: str, name: str) -> str:
    """A server's URL with a database in it."""
    head, sign, options = url.partition("?")
    return f"{head.rstrip('/')}/{name}{sign}{options}"
