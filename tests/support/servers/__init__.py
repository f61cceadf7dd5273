"""Real servers for tests: fetched once, checked, started on loopback, and never left behind.

    mongodb.py    Mongod, ReplicaSet, ShardedCluster
    seaweedfs.py  SeaweedFs, a server that speaks S3
    azurite.py    Azurite, an emulator of Azure's storage, for `make chaos`
    fixtures.py   the same, shared by a whole pytest session and all its xdist workers
    binaries.py   where mongod and mongos come from, and how programs are fetched
    runs.py       who uses which processes, and what a crashed session left

`python -m tests.support.servers fetch` fetches them all.
"""
