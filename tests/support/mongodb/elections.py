"""Faults of a replica set after which another primary is elected."""

from __future__ import annotations

from tests.support.servers.mongodb import ReplicaSet


def kill_primary(servers: ReplicaSet) -> None:
    servers.primary().kill()
    servers.primary()
    servers.heal()


def step_down(servers: ReplicaSet) -> None:
    servers.step_down()
    servers.wait_until_healthy()
