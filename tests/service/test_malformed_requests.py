"""A few hundred malformed requests; `chaos/test_requests.py` sends more."""

from __future__ import annotations

from tests.support.malformed_requests import send_malformed_requests
from tests.support.service import Serve


def test_malformed_requests_are_refused_in_words(serve: Serve) -> None:
    served = serve()
    with served.client() as client:
        client.post(
            "/api/v1/jobs", json={"id": "known", "schedule": None, "endpoint": "https://a.example"}
        )
        assert send_malformed_requests(served.url, 7, 600) == []
        assert client.get("/readyz").status_code == 200
    served.signal()
    assert served.ends() == 0
    assert [line for line in served.err if "Traceback" in line] == []
