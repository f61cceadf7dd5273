"""The description of answers: the same names as the answers themselves have.

`Api.ok` holds every answer of the other tests against the description too.
"""

from __future__ import annotations

from mainspring.service.compat import JobDocument
from mainspring.service.schemas.documents import Document, describe_documents
from mainspring.service.schemas.job import JobBulkItem
from tests.support.service import WEBHOOK, Api


def names(kind: type[Document]) -> set[str]:
    return set(kind.__struct_encode_fields__)


async def test_what_is_done_with_many_is_described(api: Api) -> None:
    jobs = [{**WEBHOOK, "id": "a"}, {"handler": "greet", "schedule": None}, {}]
    made = await api.ok("POST", "/api/v1/jobs/bulk", json={"jobs": jobs})
    ran = await api.ok(
        "POST", "/api/v1/jobs/bulk", json={"action": "trigger", "ids": ["a", "none"]}
    )
    found: set[str] = set()
    for one in (*made["items"], *ran["items"]):
        found |= one.keys()
    assert found == names(JobBulkItem)


def test_a_field_that_is_always_sent_is_required_and_no_other_is_allowed() -> None:
    schema = describe_documents([JobDocument])["JobDocument"]
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) - set(schema["required"]) == {
        *("payload", "body", "endpoint", "method", "headers", "secretHeaders"),
        *("successCodes", "retryOn", "signingSecret"),
    }
    assert "default" not in schema["properties"]["_id"]
