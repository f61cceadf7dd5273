"""10,000 malformed requests at a real service: no 5xx, nothing leaks, and it is well afterwards."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.malformed_requests import send_malformed_requests
from tests.support.service import Serve
from tests.support.service import serve as serve

COUNT = 10_000
GROWTH_MIB = 64


def resident_mib(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def test_ten_thousand_malformed_requests(serve: Serve) -> None:
    served = serve()
    with served.client() as client:
        client.post(
            "/api/v1/jobs", json={"id": "known", "schedule": None, "endpoint": "https://a.example"}
        )
    send_malformed_requests(served.url, 0, 500)
    before = resident_mib(served.popen.pid)
    assert send_malformed_requests(served.url, 1, COUNT) == []
    assert resident_mib(served.popen.pid) - before < GROWTH_MIB
    with served.client() as client:
        assert client.get("/readyz").status_code == 200
    served.signal()
    assert served.ends() == 0
    assert [line for line in served.err if "Traceback" in line] == []
