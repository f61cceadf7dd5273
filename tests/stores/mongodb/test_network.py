"""Connections that break or slow down under a working scheduler, and TLS."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import Scheduler, State
from mainspring.errors import StoreError, StoreUnavailable
from mainspring.stores.mongodb import MongoStore
from tests.support.network import work_through_outages
from tests.support.servers.mongodb import ReplicaSet, Standalone, with_database
from tests.support.servers.proxy import Line, Proxy


@pytest.fixture(scope="module")
def server() -> Iterator[ReplicaSet]:
    with ReplicaSet(1) as servers:
        yield servers


@pytest.mark.parametrize("line", [Line.CUT, Line.SILENT, Line.HALF_OPEN])
async def test_work_resumes_when_the_connection_recovers(
    server: ReplicaSet, database_name: str, line: Line
) -> None:
    """And nobody loses a lease."""
    async with Proxy(server.primary().port) as proxy:
        url = f"mongodb://{proxy.address}/{database_name}?directConnection=true&timeoutMS=700"
        scheduler = Scheduler(url, poll="100ms", workers=4)
        ended = await work_through_outages(scheduler, proxy, line, outages=2)
    assert {(run.state, run.attempt) for run in ended} == {(State.SUCCEEDED, 1)}


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority of our own, and a server's and a client's certificate by it."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("certificates are made with openssl, which is not on the PATH")
    place = tmp_path_factory.mktemp("tls")

    def run(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], cwd=place, check=True, capture_output=True)

    key = ("-newkey", "rsa:2048", "-nodes")
    run(
        "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca", "-days", "2"
    )
    (place / "names").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("server", "client"):
        run(
            "req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/O=x/CN={name}"
        )
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
        run("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.crt", "-days", "2")
        both = (place / f"{name}.crt").read_text() + (place / f"{name}.key").read_text()
        (place / f"{name}.pem").write_text(both)
    return place


async def test_tls_options_pass_through_the_url(certificates: Path) -> None:
    """Encrypted, the server known by our authority, the client by its own certificate."""
    wants = ["--tlsMode", "requireTLS", "--tlsCAFile", str(certificates / "ca.pem")]
    wants += ["--tlsCertificateKeyFile", str(certificates / "server.pem")]
    with Standalone(arguments=wants) as servers:
        plain = with_database(servers.url, "jobs") + "?timeoutMS=2000"
        trusted = f"{plain}&tls=true&tlsCAFile={certificates / 'ca.pem'}"
        store = MongoStore(f"{trusted}&tlsCertificateKeyFile={certificates / 'client.pem'}")
        with pytest.raises(StoreError, match="neither a member of a replica set"):
            await store.open()  # the server answers
        for refused in (plain, f"{plain}&tls=true"):
            with pytest.raises(StoreUnavailable, match="no MongoDB server answers"):
                await MongoStore(refused).open()
