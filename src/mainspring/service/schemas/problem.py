"""A problem: an error as RFC 9457 describes it, with a `code` for programs."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import Field

from mainspring.service.schemas.fields import Document

CODES = {
    "bad_request": "The request cannot be read.",
    "invalid_json": "The body is not JSON.",
    "invalid_input": "A field, a parameter or a header is wrong; `errors` names them.",
    "key_missing": "The request needs an API key.",
    "key_unknown": "The API key is unknown, revoked or expired.",
    "scope_too_small": "The API key's scope does not allow this.",
    "origin_refused": "The request comes from a page of another site, or its Host is not allowed.",
    "not_found": "There is nothing at this path, or nothing with this id.",
    "job_not_found": "There is no such job.",
    "run_not_found": "There is no such run. Finished runs are pruned after a time.",
    "method_not_allowed": "The path does not take this method; see `Allow`.",
    "job_owned_by_file": "A file defines the job: change the file and apply it.",
    "conflict": "The stored state does not allow this.",
    "job_exists": "There is already a job with this id.",
    "job_deleted": "The job that this Idempotency-Key created was deleted.",
    "job_owned_by_code": "A program defines this job, and only the program can change it.",
    "job_unreadable": "The record is damaged, or another version wrote it.",
    "invalid_state": "The run's state does not allow this.",
    "job_changed": "The job was changed after it was read.",
    "body_timeout": "The body did not arrive in time.",
    "body_too_large": "The body is too large.",
    "unsupported_media_type": "The body is not application/json.",
    "rate_limited": "Too many requests; try again after `Retry-After`.",
    "internal_error": "An unexpected error; the service's log says more.",
    "store_unavailable": "The store does not answer; try again after `Retry-After`.",
    "busy": "The service holds too many bytes of requests; try again after `Retry-After`.",
    "stopping": "The service is stopping or not started; try again after `Retry-After`.",
}
"""Every `code`, and what it means."""


class Status(NamedTuple):
    """An HTTP status that an error can have: its code where the error names none, what it means,
    and a code of it for examples (by default the same)."""

    code: str
    meaning: str
    example: str = ""


STATUSES = {
    400: Status("bad_request", "The request cannot be read.", "invalid_json"),
    401: Status(
        "key_missing",
        "The request needs an API key, or its key is unknown, revoked or expired.",
    ),
    403: Status(
        "origin_refused",
        "The key's scope is too small, or the request comes from a page of another site.",
        "scope_too_small",
    ),
    404: Status("not_found", "There is no such job, run or key.", "job_not_found"),
    405: Status("method_not_allowed", CODES["method_not_allowed"]),
    408: Status("body_timeout", CODES["body_timeout"]),
    409: Status("conflict", CODES["conflict"]),
    412: Status("job_changed", CODES["job_changed"]),
    413: Status("body_too_large", CODES["body_too_large"]),
    415: Status("unsupported_media_type", CODES["unsupported_media_type"]),
    422: Status("invalid_input", "A field, a parameter or a header is wrong."),
    429: Status("rate_limited", "Too many requests."),
    500: Status("internal_error", CODES["internal_error"]),
    503: Status("stopping", "The store is away, or the service is stopping.", "store_unavailable"),
}

_LISTED = "\n".join(f"- `{code}`: {meaning}" for code, meaning in CODES.items())


class FieldProblem(Document):
    field: Annotated[str, Field(description="The field or parameter.", examples=["schedule"])]
    message: Annotated[str, Field(description="What is wrong with it.", examples=["is required"])]


class Problem(Document):
    """An error, as RFC 9457 describes it. Programs go by `code`."""

    type: Annotated[str, Field(description="A URN that ends with the code.")]
    title: Annotated[str, Field(description="The status in words.")]
    status: Annotated[int, Field(description="The status of the answer.")]
    code: Annotated[
        str,
        Field(
            description=f"Which problem it is, for programs:\n{_LISTED}",
            examples=["job_not_found"],
        ),
    ]
    detail: Annotated[str, Field(description="What happened, and what to do about it.")]
    instance: Annotated[str | None, Field(description="The path of the request.")] = None
    errors: Annotated[
        list[FieldProblem] | None, Field(description="Each wrong field, with a message.")
    ] = None


class ProblemDocument(Problem):
    """An error of the compatibility operations: `error` says what to do about it, the rest is RFC
    9457."""

    success: Annotated[bool, Field(description="Always false.")]
    error: Annotated[str, Field(description="The same as `detail`.")]
